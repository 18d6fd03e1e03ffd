"""Where claims on PostgreSQL begin to look: not at what was handed out long ago, and never behind what comes first."""

from __future__ import annotations

import psycopg
import pytest

from backstay.engine.base import Ping
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.engine import PostgresEngine
from backstay.job.ids import Ids
from backstay.job.model import Claim, ExchangeCommand, NewJob
from backstay.job.stores.postgres import claim_heuristics
from backstay.job.stores.postgres.store import PostgresStore
from backstay.sync import Backstay

pytestmark = pytest.mark.postgres

SECOND = 1_000_000
LOWEST = -(2**63)
IDS = Ids()


def work(**fields):
    return NewJob(id=IDS.new(0), type="work", **fields)


class Place:
    """A queue with a backlog, and one busy worker."""

    def __init__(self, url, namespace):
        self.url = url
        self.engine = PostgresEngine(parse(url), namespace=namespace)
        self.engine.correct_clock(self.engine.apply(Ping()))
        self.store = PostgresStore(namespace, namespace)
        self.seq = 0

    def enqueue(self, *jobs):
        self.engine.apply(self.store.enqueue(0, jobs))
        return [job.id for job in jobs]

    def claim(self, want=10):
        self.seq += 1
        command = ExchangeCommand(
            shard=0,
            worker="w",
            incarnation="i",
            channel=0,
            seq=self.seq,
            claim=Claim(want=want, lease=60 * SECOND),
            not_after=self.engine.now() + 600 * SECOND,
        )
        return [job.id for job in self.engine.apply(self.store.exchange(command)).jobs]

    def query(self, text, *values):
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(text, values)
            return cursor.fetchall() if cursor.description else []

    def floor(self):
        ((floor,),) = self.query("SELECT floor FROM backstay_job_lane WHERE space = %s", self.engine.namespace)
        return floor

    def sink(self, job):
        """As if it had been enqueued long ago, in a transaction that has just ended."""
        self.query("UPDATE backstay_job SET rank = rank - %s WHERE id = %s", 100 * SECOND, job)


@pytest.fixture
def place(backstay_postgres, namespace, monkeypatch):
    """Floors and lease checks stay valid until a test resets them."""
    monkeypatch.setattr(claim_heuristics, "FLOOR", 1e6)
    monkeypatch.setattr(claim_heuristics, "BUSY_LOOK", 1e6)
    made = Place(backstay_postgres.url, namespace)
    yield made
    made.engine.close_blocking()


def busy(place, jobs=60):
    """Three claims: one looks at everything, one finds the floor, one begins there."""
    ids = place.enqueue(*[work() for _ in range(jobs)])
    assert [place.claim(), place.claim(), place.claim()] == [ids[:10], ids[10:20], ids[20:30]]
    ((head,),) = place.query("SELECT rank FROM backstay_job WHERE id = %s", ids[20])
    assert place.floor() == head
    return ids


def test_a_busy_worker_begins_at_the_floor(place):
    ids = busy(place)
    place.sink(ids[-1])
    assert place.claim() == ids[30:40]


@pytest.mark.parametrize("how", ["priority", "due"])
def test_an_urgent_or_older_job_is_claimed_before_the_floor(place, how):
    ids = busy(place)
    urgent = work(priority=1) if how == "priority" else work(due=place.engine.now() - 100 * SECOND)
    place.enqueue(work(), urgent)
    assert place.claim() == [urgent.id, *ids[30:39]]
    assert place.claim() == ids[39:49]


def test_jobs_of_one_priority_leave_the_floor_alone(place):
    ids = place.enqueue(*[work(priority=7) for _ in range(60)])
    for _ in range(3):
        place.claim()
    floor = place.floor()
    assert floor > LOWEST
    place.enqueue(work(priority=7))
    assert place.floor() == floor
    assert place.claim() == ids[30:40]


def test_a_job_below_the_floor_is_found_by_the_next_scan_below_it(place, monkeypatch):
    ids = busy(place)
    place.sink(ids[-1])
    monkeypatch.setattr(claim_heuristics, "steady", lambda: 1e12)
    assert place.claim() == [ids[-1], *ids[30:39]]


def test_a_job_below_the_floor_is_found_when_a_claim_falls_short(place):
    ids = busy(place)
    place.sink(ids[-1])
    assert sorted(place.claim(1000)) == sorted(ids[30:])


def test_a_floor_is_never_ahead_of_the_time(place):
    place.enqueue(*[work(priority=-100) for _ in range(60)])
    for _ in range(3):
        place.claim()
    assert LOWEST < place.floor() <= place.engine.now()
    (new,) = place.enqueue(work())
    assert place.claim()[0] == new


def test_a_locked_lane_row_does_not_block_claims(place, monkeypatch):
    ids = busy(place)
    place.sink(ids[-1])
    floor = place.floor()
    monkeypatch.setattr(claim_heuristics, "FLOOR", -1.0)  # each claim looks below
    monkeypatch.setattr(claim_heuristics, "steady", lambda: 1e12)
    with psycopg.connect(place.url) as another:
        another.execute("SELECT FROM backstay_job_lane FOR UPDATE")
        assert place.claim() == [ids[-1], *ids[30:39]]
        assert place.claim() == ids[39:49]
    assert place.floor() == floor


def test_a_callers_transaction_locks_no_lane_row(place, backstay_postgres, namespace):
    busy(place)
    with Backstay(backstay_postgres.url, namespace=namespace) as stay, psycopg.connect(place.url) as mine:

        @stay.job(name="work", priority=5)
        def urgent() -> None: ...

        handle = urgent.options(connection=mine).enqueue()
        place.query("SELECT FROM backstay_job_lane WHERE space = %s FOR UPDATE NOWAIT", namespace)
        assert handle.id not in place.claim()
        mine.commit()
        assert handle.id in place.claim(1000)  # one that comes short looks below the floor
