"""A statement that had to wait for a row finds another version of it than the one it had seen. It is the same job."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from test_postgres_store import Worker, complete, job

from holdfast.engine.base import Ping
from holdfast.engine.postgres import PostgresEngine
from holdfast.engine.postgres.address import parse
from holdfast.job.model import Renewal
from holdfast.job.postgres import PostgresStore
from holdfast.testing.waiting import eventually

pytestmark = pytest.mark.postgres

SECOND = 1_000_000
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE %s"
CHANGE = "UPDATE holdfast_job SET flags = flags | 1 WHERE space = %s"


@pytest.fixture
def engine(holdfast_postgres, namespace):
    engine = PostgresEngine(parse(f"{holdfast_postgres.url}?application_name={namespace}"), namespace=namespace)
    engine.apply(Ping())
    yield engine
    engine.close_blocking()


@pytest.fixture
def store(namespace):
    return PostgresStore(namespace, namespace)


@pytest.fixture
def meanwhile(holdfast_postgres, engine, namespace):
    """Carries out an operation while somebody changes rows: it has seen them as they were, and waits."""

    def carried_out(op, change=CHANGE):
        with (
            psycopg.connect(holdfast_postgres.url) as other,
            psycopg.connect(holdfast_postgres.url, autocommit=True) as admin,
            ThreadPoolExecutor() as pool,
        ):
            other.execute(change, [namespace])
            answer = pool.submit(engine.apply, op)
            assert eventually(lambda: admin.execute(WAITING, [f"%{namespace}%"]).fetchone() != (0,))
            other.commit()
            return answer.result(20)

    return carried_out


def test_a_lease_is_renewed_although_its_job_was_changed_meanwhile(engine, store, meanwhile):
    """As by whoever begins to wait for its result. Told that it was lost, the worker would end the handler."""
    engine.apply(store.enqueue(0, [job()]))
    worker = Worker(engine, store)
    (mine,) = worker.step().jobs
    assert meanwhile(store.renew(0, "w", 60 * SECOND, [Renewal(mine.id, mine.fence, 0.5)])) == ["ok"]
    kept = engine.apply(store.get(mine.id))
    assert kept.progress == 0.5
    assert worker.step([complete(mine)]).verdicts == ("ok",)


def test_a_blocker_that_was_changed_meanwhile_is_waited_for(engine, store, meanwhile):
    blocker = job()
    engine.apply(store.enqueue(0, [blocker]))
    waits = job("waits", after=(blocker.id,))
    assert [one.state for one in meanwhile(store.enqueue(0, [waits]))] == ["blocked"]
    worker = Worker(engine, store)
    reply = worker.step([complete(one) for one in worker.step(want=5).jobs], want=5)
    assert [one.id for one in reply.jobs] == [waits.id]


def test_who_goes_on_behind_a_blocker_that_was_changed_meanwhile_is_not_skipped(engine, store, meanwhile):
    first, blocker = job(), job()
    engine.apply(store.enqueue(0, [first]))
    worker = Worker(engine, store)
    (mine,) = worker.step().jobs
    engine.apply(store.enqueue(0, [blocker]))
    following = job("next", after=(blocker.id,), chain=mine.id)
    command = worker.command([complete(mine, next=following)], want=0)
    change = f"{CHANGE} AND id = '{blocker.id}'"
    assert meanwhile(store.step(command), change).verdicts == ("ok",)
    assert engine.apply(store.get(following.id)).state == "blocked"
