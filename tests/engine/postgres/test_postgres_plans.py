"""Every statement uses an index, whatever plan the server chooses, and updates change no index."""

from __future__ import annotations

import psycopg
import pytest

from backstay.engine.base import Apply, ListTagged, Ping, Read, Scan, Tag, Untag
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.batches.statements import LONGEST_STEP
from backstay.engine.postgres.engine import PostgresEngine
from backstay.gate.commands import Acquire, CallerIdentity, Release, Renew
from backstay.gate.machine import DAY, GATE
from backstay.limit.algorithms import ALGORITHM_TYPES, Fixed, Rule
from backstay.limit.machine import LIMIT, Hit
from support.agreement.engine_agreement import NeverDue

pytestmark = pytest.mark.postgres

MINUTE = 60_000_000
ROWS = 100_000
FILL = """
INSERT INTO backstay_state
SELECT %(space)s, 'gate', convert_to('name-' || i, 'UTF8'), NULL, 4000000000000000 FROM generate_series(1, %(rows)s) i
ON CONFLICT DO NOTHING;
INSERT INTO backstay_tag
SELECT %(space)s, 'gate', convert_to('tag-' || i %% 1000, 'UTF8'), convert_to('name-' || i, 'UTF8'), 4000000000000000
FROM generate_series(1, %(rows)s) i
ON CONFLICT DO NOTHING;
"""


@pytest.fixture
def engine(database):
    """An engine in a database of its own, so that its contents are known."""
    engine = PostgresEngine(parse(database.url), namespace="plans")
    engine._connections[0].sweep_schedule = NeverDue()  # the tests use the connection themselves
    engine.apply(Ping())
    yield engine
    engine.close_blocking()


def fill(database):
    with psycopg.connect(database.url, autocommit=True, cursor_factory=psycopg.ClientCursor) as db:
        db.execute(FILL, {"space": "plans", "rows": ROWS})


def everything(engine, nth):
    names = [f"name-{i * 977 % ROWS}" for i in range(nth, nth + 3)] + [f"new-{nth}"]
    far = engine.now() + MINUTE
    yield [Apply(GATE, n, Acquire(far, "t", "l", True, 1, MINUTE, "i", 9, CallerIdentity())) for n in names]
    yield [Apply(GATE, n, Release(far, "t", "l", 0, 0)) for n in names]
    yield [Read(GATE, n) for n in names]
    yield [Tag(GATE, "tag-1", n, MINUTE) for n in names]
    yield [ListTagged(GATE, "tag-1"), Untag(GATE, "tag-1", tuple(names))]
    yield [Scan(GATE, "name-99")]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan", "auto"])
@pytest.mark.parametrize("known", [True, False], ids=["analysed", "filled after planning"])
def test_no_statement_reads_a_whole_table(engine, database, mode, known):
    if known:
        fill(database)
        with psycopg.connect(database.url, autocommit=True) as db:
            db.execute("ANALYZE")
    batch_connection = engine._connections[0]
    plans = []
    batch_connection._pipeline.session.until = float("inf")
    batch_connection._pipeline.session.execute(f"SET plan_cache_mode = {mode}")
    rounds = 12  # enough for a prepared statement with a generic plan
    for nth in range(rounds):
        if nth == rounds - 1:
            if not known:
                fill(database)
            batch_connection._pipeline.session.until = float("inf")
            batch_connection._pipeline.session.execute("LOAD 'auto_explain'")
            batch_connection._pipeline.session.execute("SET auto_explain.log_min_duration = 0")
            batch_connection._pipeline.session.execute("SET client_min_messages = log")
            batch_connection._pipeline.session.add_notice_handler(lambda note: plans.append(note.message_primary))
        for ops in everything(engine, nth):
            assert not [reply for reply in engine.apply_many(ops) if isinstance(reply, BaseException)]
        batch_connection.sweep()
    seen = "\n".join(plans)
    for verb in (
        "INSERT INTO backstay_state",
        "FOR UPDATE OF state SKIP",
        "UPDATE backstay_state",
        "backstay_tag AS known",
    ):
        assert verb in seen
    assert "DELETE FROM backstay_state" in seen
    assert [plan for plan in plans if "Seq Scan" in plan] == []
    assert "backstay_state_pkey" in seen
    assert "backstay_state_sweep" in seen


def test_a_scan_stops_at_the_end_of_its_prefix(engine, database):
    fill(database)
    with psycopg.connect(database.url, autocommit=True) as db:
        db.execute("UPDATE backstay_state SET doc = ''")
    plans = []
    session = engine._connections[0]._pipeline.session
    session.until = float("inf")
    session.execute("LOAD 'auto_explain'")
    session.execute("SET auto_explain.log_min_duration = 0")
    session.execute("SET auto_explain.log_analyze = on")
    session.execute("SET client_min_messages = log")
    session.add_notice_handler(lambda note: plans.append(note.message_primary))
    engine.apply(Scan(GATE, "name-1234"))
    (plan,) = [plan for plan in plans if "ORDER BY name" in plan]
    assert "Rows Removed by Filter" not in plan, plan


HOUR = 60 * MINUTE
FIXED = ALGORITHM_TYPES.index(Fixed)
#: The rounding step of rows that are kept for a day, and a time at which such a row is kept to the end of a step.
STEP = LONGEST_STEP
END = 500_000 * STEP - DAY


@pytest.mark.parametrize("now", [END + STEP // 2, END - MINUTE // 2], ids=["within a step", "at its end"])
def test_updates_are_heap_only(database, now):
    """The rows fit on one page, so updates are heap-only whatever other transactions are open."""
    engine = PostgresEngine(parse(database.url), namespace="plans", clock=lambda: now)
    engine._connections[0].sweep_schedule = NeverDue()
    far, names, rounds = now + HOUR, [f"hot-{i}" for i in range(4)], 5
    for n in range(rounds):
        engine.apply_many(
            [Apply(GATE, name, Acquire(far, f"t{n}", "l", True, 1, MINUTE, "i", 9, CallerIdentity())) for name in names]
        )
        engine.apply_many([Apply(GATE, name, Renew(far, f"t{n}", 0, MINUTE)) for name in names])
        engine.apply_many([Apply(GATE, name, Release(far, f"t{n}", "l", 0, 0)) for name in names])
    counted = count_updates(engine)
    engine.close_blocking()
    updates = len(names) * rounds * 3
    assert counted == (updates, updates - len(names))  # the first update of a name sets the indexed keep_until


def test_most_hits_of_a_limit_are_heap_only_updates(database):
    """The record of a limit of a second is kept for a few seconds only, and yet most hits do not change its index."""
    now, hits = END, 200
    engine = PostgresEngine(parse(database.url), namespace="plans", clock=lambda: now)
    engine._connections[0].sweep_schedule = NeverDue()
    for _ in range(hits):
        now += 20_000
        engine.apply(Apply(LIMIT, "hot", Hit(now + HOUR, FIXED, (Rule(1000, 1000, 1000),), 1)))
    updates, heap_only = count_updates(engine)
    kept = engine._connections[0]._pipeline.session.execute("SELECT keep_until FROM backstay_state").fetchone()[0]
    engine.close_blocking()
    assert updates == hits
    assert updates - heap_only <= 4
    assert kept - now < 10_000_000


def count_updates(engine):
    """Return the number of updates of records, and how many of them were heap-only."""
    session = engine._connections[0]._pipeline.session
    session.until = float("inf")
    session.execute("SELECT pg_stat_force_next_flush()")
    return session.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'backstay_state'"
    ).fetchone()
