"""A connection of our own to PostgreSQL: bounded in time, and its errors in our words."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo

from holdfast.engine.base import steady
from holdfast.engine.postgres.address import Address
from holdfast.engine.postgres.arrays import teach
from holdfast.errors import EngineError, EngineRefused, EngineUnavailable, OutcomeUnknown

T = TypeVar("T")

#: A session that stands still inside a transaction holds everybody up: the server ends it after this (ms).
IDLE_IN_TRANSACTION = 2000
#: A row that somebody holds is waited for this long (ms): longer than the server lets anybody stand still.
LOCK_TIMEOUT = 3000
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


class Session(psycopg.Connection[tuple[Any, ...]]):
    """Every wait ends: a server that has stopped answering is given up, and the connection with it."""

    #: When (on the steady clock) what is under way must have ended.
    until = float("inf")

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        left = self.until - steady()
        if left <= 0:
            self.pgconn.finish()
            raise pg.OperationalError("no answer in time")
        if left != float("inf"):
            timeout = left if timeout is None else min(timeout, left)
        try:
            return super().wait(gen, min(interval, left), timeout)
        except pg._WaitTimeout:  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - it has no other name
            self.pgconn.finish()  # whatever comes now answers something else
            raise pg.OperationalError("no answer in time") from None


def connect(address: Address, name: str, patience: float) -> Session:
    """Reach the server and set the session's own limits. Raises errors of our tree."""
    ours = f"-c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION} -c lock_timeout={LOCK_TIMEOUT}"
    given = address.parameters
    parameters: dict[str, Any] = {"application_name": name, "connect_timeout": max(2, round(patience)), **given}
    parameters["options"] = f"{given['options']} {ours}" if given.get("options") else ours
    parameters["tcp_user_timeout"] = int(patience * 1000)
    try:
        session = Session.connect(make_conninfo(**parameters), autocommit=True)
    except psycopg.Error as error:
        raise translate(error, address) from error
    if session.info.server_version < OLDEST:
        version = session.info.server_version
        session.close()
        raise EngineRefused(f"{address} is PostgreSQL {version // 10000}; Holdfast needs {OLDEST // 10000} or newer")
    teach(session)
    return session


def translate(error: psycopg.Error, address: Address, *, sent: bool = False) -> EngineError:
    """`sent`: a COMMIT was under way, so nobody knows."""
    why = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, FINAL) or (not error.sqlstate and "password authentication failed" in why):
        return EngineRefused(f"{address} refused: {why}")
    if sent and not error.sqlstate:  # the connection broke; an error with a state was said by the server
        return OutcomeUnknown(f"{address}: {why}; the commit may have arrived")
    if isinstance(error, (pg.OperationalError, pg.InterfaceError, pg.InternalError)):
        return EngineUnavailable(f"{address}: {why}")
    return EngineRefused(f"{address} refused: {why}")
