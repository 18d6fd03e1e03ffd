"""Enqueue in the caller's own transaction: `resize.options(connection=conn).enqueue(…)`. The jobs are stored when the
transaction commits, and not at all when it rolls back.

The connection's kind is detected by its type. SQLAlchemy's and Django's connections wrap one of sqlite3 or psycopg; the
store's statements run on that driver connection, between the caller's own statements. Nothing here commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from backstay.errors import ConfigError
from backstay.job.api.after_commit import PendingAnnouncements, find_block_announcements, find_session_announcements
from backstay.job.api.announcer import should_announce
from backstay.job.model import Enqueued, NewJob
from backstay.runtime.core import Core
from backstay.runtime.flows import maybe_await
from backstay.runtime.services import Service


class TransactionControl:
    """Runs a `stay.transaction` block on the caller's connection: `begin` starts a transaction or, if one is open, sets
    a savepoint; `end` commits, or rolls back after an error. `outermost`: True if `begin` has started a transaction,
    False if it has set a savepoint.
    """

    outermost = True

    async def begin(self) -> None: ...

    async def end(self, error: BaseException | None) -> None: ...


class CallerStore(Protocol):
    """The job store on the caller's connection, inside the caller's transaction. It never commits."""

    #: The package of the driver whose connections it accepts: "sqlite3" or "psycopg".
    package: str

    async def enqueue(self, driver: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store all jobs or none. Raises ConfigError for a connection to another database."""
        ...

    async def announce(self, driver: Any, types: list[str]) -> bool:
        """Announce jobs of these types inside the transaction, so that the database sends the announcement with the
        commit. Returns False if this store cannot do so. Then the caller must send it after the commit.
        """
        ...

    def control(self, driver: Any) -> TransactionControl | None:
        """Return the TransactionControl for a sqlite3 connection; None for a psycopg connection, for which the caller
        uses `PsycopgControl`.
        """
        ...


#: The job store for callers' connections. `assembly/` provides it; it is None if the engine has no SQL
#: transactions.
CALLER_STORE: Service[CallerStore | None] = Service("store on the caller's connection", lambda _: None)


class CallerConnection:
    """The connection that the caller passed: a sqlite3 or psycopg connection, or a SQLAlchemy or Django object that
    wraps one.
    """

    def __init__(self, core: Core, given: Any) -> None:
        self.core = core
        self.given = given
        packages = {kind.__module__.partition(".")[0] for kind in type(given).__mro__}
        self.is_sqlalchemy = "sqlalchemy" in packages
        self.is_django = hasattr(given, "vendor") and hasattr(given, "ops")
        #: The SQLAlchemy session that the caller passed, or the sync session inside its async session; else None.
        self.session: Any = getattr(given, "sync_session", given) if hasattr(given, "get_bind") else None

    async def driver(self) -> Any:
        """Return the sqlite3 or psycopg connection that the caller's connection is or wraps. Opens SQLAlchemy's
        transaction if none is open; raises ConfigError if a Django connection has no open transaction.
        """
        given = self.given
        if self.is_sqlalchemy:
            return await self._sqlalchemy_driver()
        if self.is_django:
            given.ensure_connection()
            if given.get_autocommit() and not given.in_atomic_block:
                raise autocommit_error("open a transaction first: with transaction.atomic()")
            return given.connection
        return given

    async def _sqlalchemy_driver(self) -> Any:
        connection = await maybe_await(self.given.connection()) if self.session is not None else self.given
        if not connection.in_transaction():  # SQLAlchemy commits only a transaction that it began itself
            await maybe_await(connection.exec_driver_sql("SELECT 1"))
        if hasattr(connection, "get_raw_connection"):
            return (await connection.get_raw_connection()).driver_connection
        return connection.connection.driver_connection

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store all jobs or none in the caller's transaction. Raises ConfigError for a connection that the store cannot
        use.
        """
        store = self.core.services.get(CALLER_STORE)
        if store is None:
            raise unsupported_connection_error("connection=")
        driver = await self.driver()
        if store.package not in {base.__module__.partition(".")[0] for base in type(driver).__mro__}:
            raise ConfigError(
                f"connection= is a {type(driver).__module__} connection, but this Backstay stores its jobs in"
                f" {self.core.engine}; pass a sqlite3 connection for SQLite, a psycopg 3 one for PostgreSQL, or one of"
                " SQLAlchemy or Django that wraps it"
            )
        done = await store.enqueue(driver, jobs)
        await self._announce(store, driver, jobs, done)
        return done

    async def _announce(
        self, store: CallerStore, driver: Any, jobs: Sequence[NewJob], done: Sequence[Enqueued]
    ) -> None:
        """Announce the jobs with or after the commit. That is possible if the store announces inside the transaction,
        in a `stay.transaction` block, in a SQLAlchemy session and with Django. On any other connection Backstay
        is not notified of the commit, so workers find the jobs by polling.
        """
        types = [job.type for job, one in zip(jobs, done, strict=True) if should_announce(self.core, job, one)]
        if not types:
            return
        core = self.core
        if await store.announce(driver, types):
            return
        if (pending := find_block_announcements(core, driver)) is not None:
            pending.add(types)
        elif self.session is not None:
            find_session_announcements(core, self.session).add_in_session(self.session, types)
        elif self.is_django:
            after = PendingAnnouncements(core)
            after.add(types)
            import_module("django.db.transaction").on_commit(after.send, using=self.given.alias)


def unsupported_connection_error(what: str) -> ConfigError:
    """Return the error for a Backstay whose store cannot take part in a SQL transaction."""
    return ConfigError(f"{what} needs jobs in SQLite or PostgreSQL; Redis cannot take part in your transaction")


def autocommit_error(way_out: str) -> ConfigError:
    """Return the error for a connection in autocommit mode without an open transaction."""
    return ConfigError(f"this connection is in autocommit mode; {way_out}")
