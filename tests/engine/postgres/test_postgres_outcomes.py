"""Errors for a lost server, connection or reply: EngineUnavailable or OutcomeUnknown, never a wrong claim."""

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
from backstay.engine.postgres.connection.wire import COMMIT, Pipeline
from backstay.engine.postgres.engine import PostgresEngine
from backstay.gate.commands import Acquire, CallerIdentity, Granted
from backstay.gate.machine import GATE
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
def direct_engine(backstay_postgres, namespace):
    engine = PostgresEngine(parse(backstay_postgres.url), namespace=namespace)
    engine.apply(Ping())  # fetches the server's time
    yield engine
    engine.close_blocking()


def acquire(engine, name="x", ticket="t"):
    return Apply(GATE, name, Acquire(engine.now() + MINUTE, ticket, ticket, True, 1, MINUTE, "i", 9, CallerIdentity()))


def held(engine, name="x"):
    state = engine.apply(Read(GATE, name)).state
    return state is not None and bool(state.holders)


@pytest.mark.parametrize("action", ["drop", "cut-after"])
def test_a_lost_reply_to_a_commit_is_outcome_unknown_and_the_commit_took_effect(engine, proxy, direct_engine, action):
    proxy.once(action, b"COMMIT")
    (reply,) = engine.apply_many([acquire(engine)])
    assert isinstance(reply, OutcomeUnknown)
    assert held(direct_engine)
    assert isinstance(engine.apply(acquire(engine)), Granted)


@pytest.mark.parametrize("action", ["cut-before", "blackhole"])
def test_a_commit_that_never_arrives_is_outcome_unknown_and_changes_nothing(engine, proxy, direct_engine, action):
    proxy.once(action, b"COMMIT")
    (reply,) = engine.apply_many([acquire(engine)])
    assert isinstance(reply, OutcomeUnknown)
    assert not held(direct_engine)
    assert isinstance(engine.apply(acquire(engine)), Granted)


@pytest.mark.parametrize("action", ["drop", "blackhole"])
def test_a_timeout_before_the_commit_is_engine_unavailable(engine, proxy, direct_engine, action):
    proxy.once(action, b"BEGIN")
    started = steady()
    (reply,) = engine.apply_many([acquire(engine)])
    assert isinstance(reply, EngineUnavailable)
    assert 0.9 < steady() - started < 4
    assert not held(direct_engine)


@pytest.mark.parametrize("action", ["cut-before", "cut-after"])
def test_a_connection_that_breaks_before_the_commit_is_replaced_without_an_error(engine, proxy, action):
    proxy.once(action, b"BEGIN")
    assert isinstance(engine.apply(acquire(engine)), Granted)


@pytest.mark.parametrize("action", ["drop", "blackhole"])
@pytest.mark.parametrize(
    "word",
    [b"\x04\xd2\x16\x2f", b"application_name", b"to_regclass", b"FROM backstay_meta"],
    ids=["TLS request", "sign-in", "schema lookup", "schema version"],
)
def test_silence_at_any_step_of_opening_a_connection_times_out(engine, proxy, direct_engine, action, word):
    rule = proxy.once(action, word)
    proxy.cut_all()
    started = steady()
    (reply,) = engine.apply_many([acquire(engine)], timeout=30)
    assert isinstance(reply, EngineUnavailable), reply
    assert steady() - started < 10  # the connect timeout is at least two seconds, and the host may be busy
    assert rule.applied.is_set()
    assert not held(direct_engine)
    assert isinstance(engine.apply(acquire(engine)), Granted)


def test_a_delayed_commit_and_another_ticket_never_both_hold_a_name(engine, proxy, direct_engine):
    proxy.once("hold", b"COMMIT")
    (reply,) = engine.apply_many([acquire(engine, ticket="zombie")])
    assert isinstance(reply, OutcomeUnknown)
    (reply,) = direct_engine.apply_many([acquire(direct_engine, ticket="fresh")])
    # Unavailable while the other session has locked the row; granted once the server has ended that session.
    assert isinstance(reply, (EngineUnavailable, Granted))
    proxy.cut_all()  # the held COMMIT is lost, and the server sees the disconnect
    assert isinstance(direct_engine.apply(acquire(direct_engine, ticket="fresh")), Granted)
    assert [holder.ticket for holder in direct_engine.apply(Read(GATE, "x")).state.holders] == ["fresh"]


