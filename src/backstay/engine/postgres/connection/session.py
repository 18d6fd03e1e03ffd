"""A connection of our own to PostgreSQL: bounded in time, and its errors in our words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo

from backstay.engine.base import steady
from backstay.engine.postgres.address import Address
from backstay.engine.postgres.connection.arrays import teach
from backstay.errors import EngineError, EngineRefused, EngineUnavailable, OutcomeUnknown

T = TypeVar("T")

#: A session that stands still inside a transaction holds everybody up: the server ends it after this (ms).
IDLE_IN_TRANSACTION = 2000
#: One statement waits for a row that somebody holds no longer than this (ms): others wait behind it.
LOCK_TIMEOUT = 250
#: What every session of ours relies on, whatever was set for the user or the database.
SETTINGS = {
    "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION),
    "idle_session_timeout": "0",
    "lock_timeout": str(LOCK_TIMEOUT),
    # A host that vanished holds its rows until the server asks after it; by default in two hours.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    # A snapshot from before a lock was waited for would show old records.
    "default_transaction_isolation": r"read\ committed",
    # Everything goes by a key: a plan made while a table was small or unknown must not scan it once it is large.
    "enable_seqscan": "off",
}
#: The oldest server with everything the statements use.
OLDEST = 140_000

#: It will not get better by trying again: a wrong password, a missing right, a missing database or table.
FINAL = (
    pg.InvalidAuthorizationSpecification,
    pg.InsufficientPrivilege,
    pg.InvalidCatalogName,
    pg.InvalidSchemaName,
    pg.UndefinedTable,
    pg.UndefinedColumn,
    pg.SyntaxError,
)
#: Nor by sending the same once more: a value that no column takes.
UNFIT = (pg.DataError, pg.IntegrityError, pg.ProgramLimitExceeded)
#: The same while connecting, where libpq tells the server's words only.
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
    """Every wait ends: a server that has stopped answering is given up, and the connection with it."""

    #: When (on the steady clock) what is under way must have ended.
    until = float("inf")
    #: Whether its prepared statements are ours to name.
    prepares = True

    def begin(self) -> None:
        for statement, given in self.beginning():
            self.execute(statement, given)

    def beginning(self) -> list[tuple[bytes, Mapping[str, Any]]]:
        """What begins a transaction, as statements with named parameters."""
        return [(b"BEGIN", {})]

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        left = self.check_time()
        if left != float("inf"):
            timeout = left if timeout is None else min(timeout, left)
        try:
            return super().wait(gen, min(interval, left), timeout)
        except pg._WaitTimeout:  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - it has no other name
            self.pgconn.finish()  # whatever comes now answers something else
            raise pg.OperationalError("no answer in time") from None

    def check(self) -> None:
        """Raises when the time is over, or the server has said goodbye: nothing needs to be sent then."""
        self.check_time()
        for _ in ("its last words", "the end"):
            self.pgconn.consume_input()

    def check_time(self) -> float:
        """The seconds left. Raises when there are none, and gives the connection up."""
        left = self.until - steady()
        if left <= 0:
            self.pgconn.finish()
            raise pg.OperationalError("no answer in time")
        return left


def connect(address: Address, name: str) -> Session:
    """Reach the server and set the session's own limits. Raises errors of our tree."""
    ours = " ".join(f"-c {setting}={value}" for setting, value in SETTINGS.items())
    given = address.current()
    # libpq knows whole seconds, and not fewer than two.
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
        check(session.info.server_version, address)
    except EngineRefused:
        session.close()
        raise
    teach(session)
    return session


def check(version: int, where: object) -> None:
    """Refuse a server that is too old for the statements."""
    if version < OLDEST:
        raise EngineRefused(f"{where} is PostgreSQL {version // 10000}; Backstay needs {OLDEST // 10000} or newer")


def translate(error: psycopg.Error, address: Address, *, sent: bool = False) -> EngineError:
    """`sent`: a COMMIT was under way, so nobody knows, unless the server says that it came to nothing."""
    why = " ".join(str(error).split()) or type(error).__name__
    if sent and not came_to_nothing(error):
        return OutcomeUnknown(f"{address}: {why}; the commit may have arrived")
    if isinstance(error, FINAL) or (not error.sqlstate and any(words in why for words in REFUSALS)):
        return EngineRefused(f"{address} refused: {why}")
    if isinstance(error, (pg.OperationalError, pg.InterfaceError, pg.InternalError)) and not isinstance(error, UNFIT):
        return EngineUnavailable(f"{address}: {why}")
    refused = EngineRefused(f"{address} refused: {why}")
    refused.pointless = isinstance(error, UNFIT)
    return refused


def came_to_nothing(error: psycopg.Error) -> bool:
    """Whether the transaction of a statement that failed so was certainly rolled back. A server that ends the session
    (FATAL) may have committed before, except where it had tired of waiting for our next word.
    """
    if isinstance(error, pg.IdleInTransactionSessionTimeout):
        return True
    return bool(error.sqlstate) and error.diag.severity_nonlocalized == "ERROR"
