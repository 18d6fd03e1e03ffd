"""Idempotency inside the caller's own SQL transaction: the effect and the record commit together or not at all.

The record is a row of `backstay_idempotency` in the caller's database, written through the caller's connection. A
second transaction with the same key blocks in the database until the first has committed or rolled back; then it finds
the outcome, or runs. This module never commits and never rolls back the transaction: the caller does.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, cast

from msgspec import UNSET

from backstay.errors import BackstayError, ConfigError, FingerprintMismatch, InProgress
from backstay.idempotency.codec import pack, unpack
from backstay.runtime.flows import run
from backstay.runtime.lease import instant
from backstay.runtime.serialization import Codec
from backstay.runtime.sql_dialect import AlchemyDialect, Dialect, detect_dialect
from backstay.runtime.validation import to_micros

TABLE = "backstay_idempotency"
#: The name of our savepoint. It must differ from those of the caller.
SAVEPOINT = "backstay_idempotency"
#: SQLite's error code for a write in a transaction whose earlier read is outdated. Copied, because this module does not
#: import sqlite3.
SQLITE_BUSY_SNAPSHOT = 517

#: SQL for the database's clock, in µs since the epoch, at the time the statement runs.
NOW = {
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}
SCHEMA = {
    "postgresql": f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    space       text   NOT NULL,
    key         bytea  NOT NULL,
    fingerprint text   NOT NULL,
    outcome     bytea,
    created     bigint NOT NULL,
    keep_until  bigint NOT NULL,
    PRIMARY KEY (space, key)
);
""",
    "sqlite": f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    space       TEXT    NOT NULL,
    key         BLOB    NOT NULL,
    fingerprint TEXT    NOT NULL,
    outcome     BLOB,
    created     INTEGER NOT NULL,
    keep_until  INTEGER NOT NULL,
    PRIMARY KEY (space, key)
) WITHOUT ROWID;
""",
}


def schema(database: str) -> str:
    """Return the CREATE TABLE statement, for the caller's own migrations."""
    if database not in SCHEMA:
        raise ConfigError(f"database must be {' or '.join(map(repr, SCHEMA))}; got {database!r}")
    return SCHEMA[database]


def database_of(connection: Any) -> str:
    """Return the database behind a connection, by the type and attributes of the connection."""
    kinds = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    if "sqlalchemy" in kinds:
        bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
        product = str(bind.dialect.name)
    else:
        product = str(getattr(connection, "vendor", ""))  # Django
    product = product or ("postgresql" if "psycopg" in kinds else "sqlite" if "sqlite3" in kinds else "")
    if product not in SCHEMA:
        raise ConfigError(
            f"transaction() needs PostgreSQL or SQLite, not a connection of {type(connection).__module__}"
        )
    return product


def _driver_of(connection: Any) -> Any:
    """Return the sqlite3 or psycopg connection that a SQLAlchemy connection or session wraps. None for an async one,
    whose driver connection may be used only on its event loop.
    """
    if hasattr(connection, "sync_connection") or hasattr(connection, "sync_session"):
        return None
    return (connection.connection() if hasattr(connection, "get_bind") else connection).connection.driver_connection


class TransactionEntry:
    """One idempotent call, as the caller's `with` block gets it. If `replayed` is True, the call ran before, and
    `result` is its stored outcome. If it is False, the block must do the work on the same connection and set `result`.
    """

    __slots__ = ("_result", "name", "replayed")

    def __init__(self, name: str) -> None:
        self.name = name
        self.replayed = False
        self._result: Any = UNSET

    @property
    def result(self) -> Any:
        """The outcome of the call; None until it is set."""
        return None if self._result is UNSET else self._result

    @result.setter
    def result(self, value: Any) -> None:
        if self.replayed:
            raise ConfigError(f"{self.name!r} ran before: return entry.result instead of setting it again")
        self._result = value

    def replay(self, value: Any) -> None:
        self._result = value
        self.replayed = True


