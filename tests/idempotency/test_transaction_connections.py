"""Connections for idempotency in the caller's transaction: drivers and libraries that are accepted or refused."""

from __future__ import annotations

import asyncio
import sqlite3

import psycopg
import pytest
import sqlalchemy
from effects_database import EffectsDatabase
from killed_transaction import KEY, charge
from psycopg.rows import dict_row, scalar_row
from sqlalchemy.orm import Session

import backstay
import backstay.sync
from backstay import ConfigError


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

    store = EffectsDatabase("sqlite", tmp_path / "effects.db")
    store.create_records(stay)
    db = store.connect(factory=CommitsByItself)
    with pytest.raises(ConfigError, match="BEGIN"), stay.idempotency.transaction(db, KEY):
        pytest.fail("not reached")
    db.execute("BEGIN")
    with stay.idempotency.transaction(db, KEY) as entry:
        entry.result = "x"
    db.execute("COMMIT")
    assert store.count() == (0, 1)
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
    store = EffectsDatabase("sqlite", tmp_path / "django.db")
    store.create_records(stay)
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
    store = EffectsDatabase("sqlite", tmp_path / "effects.db")
    store.create_records(stay)
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
