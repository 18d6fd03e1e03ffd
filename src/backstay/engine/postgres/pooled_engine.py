"""The PostgreSQL engine on the caller's pool. A batch returns its borrowed connection before callers get results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psycopg
from psycopg import pq

from backstay.engine.base import Micros, Op, steady
from backstay.engine.commit_thread import CommitThread
from backstay.engine.postgres.address import Address
from backstay.engine.postgres.batches.batch_connection import BatchConnection
from backstay.engine.postgres.connection.pool_adapter import AsyncPoolAdapter, LoopBusy, PoolAdapter
from backstay.engine.postgres.connection.pooled_session import SEARCH_PATH, PooledSession
from backstay.engine.postgres.connection.session import Session, check_version
from backstay.engine.postgres.engine import TRIES, PostgresEngine
from backstay.engine.postgres.schema import upgrade
from backstay.errors import EngineUnavailable

T = TypeVar("T")

#: Seconds that a lease renewal waits for the pool before it opens its own connection. The shortest leases would expire
#: during a longer wait.
SPARE_PATIENCE = 0.05
#: The time-out of a batch includes the wait for a connection of the pool. Once the batch has a connection, it may run
#: for at least this many seconds, even if less of its time-out is left.
LEAST = 1.0


class PooledEngine(PostgresEngine):
    """Borrows a connection from the caller's pool for each batch: up to two at a time for machine commands, and one for
    the keeper. So that no lease is lost, a lease renewal opens a connection of its own if the pool has none free. Every
    batch does so if the event loop of an async pool is blocked.
    """

    def __init__(
        self,
        address: Address,
        pool_adapter: PoolAdapter,
        *,
        namespace: str = "backstay",
        client_name: str = "backstay",
        clock: Callable[[], Micros] | None = None,
    ) -> None:
        self._pool_adapter: PoolAdapter | None = pool_adapter
        self.tries = TRIES + pool_adapter.size  # a try may fail on a broken connection; the pool has at most `size`
        #: The pool's default search_path, read from its first connection.
        self._search_path: str | None = None
        super().__init__(address, namespace=namespace, client_name=client_name, clock=clock)

    @property
    def keeps_sessions(self) -> bool:
        return self._pool_adapter is None

    def _new_commit_thread(self) -> CommitThread:
        #: A second commit thread, for lease renewals only. On the first one, a renewal could wait behind a batch that
        #: waits for a free connection.
        self._keeping = self._serve("backstay-postgres-keep", BatchConnection(self, spare=True))
        return super()._new_commit_thread()

    def _thread_for(self, timeout: float | None) -> CommitThread:
        return self._commit_thread if timeout is None or self._pool_adapter is None else self._keeping

    def submit(self, op: Op[T]) -> asyncio.Future[T]:
        if isinstance(self._pool_adapter, AsyncPoolAdapter) and self._pool_adapter.loop is None:
            self._pool_adapter.loop = asyncio.get_running_loop()
        return super().submit(op)

    def session(self, patience: float | None = None, *, spare: bool = False) -> Session:
        if self._pool_adapter is None:
            return super().session()
        if patience is None:
            patience = SPARE_PATIENCE if spare else self.address.timeout
        until = steady() + self.address.timeout
        try:
            session = self._pool_adapter.borrow(patience)
        except EngineUnavailable as error:
            if spare or isinstance(error, LoopBusy):
                return super().session()
            raise
        session.until = max(until, steady() + LEAST)
        try:
            self._prepare(session)
        except BaseException:
            self._pool_adapter.give_back(session)
            raise
        return session

    def _prepare(self, session: PooledSession) -> None:
        if session.pgconn.transaction_status != pq.TransactionStatus.IDLE:  # the pool's check left a transaction open
            session.execute(b"ROLLBACK")
        if self._search_path is not None:
            session.search_path = self._search_path
            return
        check_version(session.info.server_version, self.address)
        ((path,),) = session.execute(SEARCH_PATH).fetchall()
        session.search_path = str(path)
        session.begin()
        try:
            upgrade(session, str(self))
            session.execute(b"COMMIT")
        except BaseException:
            with suppress(psycopg.Error):
                session.execute(b"ROLLBACK")
            raise
        self._search_path = session.search_path

    def release_session(self, session: Session) -> None:
        if isinstance(session, PooledSession) and self._pool_adapter is not None:
            self._pool_adapter.give_back(session)
        else:
            session.close()

    async def close(self) -> None:
        await super().close()
        if self._pool_adapter is not None:
            await self._pool_adapter.wait_returned()

    def close_blocking(self) -> None:
        super().close_blocking()
        self._keeping.stop()

    def after_fork(self) -> None:
        """Stop using the pool: its threads exist only in the parent, and its connections belong to the parent."""
        self._pool_adapter = None
        super().after_fork()
