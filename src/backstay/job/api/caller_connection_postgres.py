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
from backstay.engine.postgres.connection.arrays import teach
from backstay.engine.postgres.notify import note
from backstay.errors import ConfigError
from backstay.hub import protocol
from backstay.hub.base import LIFE_MICROS
from backstay.job.model import Enqueued, NewJob
from backstay.job.stores.postgres.store import PostgresStore
from backstay.runtime.core import Core
from backstay.runtime.maybe_await import settled

#: µs by the server's clock, as the engine's own statements take it.
HINT = (
    "INSERT INTO backstay_hint_counter (hint, remaining, keep_until)"
    " VALUES (%s, %s, CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint) + %s)"
)


async def enqueue(core: Core, driver: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """All of them, or none: a savepoint of its own, so that a refusal leaves the caller's transaction as it was."""
    if driver.autocommit and driver.info.transaction_status == TransactionStatus.IDLE:
        raise ConfigError(
            "this connection commits every statement by itself; open a transaction first: with conn.transaction()"
        )
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
        await settled(cursor.execute("SAVEPOINT backstay_on"))
        try:
            done = await _converse(cursor, talk)
        except BaseException as error:
            if driver.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                await settled(cursor.execute("ROLLBACK TO SAVEPOINT backstay_on"))
                await settled(cursor.execute("RELEASE SAVEPOINT backstay_on"))
            if isinstance(error, pg.UndefinedTable):
                raise ConfigError(
                    "this database has no tables of Backstay's where the connection looks for them: pass one to the"
                    " database in which the jobs are kept, and open the Backstay or run `backstay migrate` first"
                ) from error
            raise
        await settled(cursor.execute("RELEASE SAVEPOINT backstay_on"))
        return done
    finally:
        await settled(cursor.close())


def _cursor(driver: Any) -> Any:
    """A plain one, whatever kind the caller's connection makes by itself: Django's writes values into the text."""
    kind: Any = psycopg.AsyncCursor if isinstance(driver, psycopg.AsyncConnection) else psycopg.Cursor
    return kind(driver, row_factory=tuple_row)


async def _converse(cursor: Any, talk: Generator[Any, Any, list[Enqueued]]) -> list[Enqueued]:
    """The talk's rounds, one statement after the other; the caller's transaction stays open."""
    teach(cursor)
    rows: list[Any] | None = None
    while True:
        try:
            wanted = talk.send(rows)
        except StopIteration as end:
            answer: list[Enqueued] = end.value
            return answer
        rows = []
        for text, values in wanted.statements:
            await settled(cursor.execute(text, values, binary=True))
            rows.append(await settled(cursor.fetchall()) if cursor.description else [])


async def announce(
    core: Core, driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], types: list[str]
) -> None:
    """The hint inside the transaction: PostgreSQL sends it with the commit, and never after a rollback."""
    channel = protocol.channel(core.hub_prefix, protocol.SCHEDULED)
    cursor = _cursor(driver)
    teach(cursor)
    try:
        for type_, count in Counter(types).items():
            hint_id = str(uuid.uuid4())
            wake = Wake(channel, protocol.write_scheduled(hint_id, type_))
            await settled(cursor.execute(HINT, (protocol.hint_key(core.hub_prefix, hint_id), count, LIFE_MICROS)))
            await settled(cursor.execute(*note([wake])))
    finally:
        await settled(cursor.close())
