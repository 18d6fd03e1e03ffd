"""Other sessions on the same rows: a locked row delays only the operations on its own name."""

from __future__ import annotations

import secrets
import threading

import psycopg
import pytest

from backstay import CorruptRecord, EngineUnavailable
from backstay.engine.base import Apply, ListTagged, Ping, Scan, Tag, Untag, steady
from backstay.engine.commit_thread import QueuedOp
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.batches.batch_connection import PATIENCE, SKIPS
from backstay.engine.postgres.engine import PostgresEngine
from backstay.gate.commands import Acquire, CallerIdentity, Granted, Release
from backstay.gate.machine import GATE
from backstay.testing.waiting import eventually
from support.agreement.engine_agreement import NeverDue

pytestmark = [pytest.mark.postgres, pytest.mark.chaos]

MINUTE = 60_000_000


@pytest.fixture
def engine(backstay_postgres, namespace):
    engine = PostgresEngine(parse(backstay_postgres.url), namespace=namespace)
    engine.apply(Ping())
    yield engine
    engine.close_blocking()


@pytest.fixture
def blocker(backstay_postgres):
    """A foreign session in a transaction without an idle timeout."""
    with psycopg.connect(backstay_postgres.url, autocommit=True) as db:
        db.execute("SET idle_in_transaction_session_timeout = 0")
        db.execute("BEGIN")
        yield db
        if not db.closed:
            db.execute("ROLLBACK")


def acquire(engine, name, ticket="t"):
    return Apply(GATE, name, Acquire(engine.now() + MINUTE, ticket, ticket, True, 1, MINUTE, "i", 9, CallerIdentity()))


def release(engine, name, ticket="t"):
    return Apply(GATE, name, Release(engine.now() + MINUTE, ticket, ticket, 0, 0))


def block_by_lock(blocker, space, name):
    blocker.execute("SELECT FROM backstay_state WHERE space = %s AND name = %s FOR UPDATE", (space, name.encode()))


def block_by_update(blocker, space, name):
    blocker.execute("UPDATE backstay_state SET doc = doc WHERE space = %s AND name = %s", (space, name.encode()))


def block_by_delete(blocker, space, name):
    blocker.execute("DELETE FROM backstay_state WHERE space = %s AND name = %s", (space, name.encode()))


def block_by_insert(blocker, space, name):
    block_by_delete(blocker, space, name)
    blocker.execute("COMMIT")
    blocker.execute("BEGIN")
    blocker.execute("INSERT INTO backstay_state VALUES (%s, 'gate', %s)", (space, name.encode()))


BLOCKERS = pytest.mark.parametrize("block", [block_by_lock, block_by_update, block_by_delete, block_by_insert])


@pytest.mark.timed
@BLOCKERS
def test_a_locked_row_times_out_and_delays_no_other_name(engine, blocker, block):
    assert isinstance(engine.apply(acquire(engine, "stuck")), Granted)
    block(blocker, engine.namespace, "stuck")
    replies = {}

    def ask():
        started = steady()
        replies["stuck"] = engine.apply_many([acquire(engine, "stuck")])
        replies["after"] = steady() - started

    thread = threading.Thread(target=ask)
    thread.start()
    slowest = 0.0
    while thread.is_alive():
        started = steady()
        reply, _ = engine.apply_many([acquire(engine, "free", "a"), release(engine, "free", "a")])
        slowest = max(slowest, steady() - started)
        assert isinstance(reply, Granted)
    assert isinstance(replies["stuck"][0], EngineUnavailable)
    assert PATIENCE <= replies["after"] < PATIENCE + 3
    assert slowest < 1.5  # one lock_timeout, on a busy host


@BLOCKERS
def test_an_operation_continues_when_the_foreign_transaction_ends(engine, blocker, block):
    engine.apply(acquire(engine, "stuck"))
    block(blocker, engine.namespace, "stuck")
    threading.Timer(0.7, lambda: blocker.execute("ROLLBACK")).start()
    assert isinstance(engine.apply(acquire(engine, "stuck")), Granted)


