"""The caller's own psycopg connection: the store's statements and the hint run on it, inside its transaction."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from backstay.engine.base import Wake
from backstay.engine.postgres.connection.arrays import register_dumpers
from backstay.engine.postgres.notify import notify_statement
from backstay.errors import ConfigError
from backstay.hub import protocol
from backstay.hub.base import LIFE_MICROS
from backstay.job.api.caller_connection import TransactionControl, autocommit_error
from backstay.job.model import Enqueued, NewJob
from backstay.job.stores.postgres.store import PostgresStore
from backstay.runtime.core import Core
from backstay.runtime.flows import maybe_await

#: µs by the server's clock, as the engine's own statements take it.
HINT = (
    "INSERT INTO backstay_hint_counter (hint, remaining, keep_until)"
    " VALUES (%s, %s, CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint) + %s)"
)


class PostgresCallerStore:
    """Jobs on a connection of psycopg to the engine's database."""

    package = "psycopg"

    def __init__(self, core: Core) -> None:
        self._core = core

    async def enqueue(self, driver: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return await enqueue(self._core, driver, jobs)

    async def announce(self, driver: Any, types: list[str]) -> bool:
        if self._core.hub.runner is not self._core.engine:
            return False
        await announce(self._core, driver, types)
        return True

    def control(self, driver: Any) -> TransactionControl | None:
        return None


async def enqueue(core: Core, driver: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """All of them, or none: a savepoint of its own, so that a refusal leaves the caller's transaction as it was."""
    if driver.autocommit and driver.info.transaction_status == TransactionStatus.IDLE:
        raise autocommit_error("open a transaction first: with conn.transaction()")
    # A store of its own: what it remembers of the tables would be wrong after a rollback.
    store = PostgresStore(core.engine.namespace, core.hub_prefix)
    blockers = {chain for job in jobs for chain in job.after}
    if blockers:  # on a connection of ours: on the caller's, workers would have to wait for its commit
        await core.port.apply(store.await_chains(blockers))
    op: Any = store.enqueue_among(jobs)
    engine: Any = core.engine
    talk: Generator[Any, Any, list[Enqueued]] = op.work(engine.test_now(), [])
    cursor = _cursor(driver)
    try:
        await maybe_await(cursor.execute("SAVEPOINT backstay_on"))
        try:
            done = await _converse(cursor, talk)
        except BaseException as error:
            if driver.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                await maybe_await(cursor.execute("ROLLBACK TO SAVEPOINT backstay_on"))
                await maybe_await(cursor.execute("RELEASE SAVEPOINT backstay_on"))
            if isinstance(error, pg.UndefinedTable):
                raise ConfigError(
                    "this database has no tables of Backstay's where the connection looks for them: pass one to the"
                    " database in which the jobs are kept, and open the Backstay or run `backstay migrate` first"
                ) from error
            raise
        await maybe_await(cursor.execute("RELEASE SAVEPOINT backstay_on"))
        return done
    finally:
        await maybe_await(cursor.close())


def _cursor(driver: Any) -> Any:
    """A plain one, whatever kind the caller's connection makes by itself: Django's writes values into the text."""
    kind: Any = psycopg.AsyncCursor if isinstance(driver, psycopg.AsyncConnection) else psycopg.Cursor
    return kind(driver, row_factory=tuple_row)


async def _converse(cursor: Any, talk: Generator[Any, Any, list[Enqueued]]) -> list[Enqueued]:
    """The talk's rounds, one statement after the other; the caller's transaction stays open."""
    register_dumpers(cursor)
    rows: list[Any] | None = None
    while True:
        try:
            wanted = talk.send(rows)
        except StopIteration as end:
            answer: list[Enqueued] = end.value
            return answer
        rows = []
        for text, values in wanted.statements:
            await maybe_await(cursor.execute(text, values, binary=True))
            rows.append(await maybe_await(cursor.fetchall()) if cursor.description else [])


async def announce(
    core: Core, driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], types: list[str]
) -> None:
    """The hint inside the transaction: PostgreSQL sends it with the commit, and never after a rollback."""
    channel = protocol.channel(core.hub_prefix, protocol.SCHEDULED)
    cursor = _cursor(driver)
    register_dumpers(cursor)
    try:
        for type_, count in Counter(types).items():
            hint_id = str(uuid.uuid4())
            wake = Wake(channel, protocol.write_scheduled(hint_id, type_))
            await maybe_await(cursor.execute(HINT, (protocol.hint_key(core.hub_prefix, hint_id), count, LIFE_MICROS)))
            await maybe_await(cursor.execute(*notify_statement([wake])))
    finally:
        await maybe_await(cursor.close())