def test_a_delayed_commit_takes_effect_once(engine, proxy, direct_engine):
    proxy.once("hold", b"COMMIT")
    (reply,) = engine.apply_many([acquire(engine, ticket="late")])
    assert isinstance(reply, OutcomeUnknown)
    proxy.deliver_held(timeout=1)
    again = engine.apply(acquire(engine, ticket="late"))
    (holder,) = direct_engine.apply(Read(GATE, "x")).state.holders
    assert (holder.ticket, holder.fence) == ("late", again.fence)


def test_a_commit_that_the_server_turns_into_a_rollback_is_engine_unavailable(engine, monkeypatch):
    """PostgreSQL answers COMMIT after an unnoticed failed statement without an error, by a rollback."""
    commit = batch.Batch._commit

    def fail_first(self):
        _, failed = self._pipeline.send([(b"SELECT 1/0", {})])
        assert isinstance(failed, pg.DivisionByZero)
        return commit(self)

    monkeypatch.setattr(batch.Batch, "_commit", fail_first)
    (reply,) = engine.apply_many([Ping()])  # writes nothing, so only the COMMIT follows
    assert isinstance(reply, EngineUnavailable)
    assert "rolled" in str(reply)


def test_a_deadline_before_the_commit_is_sent_is_engine_unavailable(engine, direct_engine, monkeypatch):
    commit = batch.Batch._commit

    def late(self):
        self._pipeline.session.until = steady() - 1
        return commit(self)

    monkeypatch.setattr(batch.Batch, "_commit", late)
    (reply,) = engine.apply_many([acquire(engine)])
    monkeypatch.undo()
    assert isinstance(reply, EngineUnavailable)
    assert not held(direct_engine)


def test_a_transaction_that_was_idle_too_long_is_ended_and_changes_nothing(engine, admin, direct_engine, monkeypatch):
    """The server ended the session for its idle transaction, so nothing was committed."""
    commit = batch.Batch._commit
    slow = threading.Event()

    def late(self):
        self._pipeline.session.until = steady() + 5
        if not slow.is_set():
            slow.set()
            pid = self._pipeline.session.info.backend_pid
            gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
            assert eventually(lambda: admin.execute(gone, (pid,)).fetchone()[0])
        return commit(self)

    monkeypatch.setattr(batch.Batch, "_commit", late)
    (reply,) = engine.apply_many([acquire(engine)])
    assert isinstance(reply, EngineError)
    assert not held(direct_engine)
    assert isinstance(engine.apply(acquire(engine)), Granted)


def test_a_process_that_stops_between_its_writes_and_its_commit_is_ended_by_the_server(
    engine, admin, direct_engine, monkeypatch
):
    """Without the idle timeout, half of a pipeline would keep the row locked forever."""
    queue = Pipeline._queue

    def stop(self, statement):
        if statement == COMMIT:
            monkeypatch.setattr(Pipeline, "_queue", queue)
            self.session.until = steady() + 10
            gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
            assert eventually(lambda: admin.execute(gone, (self.session.info.backend_pid,)).fetchone()[0], within=5)
        return queue(self, statement)

    monkeypatch.setattr(Pipeline, "_queue", stop)
    (reply,) = engine.apply_many([acquire(engine)])
    assert isinstance(reply, EngineError)
    assert Pipeline._queue is queue, "it did stop there"
    assert not held(direct_engine)
    assert isinstance(engine.apply(acquire(engine)), Granted)


