"""Lost replies on Redis: a resent exchange or enqueue gets the reply of the first one, and changes nothing."""

from __future__ import annotations

import pytest

from backstay.errors import EngineError, OutcomeUnknown
from backstay.job.model import Unique
from backstay.testing.proxy import FaultProxy
from support.store_client import finish

pytestmark = pytest.mark.redis


@pytest.fixture
def proxied(backstay_redis, clients):
    with FaultProxy(backstay_redis.port) as proxy:
        yield proxy, clients(f"{proxy.url}?timeout=0.5")


def test_a_resent_exchange_gets_the_same_reply(proxied, clients):
    proxy, client = proxied
    ids = [client.add() for _ in range(3)]
    first = client.claim(1)[0]
    command = client.command([finish(first, result=b"r")], want=5)
    proxy.once("cut-after", b"EVALSHA")
    with pytest.raises(OutcomeUnknown):
        client.apply("exchange", command)
    assert clients(name="other").claim(5) == ()
    reply = client.apply("exchange", command)
    assert reply.verdicts == ("ok",)
    assert [job.id for job in reply.jobs] == ids[1:]
    assert [client.apply("get", id_).attempt for id_ in ids] == [1, 1, 1]


def test_an_enqueue_whose_reply_was_lost_creates_one_job(proxied):
    proxy, client = proxied
    client.add()
    job, other = client.job(unique=Unique("key", "until_done")), client.job()
    for _ in range(2):
        proxy.once("cut-after", b"EVALSHA")
        with pytest.raises(OutcomeUnknown):
            client.apply("enqueue", 0, [job, other])
    made = client.apply("enqueue", 0, [job, other])
    assert [(each.id, each.deduplicated) for each in made] == [(job.id, False), (other.id, False)]
    assert len(client.apply("list_jobs")) == 3


def test_a_late_exchange_from_an_abandoned_connection_changes_nothing(proxied, clients):
    proxy, client = proxied
    id_ = client.add()
    held = proxy.once("hold", b"EVALSHA")
    command = client.command(want=1)
    with pytest.raises(OutcomeUnknown):
        client.apply("exchange", command)
    assert held.applied.is_set()
    (job,) = client.apply("exchange", command).jobs
    client.finish(job)
    proxy.deliver_held()
    seen = client.apply("get", id_)
    assert (seen.state, seen.attempt) == ("completed", 1)


def test_no_job_runs_twice_when_most_replies_are_lost(proxied, clients):
    proxy, client = proxied
    ids = [made.id for made in client.apply("enqueue", 0, [client.job() for _ in range(60)])]
    proxy.rule("cut-after", b"EVALSHA", chance=0.6)
    finishes, runs = [], []
    while True:
        command = client.command(finishes, want=4)
        for _ in range(40):
            try:
                reply = client.apply("exchange", command)
                break
            except EngineError:
                continue
        else:
            pytest.fail("no exchange succeeded")
        assert set(reply.verdicts) <= {"ok"}
        if not reply.jobs:
            break
        runs += [job.id for job in reply.jobs]
        finishes = [finish(job) for job in reply.jobs]
    assert proxy.applied["cut-after"] > 5
    assert sorted(runs) == sorted(ids)
    assert {job.state for job in clients().apply("list_jobs", limit=100)} == {"completed"}
