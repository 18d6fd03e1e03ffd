"""Operations on PostgreSQL that wait for a row lock, while another transaction changes the row, use its new version."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest
from postgres_store_client import job, open_engine

from backstay.engine.postgres.connection.arrays import register_dumpers
from backstay.job.exchange import Renewal
from backstay.job.model import Concurrency
from backstay.job.run_model import NewRun
from backstay.testing.waiting import eventually
from support.store_client import SECOND, StoreClient, finish

pytestmark = pytest.mark.postgres


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE %s"
CHANGE = "UPDATE backstay_job SET flags = flags | 1 WHERE space = %s"


@pytest.fixture
def engine(backstay_postgres, namespace):
    """An engine whose sessions bear the name of the namespace, so that a test can see whether one waits for a lock."""
    engine = open_engine(f"{backstay_postgres.url}?application_name={namespace}", namespace)
    yield engine
    engine.close_blocking()


@pytest.fixture
def apply_during_change(backstay_postgres, engine, namespace):
    """Apply an operation while another transaction has changed its rows and not committed: the operation has read the
    old version and waits for the lock.
    """

    def apply(op, change=CHANGE):
        with (
            psycopg.connect(backstay_postgres.url) as other,
            psycopg.connect(backstay_postgres.url, autocommit=True) as admin,
            ThreadPoolExecutor() as pool,
        ):
            other.execute(change, [namespace])
            reply = pool.submit(engine.apply, op)
            assert eventually(lambda: admin.execute(WAITING, [f"%{namespace}%"]).fetchone() != (0,))
            other.commit()
            return reply.result(20)

    return apply


def test_a_lease_is_renewed_despite_a_concurrent_change_of_its_job(engine, store, apply_during_change):
    """A caller that starts to wait for the result changes the row. A `lost` reply would make the worker end the
    handler.
    """
    engine.apply(store.enqueue(0, [job()]))
    worker = StoreClient(engine, store)
    (mine,) = worker.exchange().jobs
    assert apply_during_change(store.renew(0, "w", 60 * SECOND, [Renewal(mine.id, mine.fence, 0.5)])) == ["ok"]
    assert engine.apply(store.get(mine.id)).progress == 0.5
    assert worker.exchange([finish(mine)]).verdicts == ("ok",)


def test_a_parked_job_that_changes_while_its_key_becomes_free_is_not_left_behind(engine, store, apply_during_change):
    """For example a caller begins to wait for its result. No other job of the key may ever end."""
    worker = StoreClient(engine, store)
    worker.apply("enqueue", 0, [job(concurrency=Concurrency("k", 1)) for _ in range(2)])
    (first,) = worker.claim(5)
    assert worker.claim(5) == ()
    change = CHANGE + " AND state = 'parked'"
    reply = apply_during_change(store.exchange(worker.command([finish(first)], 0)), change)
    assert (reply.verdicts, reply.ready) == (("ok",), {"work": 1})
    assert len(worker.claim(5)) == 1


def test_a_concurrently_changed_blocker_still_blocks(engine, store, apply_during_change):
    blocker = job()
    engine.apply(store.enqueue(0, [blocker]))
    dependent = job("dependent", after=(blocker.id,))
    assert [one.state for one in apply_during_change(store.enqueue(0, [dependent]))] == ["blocked"]
    worker = StoreClient(engine, store)
    reply = worker.exchange([finish(one) for one in worker.exchange(want=5).jobs], want=5)
    assert [one.id for one in reply.jobs] == [dependent.id]


def test_a_chain_successor_of_a_concurrently_changed_blocker_stays_blocked(engine, store, apply_during_change):
    first, blocker = job(), job()
    engine.apply(store.enqueue(0, [first]))
    worker = StoreClient(engine, store)
    (mine,) = worker.exchange().jobs
    engine.apply(store.enqueue(0, [blocker]))
    following = job("next", after=(blocker.id,), chain=mine.id)
    command = worker.command([finish(mine, next=following)], want=0)
    change = f"{CHANGE} AND id = '{blocker.id}'"
    assert apply_during_change(store.exchange(command), change).verdicts == ("ok",)
    assert engine.apply(store.get(following.id)).state == "blocked"


def test_a_run_cancelled_during_the_lock_wait_accepts_no_more_jobs(engine, store, apply_during_change):
    """The exchange has already released the dependent when it sees the cancellation; it is rolled back and repeated."""
    run = job().id
    first = job(run=run)
    second = job(run=run, after=(first.id,))
    engine.apply(store.start_run(NewRun(id=run, workflow="w", jobs=(first, second))))
    worker = StoreClient(engine, store)
    (mine,) = worker.exchange(want=5).jobs
    command = worker.command([finish(mine)], want=0)
    cancel = "UPDATE backstay_run SET cancelling = true, reason = 'because' WHERE space = %s"
    reply = apply_during_change(store.exchange(command), cancel)
    assert reply.verdicts == ("ok",)
    assert [engine.apply(store.get(each.id)).state for each in (first, second)] == ["completed", "cancelled"]
    assert engine.apply(store.get_run(run)).status == "cancelled"
    events = engine.apply(store.run_events(run))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    kinds = [(event.kind, event.job) for event in events]
    assert kinds[-3:] == [("completed", first.id), ("cancelled", second.id), ("run_finished", "")]
    assert worker.exchange(want=5).jobs == ()


def test_an_any_failure_job_enqueued_during_its_blockers_success_is_skipped(
    engine, store, backstay_postgres, namespace
):
    """The job is enqueued in a caller's transaction, whose commit the finish of the blocker has to wait for."""
    run = job().id
    first, second = job(run=run), job(run=run)
    engine.apply(store.start_run(NewRun(id=run, workflow="w", jobs=(first, second))))
    engine.apply(store.enqueue(0, [job("dependent", after=(first.id,))]))  # marks the first job as one with dependents
    worker = StoreClient(engine, store)
    mine = {each.id: each for each in worker.exchange(want=5).jobs}
    cleanup = job("cleanup", after=(first.id,), when="any_failure")
    with (
        psycopg.connect(backstay_postgres.url) as other,
        psycopg.connect(backstay_postgres.url, autocommit=True) as admin,
        ThreadPoolExecutor() as pool,
    ):
        apply_in_transaction(other, store.enqueue_among([cleanup]))
        reply = pool.submit(engine.apply, store.exchange(worker.command([finish(mine[first.id])], want=0)))
        assert eventually(lambda: admin.execute(WAITING, [f"%{namespace}%"]).fetchone() != (0,))
        other.commit()
        assert reply.result(20).verdicts == ("ok",)
    assert engine.apply(store.get(cleanup.id)).state == "skipped"
    assert [each.type for each in worker.exchange(want=5).jobs] == ["dependent"]


def apply_in_transaction(connection, op):
    """Apply an operation inside the open transaction of a connection."""
    register_dumpers(connection)
    procedure = op.work(None, [])
    rows = None
    with suppress(StopIteration):
        while True:
            statements = procedure.send(rows).statements
            cursors = [connection.execute(text, values, binary=True) for text, values in statements]
            rows = [cursor.fetchall() if cursor.description else [] for cursor in cursors]
