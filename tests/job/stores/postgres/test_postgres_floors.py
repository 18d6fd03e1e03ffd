"""The floor of a lane on PostgreSQL: the rank at which claims start to search, so that they skip jobs claimed long ago
but never miss a pending one.
"""

from __future__ import annotations

import psycopg
import pytest
from postgres_store_client import PostgresStoreClient, job

from backstay.job.stores.postgres import claim_heuristics
from backstay.sync import Backstay
from support.store_client import SECOND

pytestmark = pytest.mark.postgres

LOWEST = -(2**63)


class BusyWorker(PostgresStoreClient):
    """A worker of one queue, and the floor of its lane."""

    def __init__(self, url, namespace):
        super().__init__(url, namespace)
        self.url = url

    def enqueue(self, *jobs):
        self.apply("enqueue", 0, jobs)
        return [job.id for job in jobs]

    def claim(self, want=10):
        return [job.id for job in super().claim(want)]

    def query(self, text, *values):
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(text, values)
            return cursor.fetchall() if cursor.description else []

    def floor(self):
        ((floor,),) = self.query("SELECT floor FROM backstay_job_lane WHERE space = %s", self.engine.namespace)
        return floor

    def move_below_floor(self, job):
        """Lower the rank of a job, as if it had been enqueued long ago in a transaction that has just committed."""
        self.query("UPDATE backstay_job SET rank = rank - %s WHERE id = %s", 100 * SECOND, job)


@pytest.fixture
def worker(backstay_postgres, namespace, monkeypatch):
    """A worker whose cached floor and lease checks stay valid until a test resets them."""
    monkeypatch.setattr(claim_heuristics, "FLOOR", 1e6)
    monkeypatch.setattr(claim_heuristics, "BUSY_LOOK", 1e6)
    worker = BusyWorker(backstay_postgres.url, namespace)
    yield worker
    worker.close()


def find_floor(worker, jobs=60):
    """Enqueue jobs and claim three times: the first claim searches everything, the second stores the floor, the third
    starts there. Returns the ids of the jobs.
    """
    ids = worker.enqueue(*[job() for _ in range(jobs)])
    assert [worker.claim(), worker.claim(), worker.claim()] == [ids[:10], ids[10:20], ids[20:30]]
    ((head,),) = worker.query("SELECT rank FROM backstay_job WHERE id = %s", ids[20])
    assert worker.floor() == head
    return ids


def test_a_busy_worker_begins_at_the_floor(worker):
    ids = find_floor(worker)
    worker.move_below_floor(ids[-1])
    assert worker.claim() == ids[30:40]


@pytest.mark.parametrize("how", ["priority", "due"])
def test_an_urgent_or_older_job_is_claimed_before_the_floor(worker, how):
    ids = find_floor(worker)
    urgent = job(priority=1) if how == "priority" else job(due=worker.engine.now() - 100 * SECOND)
    worker.enqueue(job(), urgent)
    assert worker.claim() == [urgent.id, *ids[30:39]]
    assert worker.claim() == ids[39:49]


def test_jobs_of_one_priority_leave_the_floor_alone(worker):
    ids = worker.enqueue(*[job(priority=7) for _ in range(60)])
    for _ in range(3):
        worker.claim()
    floor = worker.floor()
    assert floor > LOWEST
    worker.enqueue(job(priority=7))
    assert worker.floor() == floor
    assert worker.claim() == ids[30:40]


def test_a_job_below_the_floor_is_found_by_the_next_scan_below_it(worker, monkeypatch):
    ids = find_floor(worker)
    worker.move_below_floor(ids[-1])
    monkeypatch.setattr(claim_heuristics, "steady", lambda: 1e12)
    assert worker.claim() == [ids[-1], *ids[30:39]]


def test_a_job_below_the_floor_is_found_when_a_claim_falls_short(worker):
    ids = find_floor(worker)
    worker.move_below_floor(ids[-1])
    assert sorted(worker.claim(1000)) == sorted(ids[30:])


def test_a_floor_is_never_ahead_of_the_time(worker):
    worker.enqueue(*[job(priority=-100) for _ in range(60)])
    for _ in range(3):
        worker.claim()
    assert LOWEST < worker.floor() <= worker.engine.now()
    (new,) = worker.enqueue(job())
    assert worker.claim()[0] == new


def test_a_locked_lane_row_does_not_block_claims(worker, monkeypatch):
    ids = find_floor(worker)
    worker.move_below_floor(ids[-1])
    floor = worker.floor()
    monkeypatch.setattr(claim_heuristics, "FLOOR", -1.0)  # each claim searches below the floor
    monkeypatch.setattr(claim_heuristics, "steady", lambda: 1e12)
    with psycopg.connect(worker.url) as another:
        another.execute("SELECT FROM backstay_job_lane FOR UPDATE")
        assert worker.claim() == [ids[-1], *ids[30:39]]
        assert worker.claim() == ids[39:49]
    assert worker.floor() == floor


def test_a_callers_transaction_locks_no_lane_row(worker, backstay_postgres, namespace):
    find_floor(worker)
    with Backstay(backstay_postgres.url, namespace=namespace) as stay, psycopg.connect(worker.url) as mine:

        @stay.job(name="work", priority=5)
        def urgent() -> None: ...

        handle = urgent.options(connection=mine).enqueue()
        worker.query("SELECT FROM backstay_job_lane WHERE space = %s FOR UPDATE NOWAIT", namespace)
        assert handle.id not in worker.claim()
        mine.commit()
        assert handle.id in worker.claim(1000)  # a claim that gets fewer jobs than it wants searches below the floor
