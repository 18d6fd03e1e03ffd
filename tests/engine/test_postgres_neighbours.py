"""Others at work on the same rows: a stuck name holds up nobody but those who ask for it."""

from __future__ import annotations

import secrets
import threading

import psycopg
import pytest

from backstay import CorruptRecord, EngineUnavailable
from backstay.engine.base import Apply, Ping, Scan, Tag, Tagged, Untag, steady
from backstay.engine.commit_thread import Item
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.batches.batch_connection import PATIENCE, SKIPS
from backstay.engine.postgres.engine import PostgresEngine
from backstay.gate.machine import GATE, Acquire, Granted, Release, Who
from backstay.testing.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.chaos]

MINUTE = 60_000_000


@pytest.fixture
def engine(backstay_postgres, namespace):
    engine = PostgresEngine(parse(backstay_postgres.url), namespace=namespace)
    engine.apply(Ping())
    yield engine
    engine.close_blocking()


@pytest.fixture
def sitter(backstay_postgres):
    """Somebody in a transaction, whom the server does not end for standing still."""
    with psycopg.connect(backstay_postgres.url, autocommit=True) as db:
        db.execute("SET idle_in_transaction_session_timeout = 0")
        db.execute("BEGIN")
        yield db
        if not db.closed:
            db.execute("ROLLBACK")


def acquire(engine, name, ticket="t"):
    return Apply(GATE, name, Acquire(engine.now() + MINUTE, ticket, ticket, True, 1, MINUTE, "i", 9, Who()))


def release(engine, name, ticket="t"):
    return Apply(GATE, name, Release(engine.now() + MINUTE, ticket, ticket, 0, 0))


def sit_by_lock(sitter, space, name):
    sitter.execute("SELECT FROM backstay_state WHERE space = %s AND name = %s FOR UPDATE", (space, name.encode()))


def sit_by_update(sitter, space, name):
    sitter.execute("UPDATE backstay_state SET doc = doc WHERE space = %s AND name = %s", (space, name.encode()))


def sit_by_delete(sitter, space, name):
    sitter.execute("DELETE FROM backstay_state WHERE space = %s AND name = %s", (space, name.encode()))


def sit_by_insert(sitter, space, name):
    sit_by_delete(sitter, space, name)
    sitter.execute("COMMIT")
    sitter.execute("BEGIN")
    sitter.execute("INSERT INTO backstay_state VALUES (%s, 'gate', %s)", (space, name.encode()))


SITTERS = pytest.mark.parametrize("sit", [sit_by_lock, sit_by_update, sit_by_delete, sit_by_insert])


@pytest.mark.timed
@SITTERS
def test_a_stuck_name_is_given_up_and_other_names_are_not_delayed(engine, sitter, sit):
    assert isinstance(engine.apply(acquire(engine, "stuck")), Granted)
    sit(sitter, engine.namespace, "stuck")
    answers = {}

    def ask():
        started = steady()
        answers["stuck"] = engine.apply_many([acquire(engine, "stuck")])
        answers["after"] = steady() - started

    thread = threading.Thread(target=ask)
    thread.start()
    slowest = 0.0
    while thread.is_alive():
        started = steady()
        answer, _ = engine.apply_many([acquire(engine, "free", "a"), release(engine, "free", "a")])
        slowest = max(slowest, steady() - started)
        assert isinstance(answer, Granted)
    assert isinstance(answers["stuck"][0], EngineUnavailable)
    assert PATIENCE <= answers["after"] < PATIENCE + 3
    assert slowest < 1.5  # one turn of a lock's timeout, on a busy machine


@SITTERS
def test_a_stuck_name_goes_on_when_the_sitter_leaves(engine, sitter, sit):
    engine.apply(acquire(engine, "stuck"))
    sit(sitter, engine.namespace, "stuck")
    threading.Timer(0.7, lambda: sitter.execute("ROLLBACK")).start()
    assert isinstance(engine.apply(acquire(engine, "stuck")), Granted)


def test_who_is_put_off_beside_a_stuck_name_is_answered(engine, sitter):
    """One name of a group is waited for elsewhere already; the row of another is being made by a neighbour."""
    engine.apply(acquire(engine, "stuck"))
    sit_by_insert(sitter, engine.namespace, "new")
    sit_by_lock(sitter, engine.namespace, "stuck")
    answers = {}
    items = [Item(acquire(engine, name), i, answers.update) for i, name in enumerate(("stuck", "new"))]
    items[0].skips = SKIPS
    engine._group.put_items(items)
    assert eventually(lambda: items[1].skips >= SKIPS)
    sitter.execute("ROLLBACK")
    assert eventually(lambda: len(answers) == 2)
    assert all(isinstance(answer, Granted) for answer in answers.values())