def test_an_operation_deferred_beside_a_locked_row_gets_its_reply(engine, blocker):
    """The row of one name is locked; another session is inserting the row of the other name."""
    engine.apply(acquire(engine, "stuck"))
    block_by_insert(blocker, engine.namespace, "new")
    block_by_lock(blocker, engine.namespace, "stuck")
    replies = {}
    items = [QueuedOp(acquire(engine, name), i, replies.update) for i, name in enumerate(("stuck", "new"))]
    items[0].skips = SKIPS
    engine._commit_thread.put_items(items)
    assert eventually(lambda: items[1].skips >= SKIPS)
    blocker.execute("ROLLBACK")
    assert eventually(lambda: len(replies) == 2)
    assert all(isinstance(reply, Granted) for reply in replies.values())


def test_the_server_ends_an_idle_transaction_of_the_engine(engine, backstay_postgres):
    engine.apply(acquire(engine, "stuck"))
    frozen = engine.connect()
    frozen.execute("BEGIN")
    block_by_lock(frozen, engine.namespace, "stuck")
    started = steady()
    assert isinstance(engine.apply(acquire(engine, "stuck")), Granted)
    assert 1 < steady() - started < PATIENCE
    with pytest.raises(psycopg.Error):
        frozen.execute("COMMIT")
    frozen.close()


