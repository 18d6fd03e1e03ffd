"""A claim on PostgreSQL does not wait for the disk: what a crash of the server takes with it is handed out again."""

from __future__ import annotations

import pytest

from backstay.engine.base import Ping
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.engine import PostgresEngine
from backstay.job.ids import Ids
from backstay.job.model import Claim, Concurrency, Finish, NewJob, Renewal, StepCommand
from backstay.job.stores.postgres.store import PostgresStore
from backstay.testing.postgres import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.chaos]

SECOND = 1_000_000
IDS = Ids()
#: Nobody writes the log but who waits for it.
SLOW_WRITER = {"wal_writer_delay": "10s", "wal_writer_flush_after": "0", "autovacuum": "off"}


class Lane:
    def __init__(self, engine, store, number=0):
        self.engine, self.store, self.number, self.seq = engine, store, number, 0

    def command(self, finishes=(), want=0):
        self.seq += 1
        return StepCommand(
            shard=0,
            worker="w",
            incarnation="i",
            lane=self.number,
            seq=self.seq,
            finishes=tuple(finishes),
            claim=Claim(want=want, lease=60 * SECOND),
            not_after=self.engine.now() + 600 * SECOND,
        )

    def step(self, finishes=(), want=0):
        return self.engine.apply(self.store.step(self.command(finishes, want)))


def complete(job):
    return Finish(job=job.id, fence=job.fence, kind="complete")


def work(**fields):
    return NewJob(id=IDS.new(0), type="work", **{"retries": 3, **fields})


@pytest.fixture
def place(namespace):
    """A server whose log reaches the disk only when somebody waits for it, and a way to crash it."""
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


def test_a_claim_that_a_crash_took_is_made_again_with_a_higher_fence(place):
    engine, store, crash = place
    engine.apply(store.enqueue(0, [work()]))
    lane = Lane(engine, store)
    (lost,) = lane.step(want=1).jobs
    crash()
    assert engine.apply(store.get(lost.id)).state == "pending"
    assert engine.apply(store.renew(0, "w", 60 * SECOND, [Renewal(lost.id, lost.fence)])) == ["lost"]
    (again,) = Lane(engine, store, 1).step(want=1).jobs
    assert (again.id, again.attempt) == (lost.id, 1)
    assert again.fence > lost.fence
    assert lane.step([complete(lost)]).verdicts == ("stale",)
    assert Lane(engine, store, 2).step([complete(again)]).verdicts == ("ok",)


def test_the_step_itself_is_executed_again_when_the_crash_took_it(place):
    engine, store, crash = place
    engine.apply(store.enqueue(0, [work()]))
    lane = Lane(engine, store)
    command = lane.command(want=1)
    (lost,) = engine.apply(store.step(command)).jobs
    crash()
    (again,) = engine.apply(store.step(command)).jobs
    assert again.id == lost.id
    assert again.fence > lost.fence


def test_what_ended_and_who_had_it_outlive_a_crash(place):
    """Whoever waits for the disk waits for all that was written before."""
    engine, store, crash = place
    engine.apply(store.enqueue(0, [work(), work()]))
    lane = Lane(engine, store)
    first, second = lane.step(want=2).jobs
    assert lane.step([complete(first)]).verdicts == ("ok",)
    crash()
    assert engine.apply(store.get(first.id)).state == "completed"
    assert engine.apply(store.get(second.id)).state == "running"
    assert lane.step([complete(second)]).verdicts == ("ok",)


@pytest.mark.parametrize(
    "fields",
    [{"retries": 0}, {"concurrency": Concurrency("one", 1)}],
    ids=["its last attempt", "a concurrency key"],
)
def test_a_claim_that_must_not_be_made_twice_waits_for_the_disk(place, fields):
    engine, store, crash = place
    engine.apply(store.enqueue(0, [work(**fields)]))
    lane = Lane(engine, store)
    (held,) = lane.step(want=1).jobs
    crash()
    assert engine.apply(store.get(held.id)).state == "running"
    assert lane.step([complete(held)]).verdicts == ("ok",)


def test_a_job_of_a_run_is_started_for_good_with_its_event(place):
    from backstay.job.run_model import NewRun

    engine, store, crash = place
    id_ = IDS.new(0)
    engine.apply(store.start_run(NewRun(id=id_, workflow="w", jobs=(work(run=id_),))))
    (held,) = Lane(engine, store).step(want=1).jobs
    crash()
    assert engine.apply(store.get(held.id)).state == "running"
    assert [event.kind for event in engine.apply(store.run_events(id_))][-1] == "started"
