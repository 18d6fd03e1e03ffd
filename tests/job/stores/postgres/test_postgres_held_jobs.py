"""A claim skips rows that another transaction has locked, such as a caller that starts to wait for a result. It reports
that, so that its worker polls again at once and not at its next interval.
"""

from __future__ import annotations

import contextlib

import psycopg
import pytest
from test_postgres_store import Worker, complete, job

from backstay.engine.base import Ping
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.engine import PostgresEngine
from backstay.job.model import Concurrency, Rate
from backstay.job.stores.postgres.store import PostgresStore

pytestmark = pytest.mark.postgres

SECOND = 1_000_000
#: How jobs are found: in a lane alone, in one of several, among those with a key or a rate.
WAYS = {
    "alone": [{}],
    "among several lanes": [{"labels": ("gpu",)}, {}],
    "with a key": [{"concurrency": Concurrency("k", 5)}],
    "with a rate": [{"rate": Rate("r", SECOND, 5)}],
}


@pytest.fixture
def engine(backstay_postgres, namespace):
    engine = PostgresEngine(parse(backstay_postgres.url), namespace=namespace)
    engine.apply(Ping())
    yield engine
    engine.close_blocking()


@pytest.fixture
def store(namespace):
    return PostgresStore(namespace, namespace)


@contextlib.contextmanager
def held(url, namespace):
    """Another transaction locks all pending jobs for a while."""
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM backstay_job WHERE space = %s AND state = 'pending' FOR UPDATE", [namespace])
        yield
        other.rollback()


@pytest.mark.parametrize("way", WAYS)
def test_a_claim_that_skipped_a_locked_job_reports_it(engine, store, backstay_postgres, namespace, way):
    worker = Worker(engine, store)
    jobs = [job(**fields) for fields in WAYS[way]]
    engine.apply(store.enqueue(0, jobs))
    with held(backstay_postgres.url, namespace):
        reply = worker.exchange(want=5, labels=("gpu",))
        assert (reply.jobs, reply.next_in) == ((), 0)
        reply = worker.exchange(want=5, labels=("gpu",))  # by now it knows what kind of jobs there are
        assert (reply.jobs, reply.next_in) == ((), 0)
    reply = worker.exchange(want=5, labels=("gpu",))
    assert {one.id for one in reply.jobs} == {one.id for one in jobs}
    assert worker.exchange(map(complete, reply.jobs), want=5, labels=("gpu",)).next_in is None


@pytest.mark.parametrize("way", WAYS)
def test_a_claim_that_took_every_job_asks_for_no_second_poll(engine, store, way):
    worker = Worker(engine, store)
    jobs = [job(**fields) for fields in WAYS[way]]
    engine.apply(store.enqueue(0, jobs))
    for _ in range(2):
        reply = worker.exchange(want=5, labels=("gpu",))
        assert reply.next_in is None or reply.next_in > SECOND
    assert worker.exchange(want=5).next_in > SECOND
