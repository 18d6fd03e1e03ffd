"""On PostgreSQL a claim takes from the announcement that called it, in the same trip."""

from __future__ import annotations

import uuid

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from backstay.engine.base import Ping
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.connection.pool_settings import open_pool
from backstay.engine.postgres.connection.wire import Pipeline
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.notify import decode, wire_channel
from backstay.hub.protocol import hint_key
from backstay.job.ids import Ids
from backstay.job.model import Claim, ExchangeCommand, Finish, NewJob
from backstay.job.stores.postgres.store import PostgresStore

pytestmark = pytest.mark.postgres

SECOND = 1_000_000
IDS = Ids()


class Client:
    """A worker channel that also enqueues and announces."""

    def __init__(self, engine, namespace, url):
        self.engine, self.namespace, self.url, self.seq = engine, namespace, url, 0
        self.store = PostgresStore(namespace, namespace)
        engine.apply(Ping())

    def ask(self, verb, *args):
        return self.engine.apply(getattr(self.store, verb)(*args))

    def announced(self, count):
        """Enqueue the given number of jobs and return their hint."""
        jobs = [NewJob(id=IDS.new(0), type="work") for _ in range(count)]
        with psycopg.connect(self.url, autocommit=True) as ear:
            ear.execute(f"LISTEN {wire_channel(f'{self.namespace}:sched')}".encode())
            self.engine.apply(self.store.enqueue(0, jobs, announce=True))
            (heard,) = ear.notifies(timeout=5, stop_after=1)
        hint, _, kind = decode(heard.payload).payload.partition(":")
        assert kind == "work"
        return hint

    def command(self, want, hints=(), finishes=()):
        self.seq += 1
        return ExchangeCommand(
            shard=0,
            worker="w",
            incarnation="i",
            channel=0,
            seq=self.seq,
            finishes=tuple(finishes),
            claim=Claim(want=want, lease=30 * SECOND, hints=tuple(hints)),
            not_after=self.engine.now() + 30 * SECOND,
        )

    def exchange(self, want, hints=(), finishes=()):
        return self.ask("exchange", self.command(want, hints, finishes))


@pytest.fixture(params=["own connections", "a pool"])
def client(request, backstay_postgres, namespace):
    if request.param == "a pool":
        with ConnectionPool(backstay_postgres.url, min_size=2, max_size=4) as pool:
            engine = open_pool(pool, blocking=True, namespace=namespace)
            yield Client(engine, namespace, backstay_postgres.url)
            engine.close_blocking()
        return
    engine = PostgresEngine(parse(backstay_postgres.url), namespace=namespace)
    yield Client(engine, namespace, backstay_postgres.url)
    engine.close_blocking()


@pytest.fixture
def left(backstay_postgres, namespace):
    with psycopg.connect(backstay_postgres.url, autocommit=True) as admin:
        yield lambda hint: admin.execute(
            "SELECT remaining FROM backstay_hint_counter WHERE hint = %s", (hint_key(namespace, hint),)
        ).fetchone()[0]


def test_a_claim_takes_no_more_than_its_hints_allow(client, left):
    first, second, third = client.announced(2), client.announced(1), client.announced(4)
    assert len(client.exchange(10, [first, second]).jobs) == 3
    assert len(client.exchange(1, [third]).jobs) == 1
    assert [left(hint) for hint in (first, second, third)] == [0, 0, 3]


def test_a_satisfied_claim_takes_nothing_from_further_hints(client, left):
    first, second = client.announced(3), client.announced(3)
    assert len(client.exchange(4, [first, second]).jobs) == 4
    assert [left(first), left(second)] == [0, 2]


def test_a_claim_for_hints_that_are_used_up_is_denied_and_changes_nothing(client):
    hint = client.announced(1)
    assert len(client.exchange(5, [hint]).jobs) == 1
    client.announced(1)
    command = client.command(5, [hint])
    denied = client.ask("exchange", command)
    assert (denied.denied, denied.jobs, denied.stale) == (True, (), False)
    assert client.ask("exchange", command).denied, "its number was not used"
    assert len(client.exchange(5).jobs) == 1, "who looks for itself finds it"


def test_a_claim_for_an_expired_hint_is_not_limited(client):
    client.announced(2)
    assert len(client.exchange(5, [str(uuid.uuid4())]).jobs) == 2


def test_a_resent_claim_consumes_its_hint_once(client, left):
    hint = client.announced(4)
    command = client.command(2, [hint])
    first, again = client.ask("exchange", command), client.ask("exchange", command)
    assert [job.id for job in first.jobs] == [job.id for job in again.jobs]
    assert left(hint) == 2


def test_a_resent_claim_gets_the_same_reply(client, left):
    hint = client.announced(2)
    command = client.command(2, [hint])
    first, again = client.ask("exchange", command), client.ask("exchange", command)
    assert {job.id for job in first.jobs} == {job.id for job in again.jobs}
    assert (len(first.jobs), again.denied, left(hint)) == (2, False, 0)


def test_finishes_are_applied_although_the_hint_denies_the_claim(client):
    hint = client.announced(1)
    (job,) = client.exchange(1, [hint]).jobs
    said = client.exchange(1, [hint], [Finish(job=job.id, fence=job.fence, kind="complete")])
    assert (said.verdicts, said.denied) == (("ok",), False)
    assert client.ask("get", job.id).state == "completed"


def test_a_claim_with_a_hint_is_one_round_trip(client, monkeypatch):
    hint = client.announced(3)
    client.exchange(1, [hint])
    sent = []
    begin = Pipeline.begin
    monkeypatch.setattr(Pipeline, "begin", lambda self, statements: sent.append(statements) or begin(self, statements))
    assert len(client.exchange(5, [hint]).jobs) == 2
    assert len(sent) == 1
