"""Expired rows are deleted as fast as new ones are written, by every process, and in bounded steps."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from types import SimpleNamespace

import psycopg
import pytest

from backstay.engine import sweep_schedule
from backstay.engine.base import Apply, Publish, PublishHint, Tag
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.sqlite import sweep as sqlite_sweep
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.engine.sweep_schedule import IDLE_LOOK, LOOK_AFTER, LOOK_EVERY, STEP_EVERY, STEP_ROWS, SweepSchedule
from backstay.gate.commands import Acquire, CallerIdentity
from backstay.gate.machine import GATE
from backstay.idempotency.machine import IDEMPOTENCY, Begin
from backstay.limit.algorithms import ALGORITHM_TYPES, Fixed, Rule
from backstay.limit.machine import LIMIT, Hit
from backstay.testing.waiting import eventually

MINUTE = 60_000_000
DAY = 1440 * MINUTE
FAR = 2**52
#: The first time of the test clock.
START = 1_700_000_000 * 1_000_000
#: New names per round.
ROUND = 1000


def lock(name):
    return Apply(GATE, name, Acquire(FAR, name, name, True, 1, 1_000_000, "inbox", 0, CallerIdentity()))


def limit(name):
    return Apply(LIMIT, name, Hit(FAR, ALGORITHM_TYPES.index(Fixed), (Rule(10, 60_000, 10),), 1))


def idempotency_key(name):
    return Apply(IDEMPOTENCY, name, Begin(FAR, name, "process", "", 1_000_000, ""))


def tag(name):
    return Tag(GATE, name, name, MINUTE)


def hint_counter(name):
    return PublishHint(name, 1, MINUTE, "channel", "payload")


def hint(name):
    return Publish("channel of another process", name)


#: Operations that create one row each, the table of the row, and how long it lives.
KINDS = {
    "lock": (lock, "backstay_state", DAY),
    "limit": (limit, "backstay_state", MINUTE),
    "idempotency key": (idempotency_key, "backstay_state", 2 * DAY),
    "tag": (tag, "backstay_tag", MINUTE),
    "hint counter": (hint_counter, "backstay_hint_counter", MINUTE),
    "hint": (hint, "backstay_hint", MINUTE),
}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request, tmp_path):
    """A database, engines on it that share a test clock, and the number of its rows."""
    clock = SimpleNamespace(now=START)
    path = tmp_path / "rows.db"
    url = request.getfixturevalue("database").url if request.param == "postgres" else ""

    @contextmanager
    def open_engine():
        if url:
            engine = PostgresEngine(parse(url), clock=lambda: clock.now)
        else:
            engine = SqliteEngine(str(path), synchronous="off", clock=lambda: clock.now)
        try:
            yield engine
        finally:
            engine.close_blocking()

    def count(table):
        with closing(psycopg.connect(url) if url else sqlite3.connect(path)) as db:
            return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - a table of KINDS

    return SimpleNamespace(kind=request.param, clock=clock, open=open_engine, count=count)


def write(engine, make, nth, names=ROUND):
    results = engine.apply_many([make(f"name-{nth}-{n}") for n in range(names)])
    assert [result for result in results if isinstance(result, BaseException)] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_grow_while_new_names_keep_arriving(store, kind):
    """A row lives for four rounds; at most ten rounds of rows are stored after any number of rounds."""
    if kind == "hint" and store.kind == "postgres":
        pytest.skip("hints are no rows on PostgreSQL")
    make, table, life = KINDS[kind]
    most = 0
    with store.open() as engine:
        for nth in range(24):
            store.clock.now += life // 4
            write(engine, make, nth)
            most = max(most, store.count(table))
    print(f"{kind} on {store.kind}: at most {most} of {24 * ROUND} rows")
    assert most <= 10 * ROUND


def test_short_lived_processes_sweep(store):
    """A process that runs one call, such as the command line, deletes more rows than it creates."""
    for nth in range(8):
        with store.open() as engine:
            write(engine, limit, nth, names=100)
        store.clock.now += 2 * MINUTE
    assert store.count("backstay_state") <= 200


def test_a_process_that_has_nothing_else_to_do_deletes_a_backlog(store, monkeypatch):
    monkeypatch.setattr(sweep_schedule, "IDLE_LOOK", 0.05)
    with store.open() as engine:
        write(engine, limit, 1, names=5 * STEP_ROWS)
        store.clock.now += 2 * MINUTE
        assert eventually(lambda: store.count("backstay_state") == 0)


def test_rows_that_have_not_expired_are_kept(store):
    with store.open() as engine:
        write(engine, lock, 1, names=50)
        store.clock.now += DAY - 1
        for nth in range(4):
            write(engine, tag, nth)
        assert store.count("backstay_state") == 50


def test_a_step_on_sqlite_ends_when_its_time_is_over(tmp_path, monkeypatch):
    """Rows with a large body take long to delete, and other processes wait meanwhile."""
    with closing_engine(SqliteEngine(str(tmp_path / "rows.db"), clock=lambda: START)) as engine:
        write(engine, limit, 1)
        times = iter(range(1000))
        monkeypatch.setattr(sqlite_sweep, "steady", lambda: next(times))
        with closing(engine.connect()) as db:
            assert sqlite_sweep.sweep(db, START + 2 * MINUTE)
            assert db.execute("SELECT count(*) FROM backstay_state").fetchone() == (ROUND - sqlite_sweep.CHUNK_ROWS,)


def test_a_look_without_a_find_takes_no_write_lock(tmp_path):
    with closing_engine(SqliteEngine(str(tmp_path / "rows.db"), clock=lambda: START)) as engine:
        write(engine, limit, 1, names=10)
        with closing(engine.connect()) as db, closing(engine.connect()) as writer:
            writer.execute("BEGIN IMMEDIATE")
            assert not sqlite_sweep.has_expired(db, START)
            assert sqlite_sweep.has_expired(db, START + 2 * MINUTE)


@contextmanager
def closing_engine(engine):
    try:
        yield engine
    finally:
        engine.close_blocking()


class TestSchedule:
    """When a step of a sweep is due."""

    @pytest.fixture
    def at(self, monkeypatch):
        clock = SimpleNamespace(now=100.0)
        monkeypatch.setattr(sweep_schedule, "steady", lambda: clock.now)
        return clock

    def test_the_first_look_follows_the_first_write(self, at):
        schedule = SweepSchedule()
        assert not schedule.is_due()
        schedule.count(1)
        assert schedule.is_due()

    def test_an_idle_process_looks_once_a_minute(self, at):
        schedule = SweepSchedule()
        assert schedule.pause() == IDLE_LOOK
        at.now += IDLE_LOOK
        assert schedule.is_due()
        schedule.record(took=0.001, has_more=False)
        assert not schedule.is_due()
        assert schedule.pause() == IDLE_LOOK

    def test_a_process_that_writes_looks_after_a_time_or_a_number_of_operations(self, at):
        schedule = SweepSchedule()
        schedule.record(took=0.001, has_more=False)
        schedule.count(LOOK_EVERY - 1)
        assert not schedule.is_due()
        assert schedule.pause() == LOOK_AFTER
        schedule.count(1)
        assert schedule.is_due()
        schedule.record(took=0.001, has_more=False)
        schedule.count(1)
        at.now += LOOK_AFTER
        assert schedule.is_due()

    def test_steps_follow_each_other_while_there_are_expired_rows(self, at):
        schedule = SweepSchedule()
        schedule.record(took=0.1, has_more=True)
        assert not schedule.is_due()
        assert schedule.pause() == pytest.approx(0.3)
        schedule.count(2 * STEP_EVERY)
        for _ in range(2):
            assert schedule.is_due()
            schedule.record(took=0.1, has_more=True)
        assert not schedule.is_due()

    def test_a_step_deletes_more_rows_than_were_created_since_the_last_one(self):
        assert STEP_ROWS >= 2 * STEP_EVERY

    def test_a_failed_step_is_repeated_later(self, at):
        schedule = SweepSchedule()
        schedule.count(LOOK_EVERY)
        assert schedule.is_due()
        schedule.record_failure()
        assert not schedule.is_due()
