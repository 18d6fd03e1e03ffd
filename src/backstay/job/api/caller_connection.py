"""Jobs in the caller's own transaction: `resize.options(connection=conn).enqueue(…)`. They are there when it commits,
and never were when it rolls back.

Whose connection it is, is told by its looks; below SQLAlchemy's and Django's lies one of sqlite3 or psycopg, and the
statements of the store run on that one, between the caller's own. Nothing here commits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from backstay.engine.sqlite.caller_transactions import plainly
from backstay.engine.sqlite.schema import is_busy, translate
from backstay.errors import ConfigError
from backstay.job.api.after_commit import Hints, open_hints, session_hints
from backstay.job.api.announcer import worth_a_look
from backstay.job.api.registry import store_of
from backstay.job.ids import shard_of
from backstay.job.model import Enqueued, NewJob
from backstay.runtime.core import Core
from backstay.runtime.maybe_await import settled

if TYPE_CHECKING:
    from backstay.engine.sqlite.engine import SqliteEngine


class Callers:
    """A connection of the caller's, and what lies below it."""

    def __init__(self, core: Core, given: Any) -> None:
        self.core = core
        self.given = given
        packages = {kind.__module__.partition(".")[0] for kind in type(given).__mro__}
        self.is_alchemy = "sqlalchemy" in packages
        self.is_django = hasattr(given, "vendor") and hasattr(given, "ops")
        #: SQLAlchemy's sync session, below an async one, too.
        self.session: Any = getattr(given, "sync_session", given) if hasattr(given, "get_bind") else None

    async def driver(self) -> Any:
        """The connection of sqlite3 or psycopg, in a transaction that its owner will end."""
        given = self.given
        if self.is_alchemy:
            return await self._alchemy()
        if self.is_django:
            given.ensure_connection()
            if given.get_autocommit() and not given.in_atomic_block:
                raise _commits_itself("open a transaction first: with transaction.atomic()")
            return given.connection
        return given

    async def _alchemy(self) -> Any:
        connection = await settled(self.given.connection()) if self.session is not None else self.given
        if not connection.in_transaction():  # it would never commit what it does not know of
            await settled(connection.exec_driver_sql("SELECT 1"))
        if hasattr(connection, "get_raw_connection"):
            return (await connection.get_raw_connection()).driver_connection
        return connection.connection.driver_connection

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """All of them, or none. Raises ConfigError for a connection that cannot be."""
        kind = self.core.engine.default_hub
        if kind == "redis":
            raise no_part("connection=")
        driver = await self.driver()
        packages = {base.__module__.partition(".")[0] for base in type(driver).__mro__}
        if kind == "local" and "sqlite3" in packages:
            done = self._on_sqlite(driver, jobs)
        elif kind == "postgres" and "psycopg" in packages:
            from backstay.job.api.caller_connection_postgres import enqueue  # only with its driver

            done = await enqueue(self.core, driver, jobs)
        else:
            raise ConfigError(
                f"connection= is a {type(driver).__module__} connection, and this Backstay keeps its jobs in"
                f" {self.core.engine}; on SQLite pass one of sqlite3, on PostgreSQL one of psycopg 3, or SQLAlchemy's"
                " or Django's over them"
            )
        await self._announce(driver, jobs, done)
        return done

    def _on_sqlite(self, driver: sqlite3.Connection, jobs: Sequence[NewJob]) -> list[Enqueued]:
        engine = cast("SqliteEngine", self.core.engine)
        op = store_of(self.core).enqueue(shard_of(jobs[0].id), jobs)
        try:
            same_file(driver, engine.path)
            begin(driver)
            return engine.on(driver, op)
        except sqlite3.OperationalError as error:
            raise explained(error, engine.path) from error

    async def _announce(self, driver: Any, jobs: Sequence[NewJob], done: Sequence[Enqueued]) -> None:
        """Workers hear of it after the commit, where somebody tells when that is; else they find it."""
        types = [job.type for job, one in zip(jobs, done, strict=True) if worth_a_look(self.core, job, one)]
        if not types:
            return
        core = self.core
        if core.engine.default_hub == "postgres" and core.hub.carrier is core.engine:
            from backstay.job.api.caller_connection_postgres import announce

            await announce(core, driver, types)
        elif (hints := open_hints(core, driver)) is not None:
            hints.add(types)
        elif self.session is not None:
            session_hints(core, self.session).note(self.session, types)
        elif self.is_django:
            after = Hints(core)
            after.add(types)
            import_module("django.db.transaction").on_commit(after.send, using=self.given.alias)


def no_part(what: str) -> ConfigError:
    return ConfigError(f"{what} is for jobs in SQLite or PostgreSQL; Redis has no part in your transaction")


def same_file(driver: sqlite3.Connection, path: str) -> None:
    """Raises ConfigError unless the connection is to the engine's file."""
    if path == ":memory:":
        raise ConfigError("a Backstay on memory:// has its jobs for itself; use sqlite:///app.db for both")
    before = plainly(driver)
    try:
        file = next((row[2] for row in driver.execute("PRAGMA database_list") if row[1] == "main"), "")
    finally:
        driver.row_factory, driver.text_factory = before
    if not file or not Path(path).exists() or not Path(file).samefile(path):
        raise ConfigError(
            f"connection= is to {file or 'memory'!r}, and this Backstay keeps its jobs in {path!r}: one transaction has"
            " one file"
        )


def begin(driver: sqlite3.Connection) -> None:
    """See to it that a transaction is open, which the caller will end."""
    if driver.in_transaction:
        return
    if driver.isolation_level is None or getattr(driver, "autocommit", None) is True:
        raise _commits_itself("open a transaction first, as in BEGIN IMMEDIATE, or use stay.transaction(conn)")
    try:
        driver.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        raise translate(error, "the file of this connection") from error


def _commits_itself(way_out: str) -> ConfigError:
    return ConfigError(f"this connection commits every statement by itself; {way_out}")


def explained(error: sqlite3.OperationalError, path: str) -> Exception:
    """The file's trouble on the caller's connection, with the way out. Whoever began with BEGIN IMMEDIATE never finds
    it busy later on; whoever did not has read what is stale by now, or will be.
    """
    if "no such table: backstay_" in str(error):
        return ConfigError("this file has no tables of Backstay's yet: open the Backstay first, or `backstay migrate`")
    if is_busy(error):
        return ConfigError("others write while this transaction has only read: begin it with BEGIN IMMEDIATE")
    return translate(error, path)