class BaseTransaction:
    """The base of `AsyncTransaction` and `Transaction`. Every statement runs on the caller's connection."""

    def __init__(self, connection: Any, space: str, name: str, fingerprint: str, ttl: float, codec: Codec) -> None:
        self._sql: Dialect = detect_dialect(connection)
        self._product = database_of(connection)
        #: Whether the savepoint is set before the record is inserted. Not on SQLite: there a SAVEPOINT without an open
        #: transaction starts one, and its RELEASE would commit it.
        self._savepoint_first = self._product == "postgresql"
        self._key = (space, name.encode())
        self._fingerprint = fingerprint
        self._ttl = to_micros(ttl)
        self._codec = codec
        self._entry = TransactionEntry(name)

    async def _open(self) -> TransactionEntry:
        await self._begin()
        if self._savepoint_first:
            await self._run(f"SAVEPOINT {SAVEPOINT}")
        try:
            if await self._claim():
                if not self._savepoint_first:
                    await self._run(f"SAVEPOINT {SAVEPOINT}")
                return self._entry
            await self._replay()
        except BaseException:
            # After an error PostgreSQL rejects every further statement of the transaction. The rollback to the
            # savepoint makes the caller's transaction usable again.
            if self._savepoint_first:
                with suppress(Exception):
                    await self._run(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
                    await self._run(f"RELEASE SAVEPOINT {SAVEPOINT}")
            raise
        if self._savepoint_first:
            await self._run(f"RELEASE SAVEPOINT {SAVEPOINT}")
        return self._entry

    async def _replay(self) -> None:
        entry = self._entry
        where, key = self._where(1)
        text = f"SELECT fingerprint, outcome, created FROM {TABLE} WHERE {where}"  # noqa: S608 - our own names
        _, row = await self._sql.execute(text, key, wants_row=True)
        if row is None:
            raise BackstayError(f"the record of {entry.name!r} was deleted while it was read; begin again")
        columns: list[Any] = list(cast("Mapping[str, Any]", row).values() if isinstance(row, Mapping) else row)
        fingerprint, outcome, created = columns
        since = instant(int(created)).isoformat()
        if self._fingerprint not in ("", fingerprint):
            raise FingerprintMismatch(name=entry.name, since=since)
        # The record has no outcome yet, so its block is still running. Other transactions cannot see such a record, so
        # the block is in this very transaction, unless the caller committed inside that block.
        if outcome is None:
            by = "this very transaction, or one that was committed inside its block"
            raise InProgress(name=entry.name, by=by, since=since, waited=0.0, retry_after=0.0)
        entry.replay(unpack(entry.name, self._codec, bytes(outcome)))

    async def _begin(self) -> None:
        """Make sure that a transaction is open: in autocommit mode the record would not commit with the effect."""
        connection = self._sql.connection
        if isinstance(self._sql, AlchemyDialect):
            driver = _driver_of(connection) if self._product == "sqlite" else None
            if driver is None or driver.in_transaction or driver.isolation_level is not None:
                return  # PostgreSQL in autocommit mode is detected later: it refuses the SAVEPOINT
        elif self._product == "sqlite" and hasattr(connection, "in_transaction"):
            if connection.in_transaction:
                return
            autocommits = (
                getattr(connection, "autocommit", False) is True
            )  # with autocommit=True (Python 3.12 and later) commit() would not end our transaction
            if (
                connection.isolation_level is not None and not autocommits
            ):  # sqlite3 would begin the transaction only at the first write: begin it now
                await self._run("BEGIN IMMEDIATE")
                return
        elif self._product == "postgresql" and hasattr(connection, "info"):
            from psycopg.pq import TransactionStatus  # installed, because the connection is psycopg's

            if not connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE:
                return
        elif getattr(connection, "in_atomic_block", True) or not connection.get_autocommit():  # Django
            return
        raise ConfigError("this connection is in autocommit mode; open a transaction first, as in BEGIN")

    async def _claim(self) -> bool:
        """Insert the record and return True. While another transaction has inserted it without committing, this blocks.
        Returns False if an unexpired record exists, because that transaction or an earlier one has committed.
        """
        sql, now = self._sql, NOW[self._product]
        marks = [sql.mark(i) for i in range(1, 5)]
        text = (
            f"INSERT INTO {TABLE} AS known (space, key, fingerprint, created, keep_until)"  # noqa: S608 - our own names
            f" VALUES ({marks[0]}, {marks[1]}, {marks[2]}, {now}, {now} + {marks[3]})"
            " ON CONFLICT (space, key) DO UPDATE SET fingerprint = excluded.fingerprint, outcome = NULL,"
            " created = excluded.created, keep_until = excluded.keep_until"
            " WHERE known.keep_until <= excluded.created"
        )
        values = [*self._key, self._fingerprint, self._ttl]
        try:
            # Ask with RETURNING whether a row was written: in psycopg's pipeline mode the row count is not yet known.
            if self._product == "postgresql":
                return (await sql.execute(f"{text} RETURNING 1", values, wants_row=True))[1] is not None
            return (await sql.execute(text, values))[0] == 1
        except Exception as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> Exception:
        why = str(error)
        if "savepoint" in why and ("no such" in why or "does not exist" in why):
            return ConfigError(
                f"the transaction of {self._entry.name!r} was ended inside its block, so its outcome cannot be stored:"
                " commit or roll back after the block"
            )
        if TABLE in why and ("no such table" in why or "does not exist" in why):
            return ConfigError(f"the table {TABLE} does not exist; create it once:\n{SCHEMA[self._product]}")
        cause: Any = getattr(error, "orig", error)  # SQLAlchemy wraps the driver's exception
        if getattr(cause, "sqlite_errorcode", 0) == SQLITE_BUSY_SNAPSHOT:
            return ConfigError(
                "another connection wrote after this transaction had read: begin it with BEGIN IMMEDIATE"
            )
        return error

    def _where(self, first: int) -> tuple[str, list[Any]]:
        return f"space = {self._sql.mark(first)} AND key = {self._sql.mark(first + 1)}", list(self._key)

    async def _close(self, error: BaseException | None) -> None:
        if self._entry.replayed:
            return
        if error is not None:
            with suppress(Exception):  # the caller gets the exception of its own code, and rolls back
                await self._undo()
            return
        try:
            outcome = pack(self._entry.name, self._codec, self._entry.result)
        except ConfigError:
            await self._undo()
            raise
        where, key = self._where(2)
        text = f"UPDATE {TABLE} SET outcome = {self._sql.mark(1)} WHERE {where}"  # noqa: S608 - our own names
        try:
            await self._sql.execute(text, [outcome, *key])
            await self._run(f"RELEASE SAVEPOINT {SAVEPOINT}")
        except Exception as trouble:
            raise self._explain(trouble) from trouble

    async def _undo(self) -> None:
        """Undo the writes of the caller's `with` block and delete the record. If the caller catches the exception and
        commits its transaction, it commits neither.
        """
        await self._run(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
        await self._run(f"RELEASE SAVEPOINT {SAVEPOINT}")
        if not self._savepoint_first:
            where, key = self._where(1)
            await self._sql.execute(f"DELETE FROM {TABLE} WHERE {where}", key)  # noqa: S608 - our own names

    async def _run(self, text: str) -> None:
        await self._sql.execute(text, ())


class AsyncTransaction(BaseTransaction):
    """The async context manager: `async with stay.idempotency.transaction(conn, key) as entry: …`."""

    async def __aenter__(self) -> TransactionEntry:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(error)


class Transaction(BaseTransaction):
    """The blocking context manager: `with stay.idempotency.transaction(conn, key) as entry: …`."""

    def __enter__(self) -> TransactionEntry:
        return run(self._open())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._close(error))