class ServerError(pg.OperationalError):
    """A server error with the fields that decide its translation."""

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
        (ServerError("57P01", "FATAL"), EngineUnavailable, OutcomeUnknown),
        (ServerError("57P02", "FATAL"), EngineUnavailable, OutcomeUnknown),
        (ServerError("XX000", "PANIC"), EngineUnavailable, OutcomeUnknown),
        (ServerError("53100", "ERROR"), EngineUnavailable, EngineUnavailable),
        (ServerError("40001", "ERROR"), EngineUnavailable, EngineUnavailable),
        # Out of memory, too many connections, a full disk at the commit, a read-only server: outages that pass.
        (ServerError("53200", "ERROR"), EngineUnavailable, EngineUnavailable),
        (ServerError("53300", "FATAL"), EngineUnavailable, OutcomeUnknown),
        (pg.OperationalError("FATAL:  sorry, too many clients already"), EngineUnavailable, OutcomeUnknown),
        (pg.DiskFull("No space left on device"), EngineUnavailable, OutcomeUnknown),
        (pg.ReadOnlySqlTransaction("cannot execute UPDATE"), EngineUnavailable, OutcomeUnknown),
        (pg.IdleInTransactionSessionTimeout("ended before the commit came"), EngineUnavailable, EngineUnavailable),
        (pg.OperationalError("gone"), EngineUnavailable, OutcomeUnknown),
        (pg.InterfaceError("closed"), EngineUnavailable, OutcomeUnknown),
        (pg.OperationalError('role "x" does not exist'), EngineRefused, OutcomeUnknown),
    ],
    ids=str,
)
def test_an_error_at_the_commit_is_outcome_unknown_unless_the_server_rolled_back(error, before, at_commit):
    address = parse("postgresql://host/db")
    assert type(translate(error, address)) is before
    assert type(translate(error, address, sent=True)) is at_commit


def test_a_failed_statement_keeps_the_connection_open(engine, direct_engine):
    connection = engine._connections[0]
    pid = connection._pipeline.session.info.backend_pid
    broken = batch.WRITE
    try:
        batch.WRITE = (
            b"SELECT 1/0 WHERE %b::text[] IS NOT NULL OR %b::bytea[] IS NULL OR %b::bytea[] IS NULL"
            b" OR %b::bigint[] IS NULL OR %s::text IS NULL"
        )
        (reply,) = engine.apply_many([acquire(engine)])
        assert isinstance(reply, EngineError)
    finally:
        batch.WRITE = broken
    assert not held(direct_engine)
    assert isinstance(engine.apply(acquire(engine)), Granted)
    assert connection._pipeline.session.info.backend_pid == pid


def backend_pids(admin):
    return [pid for (pid,) in admin.execute("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'backstay%'")]


def test_terminated_backends_under_load_break_no_mutual_exclusion(backstay_postgres, namespace, admin):
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
                    pass  # more terminations than the policy has retries
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
        for pid in backend_pids(admin):
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_engine_works_after_repeated_backend_terminations(engine, admin):
    for _ in range(5):
        admin.execute("SELECT pg_terminate_backend(%s)", (engine._connections[0]._pipeline.session.info.backend_pid,))
        engine.apply(Ping())
    assert isinstance(engine.apply(acquire(engine)), Granted)


def test_closed_backstays_leave_no_file_descriptor_open(backstay_postgres, namespace):
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


def test_a_call_on_a_closed_engine_raises_closed(backstay_postgres):
    engine = PostgresEngine(parse(backstay_postgres.url))
    engine.apply(Ping())
    engine.close_blocking()
    engine.close_blocking()
    with pytest.raises(backstay.Closed):
        engine.apply(Ping())


@pytest.fixture
def engine_without_notify(database):
    """An engine whose user may not call pg_notify."""
    engine = PostgresEngine(parse(database.url))
    engine.apply(Ping())
    connection = engine._connections[0]
    connection._pipeline.session.execute("CREATE SCHEMA no_notify")
    connection._pipeline.session.execute(
        "CREATE FUNCTION no_notify.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE insufficient_privilege; END $$"
    )
    connection._pipeline.session.execute("SET search_path = no_notify, pg_catalog, public")
    yield engine
    engine.close_blocking()


def test_a_refused_message_does_not_undo_the_commit_before_it(engine_without_notify):
    published, granted = engine_without_notify.apply_many([Publish("news", "x"), acquire(engine_without_notify, "y")])
    assert isinstance(published, EngineRefused)
    assert isinstance(granted, Granted)
    assert held(engine_without_notify, "y")


def test_a_missing_table_fails_only_the_operations_that_use_it(engine_without_notify):
    engine_without_notify._connections[0]._pipeline.session.execute("DROP TABLE backstay_hint_counter")
    taken, granted = engine_without_notify.apply_many(
        [TakeHint("hint", 1, MINUTE), acquire(engine_without_notify, "y")]
    )
    assert isinstance(taken, EngineRefused)
    assert isinstance(granted, Granted)
    assert held(engine_without_notify, "y")
