"""A claim on PostgreSQL does not wait for the disk: what a crash of the server takes with it is handed out again."""

from __future__ import annotations

import pytest

from backstay.engine.base import Ping
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.engine import PostgresEngine
from backstay.job.ids import Ids
from backstay.job.model import Claim, Concurrency, ExchangeCommand, Finish, NewJob, Renewal
from backstay.job.stores.postgres.store import PostgresStore
from backstay.testing.servers.postgres import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.chaos]

SECOND = 1_000_000
IDS = Ids()
#: Only a commit that waits for the WAL flushes it.
SLOW_WRITER = {"wal_writer_delay": "10s", "wal_writer_flush_after": "0", "autovacuum": "off"}


class WorkerChannel:
    def __init__(self, engine, store, number=0):
        self.engine, self.store, self.number, self.seq = engine, store, number, 0

    def command(self, finishes=(), want=0):
        self.seq += 1
        return ExchangeCommand(
            shard=0,
            worker="w",
            incarnation="i",
            channel=self.number,
            seq=self.seq,
            finishes=tuple(finishes),
            claim=Claim(want=want, lease=60 * SECOND),
            not_after=self.engine.now() + 600 * SECOND,
        )

    def exchange(self, finishes=(), want=0):
        return self.engine.apply(self.store.exchange(self.command(finishes, want)))


def complete(job):
    return Finish(job=job.id, fence=job.fence, kind="complete")


def work(**fields):
    return NewJob(id=IDS.new(0), type="work", **{"retries": 3, **fields})


@pytest.fixture
def place(namespace):
    """A server whose WAL reaches the disk only when a commit waits for it, and a function to crash it."""
    with PostgresServer(settings=SLOW_WRITER) as server:
        engine = PostgresEngine(parse(server.url + "?timeout=5"), namespace=namespace)
        engine.apply(Ping())
        store = PostgresStore(namespace, namespace)

        def crash():
            server.kill()
            server.start()
            engine.apply(Ping())

        yield engine, store, crash
        engine.close_blocking()


def test_a_claim_lost_in_a_crash_is_repeated_with_a_higher_fence(place):
    engine, store, crash = place
    engine.apply(store.enqueue(0, [work()]))
    lane = WorkerChannel(engine, store)
    (lost,) = lane.exchange(want=1).jobs
    crash()
    assert engine.apply(store.get(lost.id)).state == "pending"
    assert engine.apply(store.renew(0, "w", 60 * SECOND, [Renewal(lost.id, lost.fence)])) == ["lost"]
    (again,) = WorkerChannel(engine, store, 1).exchange(want=1).jobs
    assert (again.id, again.attempt) == (lost.id, 1)
    assert again.fence > lost.fence
    assert lane.exchange([complete(lost)]).verdicts == ("stale",)
    assert WorkerChannel(engine, store, 2).exchange([complete(again)]).verdicts == ("ok",)


def test_an_exchange_lost_in_a_crash_is_executed_again(place):
    engine, store, crash = place
    engine.apply(store.enqueue(0, [work()]))
    lane = WorkerChannel(engine, store)
    command = lane.command(want=1)
    (lost,) = engine.apply(store.exchange(command)).jobs
    crash()
    (again,) = engine.apply(store.exchange(command)).jobs
    assert again.id == lost.id
    assert again.fence > lost.fence


def test_finishes_and_the_claims_before_them_survive_a_crash(place):
    """A commit that waits for the disk also flushes everything written before."""
    engine, store, crash = place
    engine.apply(store.enqueue(0, [work(), work()]))
    lane = WorkerChannel(engine, store)
    first, second = lane.exchange(want=2).jobs
    assert lane.exchange([complete(first)]).verdicts == ("ok",)
    crash()
    assert engine.apply(store.get(first.id)).state == "completed"
    assert engine.apply(store.get(second.id)).state == "running"
    assert lane.exchange([complete(second)]).verdicts == ("ok",)


@pytest.mark.parametrize(
    "fields",
    [{"retries": 0}, {"concurrency": Concurrency("one", 1)}],
    ids=["its last attempt", "a concurrency key"],
)
def test_a_claim_that_must_not_repeat_waits_for_the_disk(place, fields):
    engine, store, crash = place
    engine.apply(store.enqueue(0, [work(**fields)]))
    lane = WorkerChannel(engine, store)
    (held,) = lane.exchange(want=1).jobs
    crash()
    assert engine.apply(store.get(held.id)).state == "running"
    assert lane.exchange([complete(held)]).verdicts == ("ok",)


def test_the_start_of_a_run_job_and_its_event_are_durable(place):
    from backstay.job.run_model import NewRun

    engine, store, crash = place
    id_ = IDS.new(0)
    engine.apply(store.start_run(NewRun(id=id_, workflow="w", jobs=(work(run=id_),))))
    (held,) = WorkerChannel(engine, store).exchange(want=1).jobs
    crash()
    assert engine.apply(store.get(held.id)).state == "running"
    assert [event.kind for event in engine.apply(store.run_events(id_))][-1] == "started"
