"""On PostgreSQL, a claim consumes the hints that it names in the same round trip."""

from __future__ import annotations

import uuid

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from backstay.engine.base import Ping
from backstay.engine.postgres.connection.pool_settings import open_pool
from backstay.engine.postgres.connection.wire import Pipeline
from backstay.engine.postgres.notify import decode, wire_channel
from backstay.hub.protocol import hint_key
from support.store_client import StoreClient, finish

pytestmark = pytest.mark.postgres


@pytest.fixture(params=["own connections", "a pool"])
def client(request, backstay_postgres, namespace, store):
    if request.param == "own connections":
        yield StoreClient(request.getfixturevalue("engine"), store)
        return
    with ConnectionPool(backstay_postgres.url, min_size=2, max_size=4) as pool:
        engine = open_pool(pool, blocking=True, namespace=namespace)
        engine.apply(Ping())
        yield StoreClient(engine, store)
        engine.close_blocking()


@pytest.fixture
def announce(client, backstay_postgres, namespace):
    """`announce(n)` enqueues n jobs and returns the hint of their announcement."""

    def announce(count):
        with psycopg.connect(backstay_postgres.url, autocommit=True) as listener:
            listener.execute(f"LISTEN {wire_channel(f'{namespace}:sched')}".encode())
            client.apply("enqueue", 0, [client.job() for _ in range(count)], announce=True)
            (notification,) = listener.notifies(timeout=5, stop_after=1)
        hint, _, kind = decode(notification.payload).payload.partition(":")
        assert kind == "work"
        return hint

    return announce


@pytest.fixture
def remaining(backstay_postgres, namespace):
    """`remaining(hint)` returns the number of jobs that the hint still allows to claim."""
    with psycopg.connect(backstay_postgres.url, autocommit=True) as admin:
        yield lambda hint: admin.execute(
            "SELECT remaining FROM backstay_hint_counter WHERE hint = %s", (hint_key(namespace, hint),)
        ).fetchone()[0]


def test_a_claim_takes_no_more_than_its_hints_allow(client, announce, remaining):
    first, second, third = announce(2), announce(1), announce(4)
    assert len(client.claim(10, hints=(first, second))) == 3
    assert len(client.claim(1, hints=(third,))) == 1
    assert [remaining(hint) for hint in (first, second, third)] == [0, 0, 3]


def test_a_satisfied_claim_takes_nothing_from_further_hints(client, announce, remaining):
    first, second = announce(3), announce(3)
    assert len(client.claim(4, hints=(first, second))) == 4
    assert [remaining(first), remaining(second)] == [0, 2]


def test_a_claim_for_hints_that_are_used_up_is_denied_and_changes_nothing(client, announce):
    hint = announce(1)
    assert len(client.claim(5, hints=(hint,))) == 1
    announce(1)
    command = client.command(want=5, hints=(hint,))
    denied = client.apply("exchange", command)
    assert (denied.denied, denied.jobs, denied.stale) == (True, (), False)
    assert client.apply("exchange", command).denied, "a denied exchange does not use up its number"
    assert len(client.claim(5)) == 1, "a claim without a hint finds the job"


def test_a_claim_for_an_expired_hint_is_not_limited(client, announce):
    announce(2)
    assert len(client.claim(5, hints=(str(uuid.uuid4()),))) == 2


def test_a_resent_claim_consumes_its_hint_once(client, announce, remaining):
    hint = announce(4)
    command = client.command(want=2, hints=(hint,))
    first, again = client.apply("exchange", command), client.apply("exchange", command)
    assert [job.id for job in first.jobs] == [job.id for job in again.jobs]
    assert remaining(hint) == 2


def test_a_resent_claim_gets_the_same_reply(client, announce, remaining):
    hint = announce(2)
    command = client.command(want=2, hints=(hint,))
    first, again = client.apply("exchange", command), client.apply("exchange", command)
    assert {job.id for job in first.jobs} == {job.id for job in again.jobs}
    assert (len(first.jobs), again.denied, remaining(hint)) == (2, False, 0)


def test_finishes_are_applied_although_the_hint_denies_the_claim(client, announce):
    hint = announce(1)
    (job,) = client.claim(1, hints=(hint,))
    reply = client.exchange([finish(job)], want=1, hints=(hint,))
    assert (reply.verdicts, reply.denied) == (("ok",), False)
    assert client.apply("get", job.id).state == "completed"


def test_a_claim_with_a_hint_is_one_round_trip(client, announce, monkeypatch):
    hint = announce(3)
    client.claim(1, hints=(hint,))
    sent = []
    begin = Pipeline.begin
    monkeypatch.setattr(Pipeline, "begin", lambda self, statements: sent.append(statements) or begin(self, statements))
    assert len(client.claim(5, hints=(hint,))) == 2
    assert len(sent) == 1
