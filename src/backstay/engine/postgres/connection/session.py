"""Backstay's own connections to PostgreSQL: every wait is bounded, and errors become Backstay errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo

from backstay.engine.base import steady
from backstay.engine.postgres.address import Address
from backstay.engine.postgres.connection.arrays import register_dumpers
from backstay.errors import EngineError, EngineRefused, EngineUnavailable, OutcomeUnknown

T = TypeVar("T")

#: The server ends a session that stalls inside a transaction after this time (ms), because its row locks block others.
IDLE_IN_TRANSACTION = 2000
#: How long a statement waits for a locked row (ms). Short, because other operations wait behind it.
LOCK_TIMEOUT = 250
#: Settings that every session of ours depends on. They override the defaults of the database user and the database.
SETTINGS = {
    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION),
    "idle_session_timeout": "0",
    "lock_timeout": str(LOCK_TIMEOUT),
    # The sessions of a host that vanished keep their row locks until the TCP keepalive fails, by default two hours.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    # At a higher isolation level, a transaction that waited for a lock would read a snapshot from before the wait.
    "default_transaction_isolation": r"read\ committed",
    # All access is by key. A plan that was made while a table was small must not scan the table once it is large.
    "enable_seqscan": "off",
}
#: The oldest supported server version.
OLDEST = 140_000

#: Errors that an administrator must correct: a wrong password, a missing privilege, a missing database or table. A
#: retry does not help the caller. A full disk, a read-only server and too many connections are not among them: they
#: are outages.
FINAL = (
    pg.InvalidAuthorizationSpecification,
    pg.InsufficientPrivilege,
    pg.InvalidCatalogName,
    pg.InvalidSchemaName,
    pg.UndefinedTable,
    pg.UndefinedColumn,
    pg.SyntaxError,
)
#: Errors of the parameter values: the same operation fails again if it is retried.
UNFIT = (pg.DataError, pg.IntegrityError, pg.ProgramLimitExceeded)
#: Texts of such errors while connecting, where libpq reports the server's message without an SQLSTATE.
REFUSALS = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "pg_hba.conf rejects",
    "permission denied for database",
    "is not permitted to log in",
)


class Session(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose waits all have a deadline. If the server does not answer by then, the connection is closed."""

    #: The deadline (steady clock) of the current batch.
    until = float("inf")
    #: Whether this session may create prepared statements. A session on a pooled connection may not (PooledSession).
    prepares = True

    def begin(self) -> None:
        for statement, given in self.begin_statements():
            self.execute(statement, given)

    def begin_statements(self) -> list[tuple[bytes, Mapping[str, Any]]]:
        """Return the statements that begin a transaction."""
        return [(b"BEGIN", {})]

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        left = self.check_time()
        if left != float("inf"):
            timeout = left if timeout is None else min(timeout, left)
        try:
            return super().wait(gen, min(interval, left), timeout)
        except pg._WaitTimeout:  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - psycopg has no public name for it
            self.pgconn.finish()  # a late reply would be taken for the reply to the next request
            raise pg.OperationalError("no answer in time") from None

    def check(self) -> None:
        """Raise OperationalError if the deadline has passed or the server has closed the connection. Sends nothing."""
        self.check_time()
        for _ in ("final message", "end of stream"):  # the first read may only get a last message
            self.pgconn.consume_input()

    def check_time(self) -> float:
        """Return the seconds until the deadline. After it, close the connection and raise OperationalError."""
        left = self.until - steady()
        if left <= 0:
            self.pgconn.finish()
            raise pg.OperationalError("no answer in time")
        return left


def connect(address: Address, name: str) -> Session:
    """Connect and set the session's limits. Raises BackstayError."""
    ours = " ".join(f"-c {setting}={value}" for setting, value in SETTINGS.items())
    given = address.current()
    # libpq takes whole seconds, at least two.
    parameters: dict[str, Any] = {"connect_timeout": max(2, round(address.timeout)), **given}
    parameters["application_name"] = given.get("application_name", name)
    parameters["options"] = f"{given['options']} {ours}" if given.get("options") else ours
    parameters["tcp_user_timeout"] = int(address.timeout * 1000)
    try:
        session = Session.connect(make_conninfo(**parameters), autocommit=True)
    except psycopg.Error as error:
        raise translate(error, address) from error
    session.until = steady() + address.timeout
    try:
        check_version(session.info.server_version, address)
    except EngineRefused:
        session.close()
        raise
    register_dumpers(session)
    return session


def check_version(version: int, where: object) -> None:
    """Raise EngineRefused if the server (`where`, for the message) is too old."""
    if version < OLDEST:
        raise EngineRefused(f"{where} is PostgreSQL {version // 10000}; Backstay needs {OLDEST // 10000} or newer")


def translate(error: psycopg.Error, address: Address, *, sent: bool = False) -> EngineError:
    """Convert a psycopg error to a Backstay error. `sent`: a COMMIT was sent, so the outcome is unknown unless the
    error proves a rollback.
    """
    why = " ".join(str(error).split()) or type(error).__name__
    if sent and not proves_rollback(error):
        return OutcomeUnknown(f"{address}: {why}; the transaction may have been committed")
    if isinstance(error, FINAL) or (not error.sqlstate and any(words in why for words in REFUSALS)):
        return EngineRefused(f"{address} refused: {why}")
    if isinstance(error, (pg.OperationalError, pg.InterfaceError, pg.InternalError)) and not isinstance(error, UNFIT):
        return EngineUnavailable(f"{address}: {why}")
    refused = EngineRefused(f"{address} refused: {why}")
    refused.is_permanent = isinstance(error, UNFIT)
    return refused


def proves_rollback(error: psycopg.Error) -> bool:
    """Whether this error proves that the transaction was rolled back. An error that ends the session (FATAL) does not,
    because the server may have committed before it. The exception is the idle-in-transaction time-out: it can only
    occur while the transaction is still open.
    """
    if isinstance(error, pg.IdleInTransactionSessionTimeout):
        return True
    return bool(error.sqlstate) and error.diag.severity_nonlocalized == "ERROR"
