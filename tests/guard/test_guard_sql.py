"""Guarded rows through DB-API connections, Django and SQLAlchemy."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
import types

import pytest
from stores import create_orders

from backstay import ConfigError, LeaseLost, RowMissing, StaleFence


def row(db):
    cursor = db.cursor()
    cursor.execute('SELECT paid, fence FROM "order" WHERE id = 42')
    return tuple(cursor.fetchone())


def test_an_older_fence_changes_no_row(stay, leases, db):
    older, newer = leases
    stay.guard(newer).sql(db).update("order", {"paid": 10}, where={"id": 42})
    with pytest.raises(StaleFence) as refused:
        stay.guard(older).sql(db).update("order", {"paid": 99}, where={"id": 42})
    assert (refused.value.fence, refused.value.newer) == (older.fence, newer.fence)
    assert row(db) == (10, newer.fence)


def test_the_same_holder_writes_again(stay, leases, db):
    _, newer = leases
    for paid in (10, 10, 20):
        stay.guard(newer).sql(db).update("order", {"paid": paid}, where={"id": 42})
    assert row(db) == (20, newer.fence)


def test_an_update_without_values_only_advances_the_fence(stay, leases, db):
    older, newer = leases
    stay.guard(newer).sql(db).update("order", {}, where={"id": 42})
    with pytest.raises(StaleFence):
        stay.guard(older).sql(db).update("order", {"paid": 99}, where={"id": 42})
    assert row(db) == (None, newer.fence)


def test_a_guarded_write_is_part_of_the_callers_transaction(stay, leases, db):
    _, newer = leases
    stay.guard(newer).sql(db).update("order", {"paid": 10}, where={"id": 42})
    assert db.in_transaction
    db.rollback()
    assert row(db) == (None, None)


def test_updating_a_missing_row_raises_row_missing(stay, leases, db):
    with pytest.raises(RowMissing, match="upsert") as missing:
        stay.guard(leases[1]).sql(db).update("order", {"paid": 10}, where={"id": 43})
    assert isinstance(missing.value, LookupError)
    assert (missing.value.table, missing.value.row) == ("order", {"id": 43})


def test_an_upsert_inserts_then_updates_then_refuses_an_older_fence(stay, leases, db):
    older, newer = leases
    db.execute('DELETE FROM "order"')
    stay.guard(older).sql(db).upsert("order", {"paid": 1}, key={"id": 42})
    assert row(db) == (1, older.fence)
    stay.guard(newer).sql(db).upsert("order", {"paid": 2}, key={"id": 42})
    assert row(db) == (2, newer.fence)
    with pytest.raises(StaleFence):
        stay.guard(older).sql(db).upsert("order", {"paid": 3}, key={"id": 42})
    assert row(db) == (2, newer.fence)


def test_an_upsert_takes_over_a_row_without_a_fence(stay, leases, db):
    stay.guard(leases[0]).sql(db).upsert("order", {"paid": 1}, key={"id": 42})
    assert row(db) == (1, leases[0].fence)


def test_the_fence_column_and_a_schema_qualified_table_can_be_named(stay, leases, db):
    older, newer = leases
    db.execute("CREATE TABLE ledger (a INTEGER, b INTEGER, amount INTEGER, guard BIGINT, PRIMARY KEY (a, b))")
    for lease in (older, newer):
        stay.guard(lease).sql(db, fence_column="guard").upsert("main.ledger", {"amount": 1}, key={"a": 1, "b": 2})
    with pytest.raises(StaleFence):
        stay.guard(older).sql(db, fence_column="guard").update("main.ledger", {"amount": 2}, where={"a": 1, "b": 2})
    assert db.execute("SELECT * FROM ledger").fetchall() == [(1, 2, 1, newer.fence)]


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "a;--", "1st", "ümlaut", "a.b.", "*", "a%s"])
def test_invalid_identifiers_are_refused(stay, leases, db, name):
    guard = stay.guard(leases[1])
    with pytest.raises(ConfigError):
        guard.sql(db).update(name, {"paid": 1}, where={"id": 42})
    with pytest.raises(ConfigError):
        guard.sql(db).update("order", {name: 1}, where={"id": 42})
    with pytest.raises(ConfigError):
        guard.sql(db).update("order", {"paid": 1}, where={name: 42})
    with pytest.raises(ConfigError):
        guard.sql(db, fence_column=name).update("order", {"paid": 1}, where={"id": 42})
    assert row(db) == (None, None)


def test_values_are_sent_as_parameters(stay, leases, db):
    db.execute("CREATE TABLE note (id TEXT PRIMARY KEY, text TEXT, fence BIGINT)")
    nasty = "'; DROP TABLE note; -- %s ? :p1"
    stay.guard(leases[1]).sql(db).upsert("note", {"text": nasty}, key={"id": nasty})
    assert db.execute("SELECT id, text FROM note").fetchall() == [(nasty, nasty)]


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"paid": 1}, {}),
        ({"paid": 1}, {"id": None}),
        ({"fence": 1}, {"id": 42}),
        ({"paid": 1}, {"fence": 1}),
        ({"id": 1}, {"id": 42}),
    ],
)
def test_an_invalid_row_selection_is_refused(stay, leases, db, values, where):
    with pytest.raises(ConfigError):
        stay.guard(leases[1]).sql(db).update("order", values, where=where)
    assert row(db) == (None, None)


def test_a_where_that_matches_several_rows_is_refused(stay, leases, db):
    db.execute('INSERT INTO "order" (id, paid) VALUES (1, 7), (2, 7)')
    with pytest.raises(ConfigError, match="2 rows"):
        stay.guard(leases[1]).sql(db).update("order", {}, where={"paid": 7})


def test_a_lost_lease_writes_nothing(stay, leases, db):
    leases[1].release()
    with pytest.raises(LeaseLost):
        stay.guard(leases[1]).sql(db).update("order", {"paid": 1}, where={"id": 42})
    assert row(db) == (None, None)


@pytest.mark.parametrize("factory", [sqlite3.Row, lambda cursor, row: {"fence": row[0]}], ids=["row", "mapping"])
def test_the_callers_row_factory_does_not_affect_the_guard(stay, leases, db, factory):
    older, newer = leases
    stay.guard(newer).sql(db).update("order", {"paid": 1}, where={"id": 42})
    db.row_factory = factory
    with pytest.raises(StaleFence) as refused:
        stay.guard(older).sql(db).update("order", {"paid": 2}, where={"id": 42})
    assert refused.value.newer == newer.fence


def test_an_object_that_is_no_connection_is_refused(stay, leases):
    class NotAConnection:
        def commit(self):
            pass

    with pytest.raises(ConfigError, match="NotAConnection"):
        stay.guard(leases[1]).sql(NotAConnection())


# ── placeholders ──

#: A placeholder in each DB-API paramstyle.
STYLES = {
    "qmark": r"\?",
    "numeric": r":(\d+)",
    "format": r"%s",
    "named": r":(p\d+)",
    "pyformat": r"%\((p\d+)\)s",
}


def driver(style, monkeypatch):
    """A DB-API driver over SQLite that accepts only the placeholders of this paramstyle."""

    class Cursor:
        def __init__(self, cursor):
            self._cursor = cursor

        def execute(self, text, parameters):
            shape = re.compile(STYLES[style])
            assert shape.search(text)
            if style in ("named", "pyformat"):
                values = [parameters[name] for name in shape.findall(text)]
            elif style == "numeric":
                values = [parameters[int(number) - 1] for number in shape.findall(text)]
            else:
                values = parameters
            self._cursor.execute(shape.sub("?", text), list(values))

        def __getattr__(self, name):
            return getattr(self._cursor, name)

    class Connection:
        def __init__(self, db):
            self._db = db

        def cursor(self):
            return Cursor(self._db.cursor())

        def commit(self):
            self._db.commit()

    module = types.ModuleType(f"driver_{style}")
    module.paramstyle = style
    Connection.__module__ = f"{module.__name__}.connections"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Connection


@pytest.mark.parametrize("style", STYLES)
def test_every_paramstyle_works(stay, leases, db, style, monkeypatch):
    older, newer = leases
    connection = driver(style, monkeypatch)(db)
    stay.guard(older).sql(connection).update("order", {"paid": 1}, where={"id": 42})
    stay.guard(newer).sql(connection).upsert("order", {"paid": 2}, key={"id": 42})
    for verb, names in (("update", "where"), ("upsert", "key")):
        with pytest.raises(StaleFence):
            getattr(stay.guard(older).sql(connection), verb)("order", {"paid": 3}, **{names: {"id": 42}})
    assert row(db) == (2, newer.fence)


# ── libraries ──


def test_django_connections_work(stay, leases, tmp_path):
    django = pytest.importorskip("django", reason="Django is not installed: pip install 'backstay[django]'")
    from django.conf import settings
    from django.db.utils import ConnectionHandler

    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    path = str(tmp_path / "django.db")
    handler = ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": path}})
    connection = handler["default"]
    try:
        create_orders(connection)
        older, newer = leases
        stay.guard(newer).sql(connection).update("order", {"paid": 1}, where={"id": 42})
        stay.guard(newer).sql(connection).upsert("order", {"paid": 2}, key={"id": 42})
        for verb, names in (("update", "where"), ("upsert", "key")):
            with pytest.raises(StaleFence):
                getattr(stay.guard(older).sql(connection), verb)("order", {"paid": 3}, **{names: {"id": 42}})
        assert row(connection) == (2, newer.fence)
    finally:
        connection.close()


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_sqlalchemy_connections_and_sessions_work(stay, leases, db, tmp_path, kind):
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: add it to requirements/dev.in")
    from sqlalchemy.orm import Session

    older, newer = leases
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with engine.connect() if kind == "connection" else Session(engine) as connection:
        stay.guard(newer).sql(connection).update("order", {"paid": 1}, where={"id": 42})
        stay.guard(newer).sql(connection).upsert("order", {"paid": 2}, key={"id": 42})
        for verb, names in (("update", "where"), ("upsert", "key")):
            with pytest.raises(StaleFence):
                getattr(stay.guard(older).sql(connection), verb)("order", {"paid": 3}, **{names: {"id": 42}})
        connection.commit()
    engine.dispose()
    assert row(db) == (2, newer.fence)


def test_async_connections_are_awaited(stay, leases, db):
    """An object like psycopg's AsyncConnection: cursor() is synchronous, the cursor's methods are awaited."""

    class AsyncCursor:
        def __init__(self, cursor):
            self._cursor = cursor
            self.rowcount = -1

        async def execute(self, text, parameters):
            await asyncio.sleep(0)
            self._cursor.execute(text, parameters)
            self.rowcount = self._cursor.rowcount

        async def fetchone(self):
            return self._cursor.fetchone()

        async def close(self):
            self._cursor.close()

    class AsyncConnection:
        def cursor(self):
            return AsyncCursor(db.cursor())

        async def commit(self):
            db.commit()

    AsyncConnection.__module__ = "sqlite3.async"
    older, newer = leases

    async def main():
        connection = AsyncConnection()
        await stay.guard(newer).sql(connection).update("order", {"paid": 1}, where={"id": 42})
        await stay.guard(newer).sql(connection).upsert("order", {"paid": 2}, key={"id": 42})
        with pytest.raises(StaleFence):
            await stay.guard(older).sql(connection).update("order", {"paid": 3}, where={"id": 42})

    asyncio.run(main())
    assert row(db) == (2, newer.fence)
