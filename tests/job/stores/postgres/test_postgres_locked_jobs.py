"""A claim skips rows that another transaction has locked, such as a caller that starts to wait for a result. It reports
that, so that its worker polls again at once and not at its next interval.
"""

from __future__ import annotations

import contextlib
import uuid

import psycopg
import pytest
from postgres_store_client import job

from backstay.job.model import Concurrency, StartRate
from support.store_client import SECOND, StoreClient, finish

pytestmark = pytest.mark.postgres

#: Jobs that a claim finds in different ways: in the only lane, in one of several lanes, or with a key or a rate.
JOBS = {
    "alone": [{}],
    "among several lanes": [{"labels": ("gpu",)}, {}],
    "with a key": [{"concurrency": Concurrency("k", 5)}],
    "with a rate": [{"rate": StartRate("r", SECOND, 5)}],
}


@contextlib.contextmanager
def all_pending_locked(url, namespace):
    """Lock all pending jobs in another transaction."""
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM backstay_job WHERE space = %s AND state = 'pending' FOR UPDATE", [namespace])
        yield
        other.rollback()


@pytest.mark.parametrize("kind", JOBS)
def test_a_claim_that_skipped_a_locked_job_reports_it(engine, store, backstay_postgres, namespace, kind):
    worker = StoreClient(engine, store)
    jobs = [job(**fields) for fields in JOBS[kind]]
    engine.apply(store.enqueue(0, jobs))
    with all_pending_locked(backstay_postgres.url, namespace):
        reply = worker.exchange(want=5, labels=("gpu",))
        assert (reply.jobs, reply.next_in) == ((), 0)
        reply = worker.exchange(want=5, labels=("gpu",))  # the second claim uses the lanes that the first one cached
        assert (reply.jobs, reply.next_in) == ((), 0)
    reply = worker.exchange(want=5, labels=("gpu",))
    assert {one.id for one in reply.jobs} == {one.id for one in jobs}
    assert worker.exchange(map(finish, reply.jobs), want=5, labels=("gpu",)).next_in is None


@pytest.mark.parametrize("kind", JOBS)
def test_a_claim_for_an_announcement_that_skipped_a_locked_job_reports_it(
    engine, store, backstay_postgres, namespace, kind
):
    """The claim has used up the announcement, so nothing else would make a worker search before its next poll."""
    worker = StoreClient(engine, store)
    hints = (str(uuid.uuid4()),)
    for _ in range(2):  # the second time, the claim uses the lanes that the first one cached
        jobs = [job(**fields) for fields in JOBS[kind]]
        engine.apply(store.enqueue(0, jobs))
        with all_pending_locked(backstay_postgres.url, namespace):
            reply = worker.exchange(want=5, labels=("gpu",), hints=hints)
            assert (reply.jobs, reply.next_in) == ((), 0)
        reply = worker.exchange(want=5, labels=("gpu",), hints=hints)
        assert {one.id for one in reply.jobs} == {one.id for one in jobs}
        assert reply.next_in is None or reply.next_in > SECOND
        worker.exchange(map(finish, reply.jobs), want=0)
    assert worker.exchange(want=5, labels=("gpu",), hints=hints).next_in is None


def test_a_claim_that_gets_one_of_two_jobs_reports_the_locked_one(engine, store, backstay_postgres, namespace):
    worker = StoreClient(engine, store)
    for _ in range(2):
        engine.apply(store.enqueue(0, [job()]))
        reply = worker.exchange(want=5, hints=(str(uuid.uuid4()),))
        worker.exchange(map(finish, reply.jobs), want=0)
    engine.apply(store.enqueue(0, [job()]))
    with all_pending_locked(backstay_postgres.url, namespace):
        engine.apply(store.enqueue(0, [job()]))
        for hints in ((str(uuid.uuid4()),), ()):
            reply = worker.exchange(want=5, hints=hints)
            assert (len(reply.jobs), reply.next_in) == (1 if hints else 0, 0)


@pytest.mark.parametrize("kind", JOBS)
def test_a_claim_that_took_every_job_asks_for_no_second_poll(engine, store, kind):
    worker = StoreClient(engine, store)
    jobs = [job(**fields) for fields in JOBS[kind]]
    engine.apply(store.enqueue(0, jobs))
    for _ in range(2):
        reply = worker.exchange(want=5, labels=("gpu",))
        assert reply.next_in is None or reply.next_in > SECOND
    assert worker.exchange(want=5).next_in > SECOND


@pytest.mark.parametrize("chain", [False, True])
def test_a_caller_that_begins_to_wait_locks_the_job_during_no_round_trip(engine, store, round_trips, chain):
    """The job is marked in the round trip that commits, and the result of an ended one is found at the first look."""
    worker = StoreClient(engine, store)
    pending = worker.add()
    round_trips.clear()
    assert worker.apply("watch", pending, chain=chain).state == "pending"
    assert round_trips == [[False], [True]]
    (claimed,) = worker.claim()
    worker.finish(claimed, result=b"done")
    round_trips.clear()
    assert worker.apply("watch", pending, chain=chain).result == b"done"
    assert round_trips == [[False], [True]]
