"""What a caller is told when a server, a connection or a reply is lost: unavailable, or unknown, never a guess."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from psycopg import errors as pg

import backstay
from backstay import EngineError, EngineRefused, EngineUnavailable, OutcomeUnknown, sync
from backstay.engine.base import Apply, Ping, Publish, Read, TakeHint, steady
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.batches import batch
from backstay.engine.postgres.connection.session import translate
from backstay.engine.postgres.connection.wire import COMMIT, Wire
from backstay.engine.postgres.engine import PostgresEngine
from backstay.gate.machine import GATE, Acquire, Granted, Who
from backstay.testing.proxy import FaultProxy
from backstay.testing.waiting import WITHIN, eventually

pytestmark = [pytest.mark.postgres, pytest.mark.chaos]

MINUTE = 60_000_000


@pytest.fixture
def proxy(backstay_postgres):
    with FaultProxy(backstay_postgres.port) as proxy:
        yield proxy


@pytest.fixture
def engine(backstay_postgres, proxy, namespace):
    engine = PostgresEngine(parse(proxy.instead_of(backstay_postgres.url) + "?timeout=1"), namespace=namespace)
    engine.apply(Ping())
    yield engine
    proxy.heal()
    engine.close_blocking()


@pytest.fixture
def truth(backstay_postgres, namespace):
    engine = PostgresEngine(parse(backstay_postgres.url), namespace=namespace)
    engine.apply(Ping())  # it knows the server's time from now on
    yield engine
    engine.close_blocking()


def acquire(engine, name="x", ticket="t"):
    return Apply(GATE, name, Acquire(engine.now() + MINUTE, ticket, ticket, True, 1, MINUTE, "i", 9, Who()))


def held(engine, name="x"):
    state = engine.apply(Read(GATE, name)).state
    return state is not None and bool(state.holders)


@pytest.mark.parametrize("action", ["drop", "cut-after"])
def test_a_lost_reply_to_a_commit_is_unknown_and_it_happened(engine, proxy, truth, action):
    proxy.once(action, b"COMMIT")
    (answer,) = engine.apply_many([acquire(engine)])
    assert isinstance(answer, OutcomeUnknown)
    assert held(truth)
    assert isinstance(engine.apply(acquire(engine)), Granted)


@pytest.mark.parametrize("action", ["cut-before", "blackhole"])
def test_a_commit_that_never_arrives_is_unknown_and_nothing_happened(engine, proxy, truth, action):
    proxy.once(action, b"COMMIT")
    (answer,) = engine.apply_many([acquire(engine)])
    assert isinstance(answer, OutcomeUnknown)
    assert not held(truth)
    assert isinstance(engine.apply(acquire(engine)), Granted)


@pytest.mark.parametrize("action", ["drop", "blackhole"])
def test_silence_before_the_commit_is_unavailable(engine, proxy, truth, action):
    proxy.once(action, b"BEGIN")
    started = steady()
    (answer,) = engine.apply_many([acquire(engine)])
    assert isinstance(answer, EngineUnavailable)
    assert 0.9 < steady() - started < 4
    assert not held(truth)


@pytest.mark.parametrize("action", ["cut-before", "cut-after"])
def test_a_connection_that_breaks_before_the_commit_is_replaced_unnoticed(engine, proxy, action):
    proxy.once(action, b"BEGIN")
    assert isinstance(engine.apply(acquire(engine)), Granted)


@pytest.mark.parametrize("action", ["drop", "blackhole"])
@pytest.mark.parametrize(
    "word",
    [b"\x04\xd2\x16\x2f", b"application_name", b"to_regclass", b"FROM backstay_meta"],
    ids=["the wish for TLS", "the sign-in", "the look for the schema", "the look at its version"],
)
def test_silence_at_any_word_of_a_new_connection_is_given_up_in_time(engine, proxy, truth, action, word):
    rule = proxy.once(action, word)
    proxy.cut_all()
    started = steady()
    (answer,) = engine.apply_many([acquire(engine)], timeout=30)
    assert isinstance(answer, EngineUnavailable), answer
    assert steady() - started < 10  # a connection has two seconds at least, and a busy machine takes some
    assert rule.struck.is_set()
    assert not held(truth)
    assert isinstance(engine.apply(acquire(engine)), Granted)


def test_nobody_else_gets_a_name_while_a_commit_for_it_is_on_its_way(engine, proxy, truth):
    proxy.once("hold", b"COMMIT")
    (answer,) = engine.apply_many([acquire(engine, ticket="zombie")])
    assert isinstance(answer, OutcomeUnknown)
    (answer,) = truth.apply_many([acquire(truth, ticket="fresh")])
    # Refused while the other session has the name; granted once the server has ended that session, and its commit.
    assert isinstance(answer, (EngineUnavailable, Granted))
    proxy.cut_all()  # what was held is lost, and the server knows that nobody is there
    assert isinstance(truth.apply(acquire(truth, ticket="fresh")), Granted)
    assert [holder.ticket for holder in truth.apply(Read(GATE, "x")).state.holders] == ["fresh"]


def test_a_commit_that_comes_late_acts_once(engine, proxy, truth):
    proxy.once("hold", b"COMMIT")
    (answer,) = engine.apply_many([acquire(engine, ticket="late")])
    assert isinstance(answer, OutcomeUnknown)
    proxy.deliver_held(timeout=1)
    again = engine.apply(acquire(engine, ticket="late"))
    (holder,) = truth.apply(Read(GATE, "x")).state.holders
    assert (holder.ticket, holder.fence) == ("late", again.fence)


def test_a_commit_that_the_server_turns_into_a_rollback_did_not_happen(engine, monkeypatch):
    """Nobody here leaves a failed statement unnoticed; if one did, its COMMIT would be answered without an error."""
    commit = batch.Batch._commit

    def fail_first(self):
        _, failed = self._wire.send([(b"SELECT 1/0", {})])
        assert isinstance(failed, pg.DivisionByZero)
        return commit(self)

    monkeypatch.setattr(batch.Batch, "_commit", fail_first)
    (answer,) = engine.apply_many([Ping()])  # writes nothing, so nothing but the COMMIT follows
    assert isinstance(answer, EngineUnavailable)
    assert "rolled" in str(answer)


def test_time_that_runs_out_before_the_commit_is_sent_is_unavailable(engine, truth, monkeypatch):
    commit = batch.Batch._commit

    def late(self):
        self._wire.session.until = steady() - 1
        return commit(self)

    monkeypatch.setattr(batch.Batch, "_commit", late)
    (answer,) = engine.apply_many([acquire(engine)])
    monkeypatch.undo()
    assert isinstance(answer, EngineUnavailable)
    assert not held(truth)


def test_a_transaction_that_stood_still_too_long_is_ended_and_did_nothing(engine, admin, truth, monkeypatch):
    """It ended the session for standing still in a transaction, so nothing can have been committed."""
    commit = batch.Batch._commit
    slow = threading.Event()

    def late(self):
        self._wire.session.until = steady() + 5
        if not slow.is_set():
            slow.set()
            pid = self._wire.session.info.backend_pid
            gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
            assert eventually(lambda: admin.execute(gone, (pid,)).fetchone()[0])
        return commit(self)

    monkeypatch.setattr(batch.Batch, "_commit", late)
    (answer,) = engine.apply_many([acquire(engine)])
    assert isinstance(answer, EngineError)
    assert not held(truth)
    assert isinstance(engine.apply(acquire(engine)), Granted)


def test_a_process_that_stops_between_its_writes_and_its_commit_is_ended_by_the_server(
    engine, admin, truth, monkeypatch
):
    """Half of a pipeline would keep the server waiting for ever, with the name locked."""
    queue = Wire._queue

    def stop(self, statement):
        if statement == COMMIT:
            monkeypatch.setattr(Wire, "_queue", queue)
            self.session.until = steady() + 10
            gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
            assert eventually(lambda: admin.execute(gone, (self.session.info.backend_pid,)).fetchone()[0], within=5)
        return queue(self, statement)

    monkeypatch.setattr(Wire, "_queue", stop)
    (answer,) = engine.apply_many([acquire(engine)])
    assert isinstance(answer, EngineError)
    assert Wire._queue is queue, "it did stop there"
    assert not held(truth)
    assert isinstance(engine.apply(acquire(engine)), Granted)


class Said(pg.OperationalError):
    """What a server might say, with as much of it as decides."""

    def __init__(self, state, severity):
        super().__init__("the server's words")
        self.sqlstate = state
        self._severity = severity

    @property
    def diag(self):
        return type("Diag", (), {"severity_nonlocalized": self._severity})


@pytest.mark.parametrize(
    ("error", "before", "at_commit"),
    [
        (Said("57P01", "FATAL"), EngineUnavailable, OutcomeUnknown),
        (Said("57P02", "FATAL"), EngineUnavailable, OutcomeUnknown),
        (Said("XX000", "PANIC"), EngineUnavailable, OutcomeUnknown),
        (Said("53100", "ERROR"), EngineUnavailable, EngineUnavailable),
        (Said("40001", "ERROR"), EngineUnavailable, EngineUnavailable),
        (pg.IdleInTransactionSessionTimeout("ended before the commit came"), EngineUnavailable, EngineUnavailable),
        (pg.OperationalError("gone"), EngineUnavailable, OutcomeUnknown),
        (pg.InterfaceError("closed"), EngineUnavailable, OutcomeUnknown),
        (pg.OperationalError('role "x" does not exist'), EngineRefused, OutcomeUnknown),
    ],
    ids=str,
)
def test_only_what_the_server_surely_undid_is_not_unknown_at_the_commit(error, before, at_commit):
    address = parse("postgresql://host/db")
    assert type(translate(error, address)) is before
    assert type(translate(error, address, sent=True)) is at_commit


def test_a_statement_that_fails_leaves_the_connection_in_use(engine, truth):
    lane = engine._lanes[0]
    pid = lane._wire.session.info.backend_pid
    broken = batch.WRITE
    try:
        batch.WRITE = (
            b"SELECT 1/0 WHERE %b::text[] IS NOT NULL OR %b::bytea[] IS NULL OR %b::bytea[] IS NULL"
            b" OR %b::bigint[] IS NULL OR %s::text IS NULL"
        )
        (answer,) = engine.apply_many([acquire(engine)])
        assert isinstance(answer, EngineError)
    finally:
        batch.WRITE = broken
    assert not held(truth)
    assert isinstance(engine.apply(acquire(engine)), Granted)
    assert lane._wire.session.info.backend_pid == pid


def ours(admin):
    return [pid for (pid,) in admin.execute("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'backstay%'")]


def test_backends_ended_in_the_middle_of_load_cost_nobody_a_lock_or_its_exclusion(backstay_postgres, namespace, admin):
    wrong, inside, done = [], [], threading.Event()

    def work():
        with sync.Backstay(backstay_postgres.url, namespace=namespace) as stay:
            while not done.is_set():
                try:
                    with stay.lock("x", ttl=30, wait=WITHIN):
                        inside.append(1)
                        if len(inside) > 1:
                            wrong.append("two inside")
                        inside.pop()
                        counted.append(1)
                except (OutcomeUnknown, EngineUnavailable):
                    pass  # more ends than the policy has retries
                except Exception as error:
                    wrong.append(error)
                    raise

    counted = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        goal = len(counted) + 20
        assert eventually(lambda goal=goal: len(counted) >= goal, within=30)
        for pid in ours(admin):
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_one_failing_server_word_does_not_leak_connections(engine, admin):
    for _ in range(5):
        admin.execute("SELECT pg_terminate_backend(%s)", (engine._lanes[0]._wire.session.info.backend_pid,))
        engine.apply(Ping())
    assert isinstance(engine.apply(acquire(engine)), Granted)


def test_many_backstays_leave_no_file_behind(backstay_postgres, namespace):
    def files():
        return len(list(Path("/proc/self/fd").iterdir()))

    def use():
        with sync.Backstay(backstay_postgres.url, namespace=namespace) as stay, stay.hub.listen("c"):
            stay.hub.publish("c", "x")

    use()
    before = files()
    for _ in range(5):
        use()
    assert files() <= before


def test_a_closed_engine_says_so(backstay_postgres):
    engine = PostgresEngine(parse(backstay_postgres.url))
    engine.apply(Ping())
    engine.close_blocking()
    engine.close_blocking()
    with pytest.raises(backstay.Closed):
        engine.apply(Ping())


@pytest.fixture
def mute(database):
    """An engine of a user who may do everything but tell."""
    engine = PostgresEngine(parse(database.url))
    engine.apply(Ping())
    lane = engine._lanes[0]
    lane._wire.session.execute("CREATE SCHEMA mute")
    lane._wire.session.execute(
        "CREATE FUNCTION mute.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE insufficient_privilege; END $$"
    )
    lane._wire.session.execute("SET search_path = mute, pg_catalog, public")
    yield engine
    engine.close_blocking()


def test_what_is_committed_stands_although_the_message_behind_it_is_refused(mute):
    told, granted = mute.apply_many([Publish("news", "x"), acquire(mute, "y")])
    assert isinstance(told, EngineRefused)
    assert isinstance(granted, Granted)
    assert held(mute, "y")


def test_a_table_that_is_refused_is_the_trouble_of_those_who_need_it(mute):
    mute._lanes[0]._wire.session.execute("DROP TABLE backstay_hint_counter")
    taken, granted = mute.apply_many([TakeHint("hint", 1, MINUTE), acquire(mute, "y")])
    assert isinstance(taken, EngineRefused)
    assert isinstance(granted, Granted)
    assert held(mute, "y")
