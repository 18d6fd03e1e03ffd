"""Connections from a pool that belongs to somebody else: taken for one group, and given back at once."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from typing import Any, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, TooManyRequests

from backstay.engine.base import steady
from backstay.engine.postgres.connection.pooled_session import Borrowed
from backstay.errors import EngineUnavailable

T = TypeVar("T")

#: Seconds that an event loop may take to notice that we ask, at most. One that is blocked must not hold us up.
LOOP_PATIENCE = 0.5

Pool = ConnectionPool[Any] | AsyncConnectionPool[Any]
Theirs = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


class LoopBusy(EngineUnavailable):
    """The pool's event loop does not answer, so the pool cannot be asked."""


class Lender(ABC):
    """A pool as the lanes see it, from their threads."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def borrow(self, patience: float) -> Borrowed:
        """A connection that lives, as far as one can tell without asking. Raises errors of our tree."""
        patience = min(patience, self._pool.timeout)
        until = steady() + patience
        while True:
            try:
                connection = self._take(until - steady())
            except PoolClosed as error:
                raise EngineUnavailable(self._closed()) from error
            except TooManyRequests as error:
                raise EngineUnavailable(f"{error} (max_waiting={self._pool.max_waiting})") from error
            except psycopg.OperationalError as error:
                raise EngineUnavailable(self._dry(patience)) from error
            try:
                session = Borrowed(connection)
            except BaseException:
                self._return(connection)
                raise
            if session.lives():
                return session
            self.give_back(session)

    @property
    def size(self) -> int:
        """How many it may lend at once."""
        return self._pool.max_size

    def give_back(self, session: Borrowed) -> None:
        session.restore()
        self._return(session.owner)

    @abstractmethod
    def _take(self, patience: float) -> Theirs:
        """Raises the pool's own errors, or LoopBusy."""

    @abstractmethod
    def _return(self, connection: Theirs) -> None: ...

    async def settle(self) -> None:
        """From the loop: until everything has been given back."""
        return

    def _closed(self) -> str:
        name = self._pool.name
        if getattr(self._pool, "_opened", True):
            return f"the pool {name!r} was closed by its owner; close this Backstay first, or pass it an open pool"
        return f"the pool {name!r} is not open yet: open() it before the first lock"

    def _dry(self, patience: float) -> str:
        pool = self._pool
        said = f"the pool {pool.name!r} (max_size={pool.max_size}) had no connection free within {patience:g} s"
        if failures := pool.get_stats().get("connections_errors", 0):
            return (
                f"{said}: its server may be away, for it failed to connect {failures} times (the log of psycopg.pool"
                " tells why); or all are in use"
            )
        return (
            f"{said}: let it be larger, or take locks before connections, for whoever waits for a lock with a"
            " connection in hand keeps it from others"
        )


class BlockingLender(Lender):
    """psycopg_pool's ConnectionPool: any thread may ask it."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        super().__init__(pool)
        self._blocking = pool

    def _take(self, patience: float) -> Theirs:
        connection: psycopg.Connection[Any] = self._blocking.getconn(patience)
        return connection

    def _return(self, connection: Theirs) -> None:
        self._blocking.putconn(connection)


class AsyncLender(Lender):
    """psycopg_pool's AsyncConnectionPool: asked on the event loop that it lives on."""

    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        super().__init__(pool)
        self._waiting = pool
        self.loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def _take(self, patience: float) -> Theirs:
        request = Request(patience)
        self._on_loop(lambda: self._start(self._give(request)))
        turn = min(patience, LOOP_PATIENCE)
        for event, wait in ((request.begun, turn), (request.answered, patience + turn)):
            if not event.wait(wait) and request.withdraw():
                raise LoopBusy(f"the event loop of pool {self._pool.name!r} does not answer")
        return request.result()

    async def _give(self, request: Request) -> None:
        request.begun.set()
        if request.withdrawn:
            return
        try:
            connection = await self._waiting.getconn(request.patience)
        except BaseException as error:
            request.fail(error)
            if not isinstance(error, Exception):
                raise
            return
        if not request.answer(connection):  # nobody waits any more
            await self._waiting.putconn(connection)

    def _return(self, connection: Theirs) -> None:
        try:
            self._on_loop(lambda: self._start(self._waiting.putconn(connection)))
        except LoopBusy:  # the loop has ended, and so has the pool
            connection.pgconn.finish()

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_loop(self, call: Any) -> None:
        if self.loop is None:
            raise LoopBusy(f"the pool {self._pool.name!r} has no event loop yet")
        try:
            self.loop.call_soon_threadsafe(call)
        except RuntimeError as error:
            raise LoopBusy(f"the event loop of pool {self._pool.name!r} is closed") from error

    async def settle(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks))


class Request:
    """One connection asked for by a thread and handed over on a loop: it is either taken, or given back there."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.begun = threading.Event()
        self.answered = threading.Event()
        self.withdrawn = False
        self._lock = threading.Lock()
        self._connection: Theirs | None = None
        self._error: BaseException | None = None

    def answer(self, connection: Theirs) -> bool:
        """Whether somebody takes it."""
        with self._lock:
            if self.withdrawn:
                return False
            self._connection = connection
            self.answered.set()
            return True

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = error
            self.answered.set()

    def withdraw(self) -> bool:
        """False: too late, there is an answer."""
        with self._lock:
            self.withdrawn = not self.answered.is_set()
            return self.withdrawn

    def result(self) -> Theirs:
        if isinstance(self._error, Exception):
            raise self._error
        if self._connection is None:
            raise LoopBusy("the event loop of the pool ended") from self._error
        return self._connection
