"""A statement that had to wait for a row finds another version of it than the one it had seen. It is the same job."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest
from test_postgres_store import Worker, complete, job

from backstay.engine.base import Ping
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.connection.arrays import register_dumpers
from backstay.engine.postgres.engine import PostgresEngine
from backstay.job.model import Renewal
from backstay.job.run_model import NewRun
from backstay.job.stores.postgres.store import PostgresStore
from backstay.testing.waiting import eventually

pytestmark = pytest.mark.postgres

SECOND = 1_000_000
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE %s"
CHANGE = "UPDATE backstay_job SET flags = flags | 1 WHERE space = %s"


@pytest.fixture
def engine(backstay_postgres, namespace):
    engine = PostgresEngine(parse(f"{backstay_postgres.url}?application_name={namespace}"), namespace=namespace)
    engine.apply(Ping())
    yield engine
    engine.close_blocking()


@pytest.fixture
def store(namespace):
    return PostgresStore(namespace, namespace)


@pytest.fixture
def meanwhile(backstay_postgres, engine, namespace):
    """Run an operation while another transaction changes its rows: it has read the old version and waits for the
    lock.
    """

    def carried_out(op, change=CHANGE):
        with (
            psycopg.connect(backstay_postgres.url) as other,
            psycopg.connect(backstay_postgres.url, autocommit=True) as admin,
            ThreadPoolExecutor() as pool,
        ):
            other.execute(change, [namespace])
            answer = pool.submit(engine.apply, op)
            assert eventually(lambda: admin.execute(WAITING, [f"%{namespace}%"]).fetchone() != (0,))
            other.commit()
            return answer.result(20)

    return carried_out


def test_a_lease_is_renewed_despite_a_concurrent_change_of_its_job(engine, store, meanwhile):
    """A caller that starts to wait for the result changes the row. A `lost` reply would make the worker end the
    handler.
    """
    engine.apply(store.enqueue(0, [job()]))
    worker = Worker(engine, store)
    (mine,) = worker.exchange().jobs
    assert meanwhile(store.renew(0, "w", 60 * SECOND, [Renewal(mine.id, mine.fence, 0.5)])) == ["ok"]
    kept = engine.apply(store.get(mine.id))
    assert kept.progress == 0.5
    assert worker.exchange([complete(mine)]).verdicts == ("ok",)


def test_a_concurrently_changed_blocker_still_blocks(engine, store, meanwhile):
    blocker = job()
    engine.apply(store.enqueue(0, [blocker]))
    waits = job("waits", after=(blocker.id,))
    assert [one.state for one in meanwhile(store.enqueue(0, [waits]))] == ["blocked"]
    worker = Worker(engine, store)
    reply = worker.exchange([complete(one) for one in worker.exchange(want=5).jobs], want=5)
    assert [one.id for one in reply.jobs] == [waits.id]


def test_a_chain_successor_of_a_concurrently_changed_blocker_stays_blocked(engine, store, meanwhile):
    first, blocker = job(), job()
    engine.apply(store.enqueue(0, [first]))
    worker = Worker(engine, store)
    (mine,) = worker.exchange().jobs
    engine.apply(store.enqueue(0, [blocker]))
    following = job("next", after=(blocker.id,), chain=mine.id)
    command = worker.command([complete(mine, next=following)], want=0)
    change = f"{CHANGE} AND id = '{blocker.id}'"
    assert meanwhile(store.exchange(command), change).verdicts == ("ok",)
    assert engine.apply(store.get(following.id)).state == "blocked"


def test_a_run_cancelled_during_the_lock_wait_accepts_no_more_jobs(engine, store, meanwhile):
    """The step was all but committed, with the start of the job behind it. It is undone, and begun anew."""
    run = job().id
    first = job(run=run)
    second = job(run=run, after=(first.id,))
    engine.apply(store.start_run(NewRun(id=run, workflow="w", jobs=(first, second))))
    worker = Worker(engine, store)
    (mine,) = worker.exchange(want=5).jobs
    command = worker.command([complete(mine)], want=0)
    cancel = "UPDATE backstay_run SET cancelling = true, reason = 'because' WHERE space = %s"
    reply = meanwhile(store.exchange(command), cancel)
    assert reply.verdicts == ("ok",)
    assert [engine.apply(store.get(each.id)).state for each in (first, second)] == ["completed", "cancelled"]
    assert engine.apply(store.get_run(run)).status == "cancelled"
    events = engine.apply(store.run_events(run))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    told = [(event.kind, event.job) for event in events]
    assert told[-3:] == [("completed", first.id), ("cancelled", second.id), ("run_finished", "")]
    assert worker.exchange(want=5).jobs == ()


def test_an_any_failure_job_enqueued_during_its_blockers_success_is_skipped(
    engine, store, backstay_postgres, namespace
):
    """It waits for a job that is just ending well, in a transaction that the end has to wait for."""
    run = job().id
    first, second = job(run=run), job(run=run)
    engine.apply(store.start_run(NewRun(id=run, workflow="w", jobs=(first, second))))
    engine.apply(store.enqueue(0, [job("waits", after=(first.id,))]))  # marks what it waits for
    worker = Worker(engine, store)
    mine = {each.id: each for each in worker.exchange(want=5).jobs}
    cleaner = job("cleans", after=(first.id,), when="any_failure")
    with (
        psycopg.connect(backstay_postgres.url) as other,
        psycopg.connect(backstay_postgres.url, autocommit=True) as admin,
        ThreadPoolExecutor() as pool,
    ):
        _say(other, store.enqueue_among([cleaner]))
        answer = pool.submit(engine.apply, store.exchange(worker.command([complete(mine[first.id])], want=0)))
        assert eventually(lambda: admin.execute(WAITING, [f"%{namespace}%"]).fetchone() != (0,))
        other.commit()
        assert answer.result(20).verdicts == ("ok",)
    assert engine.apply(store.get(cleaner.id)).state == "skipped"
    assert [each.type for each in worker.exchange(want=5).jobs] == ["waits"]


def _say(connection, op):
    """Run an operation inside a caller's transaction."""
    register_dumpers(connection)
    talk = op.work(None, [])
    rows = None
    with suppress(StopIteration):
        while True:
            cursors = [connection.execute(text, values, binary=True) for text, values in talk.send(rows).statements]
            rows = [cursor.fetchall() if cursor.description else [] for cursor in cursors]