def test_two_engines_that_lock_names_in_opposite_orders_both_succeed(engine, backstay_postgres, namespace):
    other = PostgresEngine(parse(backstay_postgres.url), namespace=namespace)
    names = [f"n{i}" for i in range(50)]
    wrong = []

    def work(engine, names, ticket):
        for i in range(30):
            mine = [f"{name}-{i % 3}" for name in names]
            for ops in ([acquire(engine, n, ticket) for n in mine], [release(engine, n, ticket) for n in mine]):
                wrong.extend(a for a in engine.apply_many(ops) if isinstance(a, BaseException))

    threads = [
        threading.Thread(target=work, args=(engine, names, "a")),
        threading.Thread(target=work, args=(other, names[::-1], "b")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close_blocking()
    assert wrong == []


def test_a_deadlock_over_tags_is_retried(engine, blocker):
    """The other side of the deadlock is a foreign session, so the engine's lock order cannot prevent it."""
    blocker.execute("SET deadlock_timeout = '20s'")  # the engine's session detects the deadlock first
    (batch_connection, _) = engine._connections
    batch_connection.sweep_schedule = NeverDue()  # the test uses the connection itself
    engine.apply_many([Tag(GATE, tag, "n", MINUTE) for tag in ("a", "b")])
    lock = "SELECT FROM backstay_tag WHERE space = %s AND tag = %s FOR UPDATE"
    blocker.execute(lock, (engine.namespace, b"b"))
    batch_connection._pipeline.session.execute("SET lock_timeout = 0")
    batch_connection._pipeline.session.execute("SET deadlock_timeout = '50ms'")
    replies = []
    thread = threading.Thread(
        target=lambda: replies.extend(engine.apply_many([Tag(GATE, t, "n", MINUTE) for t in "ab"]))
    )
    thread.start()
    try:
        blocker.execute(lock, (engine.namespace, b"a"))
    finally:
        blocker.execute("ROLLBACK")
    thread.join()
    assert replies == [None, None]


def test_all_engines_succeed_on_one_contended_name(backstay_postgres, namespace):
    engines = [PostgresEngine(parse(backstay_postgres.url), namespace=namespace) for _ in range(6)]
    wrong = []

    def work(engine, ticket):
        for _ in range(40):
            wrong.extend(
                a
                for a in engine.apply_many([acquire(engine, "hot", ticket), release(engine, "hot", ticket)])
                if isinstance(a, BaseException)
            )

    threads = [threading.Thread(target=work, args=(engine, f"t{i}")) for i, engine in enumerate(engines)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for engine in engines:
        engine.close_blocking()
    assert wrong == []


NAMES = ["nul\0nul", "quote'\"", "%s %b %%", "back\\slash", "ключ", "🔒", "{brace}", " ", "a" * 2000]


def test_any_text_is_a_name(engine):
    for name in NAMES:
        assert isinstance(engine.apply(acquire(engine, name)), Granted)
        engine.apply(Tag(GATE, name, name, MINUTE))
        assert engine.apply(ListTagged(GATE, name)) == [name]
        assert engine.apply(Scan(GATE, name)) == [name]
        engine.apply(Untag(GATE, name, (name,)))
        assert engine.apply(ListTagged(GATE, name)) == []
    assert engine.apply(Scan(GATE)) == sorted(NAMES, key=str.encode)


def test_a_scan_returns_only_names_with_its_prefix(engine):
    for name in ("a", "ab", "ab\U0010ffff", "ac", "b"):
        engine.apply(acquire(engine, name))
    assert engine.apply(Scan(GATE, "ab")) == ["ab", "ab\U0010ffff"]


def test_a_huge_record_is_kept_and_read(engine):
    crowd = [
        Apply(
            GATE,
            "crowd",
            Acquire(engine.now() + MINUTE, f"t{i}", "l" * 9000, True, 1, MINUTE, "i", 9999, CallerIdentity()),
        )
        for i in range(200)
    ]
    assert not [reply for reply in engine.apply_many(crowd) if isinstance(reply, BaseException)]
    assert engine.apply(release(engine, "crowd", "t0"))


def test_a_corrupt_record_fails_only_its_own_name(engine, admin, backstay_postgres):
    engine.apply(acquire(engine, "bad"))
    with psycopg.connect(backstay_postgres.url, autocommit=True) as db:
        db.execute("UPDATE backstay_state SET doc = 'x' WHERE space = %s", (engine.namespace,))
    bad, good = engine.apply_many([acquire(engine, "bad"), acquire(engine, "good")])
    assert isinstance(bad, CorruptRecord)
    assert isinstance(good, Granted)
    assert eventually(lambda: engine.apply(Ping()))


def test_a_row_that_another_session_deleted_is_created_again(engine, backstay_postgres):
    first = engine.apply(acquire(engine, "x"))
    engine.apply(release(engine, "x"))
    with psycopg.connect(backstay_postgres.url, autocommit=True) as other:
        other.execute("DELETE FROM backstay_state WHERE space = %s", (engine.namespace,))
    again = engine.apply(acquire(engine, "x", "u"))
    assert isinstance(again, Granted)
    assert again.fence > first.fence


def test_a_row_that_a_trigger_suppresses_times_out_and_delays_no_other_name(engine, backstay_postgres):
    """A foreign trigger or policy may suppress the row: that name fails in time instead of blocking."""
    trigger = f"swallow_{secrets.token_hex(4)}"
    with psycopg.connect(backstay_postgres.url, autocommit=True) as db:
        db.execute(
            f"CREATE FUNCTION {trigger}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$BEGIN IF NEW.space = '{engine.namespace}' AND NEW.name = 'gone' THEN RETURN NULL; END IF;"
            " RETURN NEW; END$$"
        )
        db.execute(
            f"CREATE TRIGGER {trigger} BEFORE INSERT ON backstay_state FOR EACH ROW EXECUTE FUNCTION {trigger}()"
        )
        try:
            started = steady()
            (gone,) = engine.apply_many([acquire(engine, "gone")], timeout=PATIENCE * 4)
            assert isinstance(gone, EngineUnavailable), gone
            assert "'gone' could not be locked" in str(gone)
            assert PATIENCE / 2 < steady() - started < PATIENCE * 3
            assert isinstance(engine.apply(acquire(engine, "there")), Granted)
        finally:
            db.execute(f"DROP FUNCTION {trigger} CASCADE")
