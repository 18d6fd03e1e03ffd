"""Idempotency in the caller's transaction: the effect and the record are committed together or not at all."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from killed_transaction import KEY, charge
from psycopg.rows import dict_row, scalar_row
from sqlalchemy.orm import Session

import backstay
import backstay.sync
from backstay import ConfigError, FingerprintMismatch, InProgress
from backstay.testing.waiting import eventually

KILLED = Path(__file__).with_name("killed_transaction.py")
TABLES = ("charge", "backstay_idempotency")
PRODUCTS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture
def stay():
    with backstay.sync.Backstay("memory://") as stay:
        yield stay


class Store:
    """A database of one test, with a table for effects."""

    def __init__(self, product, address):
        self.product = product
        self.address = address
        self.prepare("CREATE TABLE charge (amount INTEGER)")

    def connect(self, **options):
        if self.product == "sqlite":
            return sqlite3.connect(self.address, **options)
        return psycopg.connect(self.address, **options)

    def prepare(self, statement):
        db = self.connect()
        db.execute(statement)
        db.commit()
        db.close()

    def create(self, stay):
        self.prepare(stay.idempotency.schema("sqlite" if self.product == "sqlite" else "postgresql"))

    def count(self):
        """Return the committed effects and records."""
        db = self.connect()
        found = [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES]  # noqa: S608 - our own
        db.close()
        return tuple(found)

    def engine(self, **options):
        if self.product == "sqlite":
            return sqlalchemy.create_engine(f"sqlite:///{self.address}", **options)
        return sqlalchemy.create_engine(self.address.replace("postgresql://", "postgresql+psycopg://"), **options)


@pytest.fixture(params=PRODUCTS)
def store(request, tmp_path, stay):
    if request.param == "sqlite":
        made = Store("sqlite", tmp_path / "shop.db")
        made.create(stay)
        yield made
        return
    server = request.getfixturevalue("backstay_postgres")
    name = f"shop_{tmp_path.name[-24:]}".replace("-", "_").lower()
    with psycopg.connect(server.admin_url, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name}")
        admin.execute(f"CREATE DATABASE {name}")
        made = Store("postgres", f"postgresql://backstay@127.0.0.1:{server.port}/{name}")
        made.create(stay)
        yield made
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def write_and_fail(db, fail):
    """Write an effect, then call `fail`."""
    db.execute("INSERT INTO charge VALUES (5)")
    fail()


def test_effect_and_record_are_committed_together(stay, store):
    db = store.connect()
    assert charge(stay, db) == {"charged": 5}
    assert store.count() == (1, 1)
    assert charge(stay, db) == {"charged": 5}
    assert store.count() == (1, 1)
    db.close()


def test_effect_and_record_are_rolled_back_together(stay, store):
    db = store.connect()
    with stay.idempotency.transaction(db, KEY) as entry:
        db.execute("INSERT INTO charge VALUES (5)")
        entry.result = "charged"
    db.rollback()
    assert store.count() == (0, 0)
    with stay.idempotency.transaction(db, KEY) as entry:
        assert not entry.replayed
    db.rollback()
    db.close()


def test_a_failed_body_leaves_nothing_even_if_its_exception_is_caught(stay, store):
    db = store.connect()
    db.execute("INSERT INTO charge VALUES (1)")  # the caller's own statement before the block
    with pytest.raises(ZeroDivisionError), stay.idempotency.transaction(db, KEY):
        write_and_fail(db, lambda: 1 / 0)
    db.commit()
    assert store.count() == (1, 0)
    db.close()


def test_a_statement_that_fails_inside_leaves_the_transaction_usable(stay, store):
    db = store.connect()
    with pytest.raises((psycopg.Error, sqlite3.Error)), stay.idempotency.transaction(db, KEY):
        write_and_fail(db, lambda: db.execute("INSERT INTO nowhere VALUES (5)"))
    assert charge(stay, db) == {"charged": 5}
    assert store.count() == (1, 1)
    db.close()


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_a_sqlalchemy_transaction_is_accepted(stay, store, kind):
    engine = store.engine()

    def attempt(*, commit):
        with engine.connect() if kind == "connection" else Session(engine) as db:
            with stay.idempotency.transaction(db, KEY, fingerprint=7) as entry:
                if not entry.replayed:
                    db.execute(sqlalchemy.text("INSERT INTO charge VALUES (5)"))
                    entry.result = "charged"
            if commit:
                db.commit()
            return entry.replayed, entry.result

    assert attempt(commit=False) == (False, "charged")
    assert store.count() == (0, 0)
    assert attempt(commit=True) == (False, "charged")
    assert attempt(commit=True) == (True, "charged")
    assert store.count() == (1, 1)
    engine.dispose()


@pytest.mark.postgres
def test_an_async_connection_with_dict_rows_is_accepted(backstay_postgres):
    async def scenario():
        async with (
            backstay.Backstay("memory://") as stay,
            await psycopg.AsyncConnection.connect(backstay_postgres.url, row_factory=dict_row) as db,
        ):
            await db.execute("CREATE TEMP TABLE charge (amount integer)")
            await db.execute(stay.idempotency.schema("postgresql").replace("TABLE IF NOT EXISTS", "TEMP TABLE"))
            await db.commit()
            for again in (False, True):
                async with db.transaction(), stay.idempotency.transaction(db, KEY) as entry:
                    assert entry.replayed is again
                    if not again:
                        await db.execute("INSERT INTO charge VALUES (5)")
                        entry.result = [1, b"x"]
                    assert entry.result == [1, b"x"]
            found = await (await db.execute("SELECT count(*) AS n FROM charge")).fetchone()
            assert found == {"n": 1}

    asyncio.run(scenario())


def test_a_second_transaction_waits_for_the_first_and_replays(stay, store):
    first, outcomes = store.connect(), []

    def second():
        db = store.connect()
        outcomes.append(charge(stay, db))
        db.close()

    with stay.idempotency.transaction(first, KEY, fingerprint={"amount": 5}) as entry:
        first.execute("INSERT INTO charge VALUES (5)")
        thread = threading.Thread(target=second)
        thread.start()
        entry.result = {"charged": 5}
    thread.join(0.3)
    assert thread.is_alive()
    assert not outcomes
    first.commit()
    thread.join()
    assert outcomes == [{"charged": 5}]
    assert store.count() == (1, 1)
    first.close()


def test_a_second_transaction_runs_when_the_first_is_rolled_back(stay, store):
    first = store.connect()

    def second():
        db = store.connect()
        charge(stay, db)
        db.close()

    with stay.idempotency.transaction(first, KEY, fingerprint={"amount": 5}) as entry:
        entry.result = "never"
    thread = threading.Thread(target=second)
    thread.start()
    first.rollback()
    thread.join()
    assert store.count() == (1, 1)
    first.close()


def test_an_outcome_past_its_ttl_runs_again(stay, store):
    db = store.connect()

    def attempt():
        with stay.idempotency.transaction(db, KEY, ttl=0.2) as entry:
            entry.replayed or setattr(entry, "result", "x")
        db.commit()
        return entry.replayed

    assert not attempt()
    assert attempt()
    assert eventually(lambda: not attempt())
    db.close()


def test_another_fingerprint_and_a_nested_use_of_the_key_are_refused(stay, store):
    db = store.connect()
    with stay.idempotency.transaction(db, KEY, fingerprint=1) as entry:
        with pytest.raises(InProgress, match="this very transaction"), stay.idempotency.transaction(db, KEY):
            pytest.fail("not reached")
        entry.result = "x"
    db.commit()
    with pytest.raises(FingerprintMismatch), stay.idempotency.transaction(db, KEY, fingerprint=2):
        pytest.fail("not reached")
    db.execute("INSERT INTO charge VALUES (1)")  # the caller's transaction is still usable
    db.commit()
    assert store.count() == (1, 1)
    db.close()


def test_an_outcome_that_cannot_be_stored_is_refused_and_rolled_back(stay, store):
    db = store.connect()
    with pytest.raises(ConfigError, match="plain data"), stay.idempotency.transaction(db, KEY) as entry:
        write_and_fail(db, lambda: setattr(entry, "result", object()))
    db.commit()
    assert store.count() == (0, 0)
    db.close()


def test_setting_a_result_on_a_replay_is_refused(stay, store):
    db = store.connect()
    charge(stay, db)
    with (
        pytest.raises(ConfigError, match="ran before"),
        stay.idempotency.transaction(db, KEY) as entry,
    ):
        entry.result = "again"
    db.rollback()
    db.close()


def test_an_autocommit_connection_is_refused(stay, store):
    db = store.connect(**({"isolation_level": None} if store.product == "sqlite" else {"autocommit": True}))
    with pytest.raises(ConfigError, match="BEGIN"), stay.idempotency.transaction(db, KEY):
        pytest.fail("not reached")
    db.execute("BEGIN")
    with stay.idempotency.transaction(db, KEY) as entry:
        entry.result = "x"
    db.execute("COMMIT")
    assert store.count() == (0, 1)
    db.close()


def test_a_connection_whose_commit_is_a_no_op_is_refused(stay, tmp_path):
    """sqlite3 does this with autocommit=True since Python 3.12: the transaction would never be committed."""

    class CommitsByItself(sqlite3.Connection):
        autocommit = True

        def commit(self):
            pass

    store = Store("sqlite", tmp_path / "shop.db")
    store.create(stay)
    db = store.connect(factory=CommitsByItself)
    with pytest.raises(ConfigError, match="BEGIN"), stay.idempotency.transaction(db, KEY):
        pytest.fail("not reached")
    db.execute("BEGIN")
    with stay.idempotency.transaction(db, KEY) as entry:
        entry.result = "x"
    db.execute("COMMIT")
    assert store.count() == (0, 1)
    db.close()


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_that_ends_inside_its_block_raises(stay, store, end):
    db = store.connect()
    with pytest.raises(ConfigError, match="inside its block"), stay.idempotency.transaction(db, KEY):
        write_and_fail(db, getattr(db, end))
    db.rollback()
    assert store.count() == ((1, 1) if end == "commit" else (0, 0))
    if end == "commit":  # the outcome of the body is unknown, so it does not run again
        with pytest.raises(InProgress, match="committed inside its block"), stay.idempotency.transaction(db, KEY):
            pytest.fail("not reached")
    db.rollback()
    db.close()


def test_any_row_factory_is_accepted(stay, store):
    db = store.connect()
    db.row_factory = (lambda *_: "a row") if store.product == "sqlite" else scalar_row
    assert charge(stay, db) == charge(stay, db) == {"charged": 5}
    db.close()


@pytest.mark.postgres
def test_a_connection_in_pipeline_mode_is_accepted(stay, backstay_postgres):
    with psycopg.connect(backstay_postgres.url) as db, db.pipeline():
        db.execute(stay.idempotency.schema("postgresql").replace("TABLE IF NOT EXISTS", "TEMP TABLE"))
        for again in (False, True):
            with stay.idempotency.transaction(db, KEY) as entry:
                assert entry.replayed is again
                if not again:
                    entry.result = "x"
            assert entry.result == "x"


def test_an_autocommit_sqlalchemy_engine_is_refused(stay, store):
    engine = store.engine(isolation_level="AUTOCOMMIT")
    for kind in (engine.connect, lambda: Session(engine)):
        with (
            kind() as db,
            pytest.raises((ConfigError, sqlalchemy.exc.DBAPIError), match=r"BEGIN|SAVEPOINT"),
            stay.idempotency.transaction(db, KEY),
        ):
            pytest.fail("not reached")
    engine.dispose()
    assert store.count() == (0, 0)


def test_a_django_connection_is_accepted(stay, tmp_path):
    django = pytest.importorskip("django", reason="Django is not installed: pip install 'backstay[django]'")
    from django.conf import settings
    from django.db.utils import ConnectionHandler

    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    store = Store("sqlite", tmp_path / "django.db")
    store.create(stay)
    db = ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(store.address)}})["default"]
    try:
        with pytest.raises(ConfigError, match="BEGIN"), stay.idempotency.transaction(db, KEY):
            pytest.fail("not reached")
        db.set_autocommit(False)
        assert charge(stay, db) == charge(stay, db) == {"charged": 5}
        assert store.count() == (1, 1)
    finally:
        db.close()


def test_a_missing_table_is_reported_with_its_create_statement(stay, store):
    store.prepare("DROP TABLE backstay_idempotency")
    db = store.connect()
    with pytest.raises(ConfigError, match="CREATE TABLE"), stay.idempotency.transaction(db, KEY):
        pytest.fail("not reached")
    db.rollback()
    db.close()


def test_a_stale_snapshot_is_explained_on_sqlite(stay, tmp_path):
    store = Store("sqlite", tmp_path / "shop.db")
    store.create(stay)
    store.prepare("PRAGMA journal_mode = WAL")
    db, other = store.connect(isolation_level=None), store.connect()
    db.execute("BEGIN")
    db.execute("SELECT * FROM charge").fetchall()
    other.execute("INSERT INTO charge VALUES (1)")
    other.commit()
    with pytest.raises(ConfigError, match="BEGIN IMMEDIATE"), stay.idempotency.transaction(db, KEY):
        pytest.fail("not reached")
    db.execute("ROLLBACK")
    db.close()
    other.close()


def test_other_connections_are_refused(stay):
    with pytest.raises(ConfigError, match="connection"):
        stay.idempotency.transaction(object(), KEY)
    with pytest.raises(ConfigError, match="postgresql"):
        stay.idempotency.schema("oracle")


def run_and_kill(store, before):
    command = [sys.executable, str(KILLED), store.product, str(store.address), str(before)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
def test_a_kill_at_any_statement_leaves_both_effect_and_record_or_neither(store):
    statements = int(run_and_kill(store, 0).stdout)
    assert statements >= 6
    for before in range(1, statements + 1):
        for table in TABLES:
            store.prepare(f"DELETE FROM {table}")  # noqa: S608 - our own
        killed = run_and_kill(store, before)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert store.count() == ((1, 1) if before == statements else (0, 0)), before
        again = run_and_kill(store, 0)
        assert again.returncode == 0, again.stderr
        assert store.count() == (1, 1), before
