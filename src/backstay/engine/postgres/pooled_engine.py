"""PostgreSQL through a user's own pool: every group borrows a connection and gives it back before it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psycopg
from psycopg import pq

from backstay.engine.base import Micros, Op, steady
from backstay.engine.commit_thread import Group
from backstay.engine.postgres.address import Address
from backstay.engine.postgres.batches.batch_connection import Lane
from backstay.engine.postgres.connection.pool_adapter import AsyncLender, Lender, LoopBusy
from backstay.engine.postgres.connection.pooled_session import SEARCH_PATH, Borrowed
from backstay.engine.postgres.connection.session import Session, check
from backstay.engine.postgres.engine import TRIES, PostgresEngine
from backstay.engine.postgres.schema import upgrade
from backstay.errors import EngineUnavailable

T = TypeVar("T")

#: Seconds that a renewal waits for the pool before it goes without: short, for the shortest leases wait for it.
SPARE_PATIENCE = 0.05
#: Seconds that a group has at least once it has a connection, however long that took.
LEAST = 1.0


class PooledEngine(PostgresEngine):
    """Two groups may borrow at once, and the keeper a third time. Where leases would be lost because the pool is dry
    or its event loop blocked, a connection of our own serves for that one group.
    """

    def __init__(
        self,
        address: Address,
        lender: Lender,
        *,
        namespace: str = "backstay",
        client_name: str = "backstay",
        clock: Callable[[], Micros] | None = None,
    ) -> None:
        self._lender: Lender | None = lender
        self.tries = TRIES + lender.size  # all that lie in the pool may have broken
        #: Learnt from the first connection.
        self._search_path: str | None = None
        super().__init__(address, namespace=namespace, client_name=client_name, clock=clock)

    @property
    def keeps_sessions(self) -> bool:
        return self._lender is None

    def _new_group(self) -> Group:
        #: The keeper has a thread of its own: nobody's wait for the pool holds renewals up.
        self._keeping = self._group_of("backstay-postgres-keep", Lane(self, spare=True))
        return super()._new_group()

    def _way(self, timeout: float | None) -> Group:
        return self._group if timeout is None or self._lender is None else self._keeping

    def submit(self, op: Op[T]) -> asyncio.Future[T]:
        if isinstance(self._lender, AsyncLender) and self._lender.loop is None:
            self._lender.loop = asyncio.get_running_loop()
        return super().submit(op)

    def session(self, patience: float | None = None, *, spare: bool = False) -> Session:
        if self._lender is None:
            return super().session()
        if patience is None:
            patience = SPARE_PATIENCE if spare else self.address.timeout
        until = steady() + self.address.timeout
        try:
            session = self._lender.borrow(patience)
        except EngineUnavailable as error:
            if spare or isinstance(error, LoopBusy):
                return super().session()
            raise
        session.until = max(until, steady() + LEAST)
        try:
            self._meet(session)
        except BaseException:
            self._lender.give_back(session)
            raise
        return session

    def _meet(self, session: Borrowed) -> None:
        if session.pgconn.transaction_status != pq.TransactionStatus.IDLE:  # left so by a check of the pool's
            session.execute(b"ROLLBACK")
        if self._search_path is not None:
            session.search_path = self._search_path
            return
        check(session.info.server_version, self.address)
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

    def let_go(self, session: Session) -> None:
        if isinstance(session, Borrowed) and self._lender is not None:
            self._lender.give_back(session)
        else:
            session.close()

    async def close(self) -> None:
        await super().close()
        if self._lender is not None:
            await self._lender.settle()

    def close_blocking(self) -> None:
        super().close_blocking()
        self._keeping.stop()

    def after_fork(self) -> None:
        """The pool stayed with the parent: its threads are not here, and its connections are the parent's."""
        self._lender = None
        super().after_fork()