def test_the_server_ends_one_of_us_who_stands_still(engine, backstay_postgres):
    engine.apply(acquire(engine, "stuck"))
    frozen = engine.connect()
    frozen.execute("BEGIN")
    sit_by_lock(frozen, engine.namespace, "stuck")
    started = steady()
    assert isinstance(engine.apply(acquire(engine, "stuck")), Granted)
    assert 1 < steady() - started < PATIENCE
    with pytest.raises(psycopg.Error):
        frozen.execute("COMMIT")
    frozen.close()


def test_two_that_want_the_same_names_in_opposite_order_both_get_through(engine, backstay_postgres, namespace):
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


def test_a_deadlock_over_tags_is_tried_again(engine, sitter):
    """The other side of the deadlock is a stranger, so no order of ours can prevent it."""
    sitter.execute("SET deadlock_timeout = '20s'")  # the engine's side finds out first
    engine.apply_many([Tag(GATE, tag, "n", MINUTE) for tag in ("a", "b")])
    lock = "SELECT FROM backstay_tag WHERE space = %s AND tag = %s FOR UPDATE"
    sitter.execute(lock, (engine.namespace, b"b"))
    (lane, _) = engine._lanes
    lane._wire.session.execute("SET lock_timeout = 0")
    lane._wire.session.execute("SET deadlock_timeout = '50ms'")
    answers = []
    thread = threading.Thread(
        target=lambda: answers.extend(engine.apply_many([Tag(GATE, t, "n", MINUTE) for t in "ab"]))
    )
    thread.start()
    try:
        sitter.execute(lock, (engine.namespace, b"a"))
    finally:
        sitter.execute("ROLLBACK")
    thread.join()
    assert answers == [None, None]


def test_hot_names_of_many_engines_all_get_their_turn(backstay_postgres, namespace):
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
        assert engine.apply(Tagged(GATE, name)) == [name]
        assert engine.apply(Scan(GATE, name)) == [name]
        engine.apply(Untag(GATE, name, (name,)))
        assert engine.apply(Tagged(GATE, name)) == []
    assert engine.apply(Scan(GATE)) == sorted(NAMES, key=str.encode)


def test_a_scan_ends_where_its_prefix_does(engine):
    for name in ("a", "ab", "ab\U0010ffff", "ac", "b"):
        engine.apply(acquire(engine, name))
    assert engine.apply(Scan(GATE, "ab")) == ["ab", "ab\U0010ffff"]


def test_a_huge_record_is_kept_and_read(engine):
    crowd = [
        Apply(GATE, "crowd", Acquire(engine.now() + MINUTE, f"t{i}", "l" * 9000, True, 1, MINUTE, "i", 9999, Who()))
        for i in range(200)
    ]
    assert not [answer for answer in engine.apply_many(crowd) if isinstance(answer, BaseException)]
    assert engine.apply(release(engine, "crowd", "t0"))


def test_a_bad_record_is_its_own_names_trouble_only(engine, admin, backstay_postgres):
    engine.apply(acquire(engine, "bad"))
    with psycopg.connect(backstay_postgres.url, autocommit=True) as db:
        db.execute("UPDATE backstay_state SET doc = 'x' WHERE space = %s", (engine.namespace,))
    bad, good = engine.apply_many([acquire(engine, "bad"), acquire(engine, "good")])
    assert isinstance(bad, CorruptRecord)
    assert isinstance(good, Granted)
    assert eventually(lambda: engine.apply(Ping()))


def test_a_row_that_a_neighbour_removed_is_made_anew(engine, backstay_postgres):
    first = engine.apply(acquire(engine, "x"))
    engine.apply(release(engine, "x"))
    with psycopg.connect(backstay_postgres.url, autocommit=True) as neighbour:
        neighbour.execute("DELETE FROM backstay_state WHERE space = %s", (engine.namespace,))
    again = engine.apply(acquire(engine, "x", "u"))
    assert isinstance(again, Granted)
    assert again.fence > first.fence


def test_a_row_that_never_comes_is_given_up_and_other_names_are_not_delayed(engine, backstay_postgres):
    """A trigger or a policy of somebody else's may swallow the row: that name is refused in time, not waited for."""
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
            assert "'gone' could not be had" in str(gone)
            assert PATIENCE / 2 < steady() - started < PATIENCE * 3
            assert isinstance(engine.apply(acquire(engine, "there")), Granted)
        finally:
            db.execute(f"DROP FUNCTION {trigger} CASCADE")
