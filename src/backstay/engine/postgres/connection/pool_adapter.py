"""Adapters for the caller's psycopg pool: a connection is borrowed for one batch and returned right after it."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from typing import Any, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, TooManyRequests

from backstay.engine.base import steady
from backstay.engine.postgres.connection.pooled_session import PooledSession
from backstay.errors import EngineUnavailable

T = TypeVar("T")

#: Seconds that the pool's event loop may take to start a request. A blocked loop must not block the engine's threads.
LOOP_PATIENCE = 0.5

Pool = ConnectionPool[Any] | AsyncConnectionPool[Any]
CallerConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


class LoopBusy(EngineUnavailable):
    """The pool's event loop does not respond, so no connection can be borrowed."""


class PoolAdapter(ABC):
    """Borrows connections from a pool for the engine's threads. Thread-safe."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def borrow(self, patience: float) -> PooledSession:
        """Borrow a connection from the pool, or raise EngineUnavailable after `patience` seconds. A connection that the
        server has closed is given back and another one borrowed, if the close is visible without a round trip.
        """
        patience = min(patience, self._pool.timeout)
        until = steady() + patience
        while True:
            try:
                connection = self._take(until - steady())
            except PoolClosed as error:
                raise EngineUnavailable(self._closed_text()) from error
            except TooManyRequests as error:
                raise EngineUnavailable(f"{error} (max_waiting={self._pool.max_waiting})") from error
            except psycopg.OperationalError as error:
                raise EngineUnavailable(self._exhausted_text(patience)) from error
            try:
                session = PooledSession(connection)
            except BaseException:
                self._return(connection)
                raise
            if session.is_alive():
                return session
            self.give_back(session)

    @property
    def size(self) -> int:
        """The largest number of connections in the pool."""
        return self._pool.max_size

    def give_back(self, session: PooledSession) -> None:
        session.restore()
        self._return(session.owner)

    @abstractmethod
    def _take(self, patience: float) -> CallerConnection:
        """Take a connection from the pool. Raises the pool's own errors, or LoopBusy."""

    @abstractmethod
    def _return(self, connection: CallerConnection) -> None: ...

    async def wait_returned(self) -> None:
        """Wait, on the pool's event loop, until all borrowed connections are returned."""
        return

    def _closed_text(self) -> str:
        name = self._pool.name
        if getattr(self._pool, "_opened", True):
            return f"the pool {name!r} was closed by its owner; close this Backstay first, or pass it an open pool"
        return f"the pool {name!r} is not open yet: call its open() before the first lock"

    def _exhausted_text(self, patience: float) -> str:
        pool = self._pool
        what = f"the pool {pool.name!r} (max_size={pool.max_size}) had no connection free within {patience:g} s"
        if failures := pool.get_stats().get("connections_errors", 0):
            return (
                f"{what}: it failed to connect {failures} times, so its server may be down (see the log of"
                " psycopg.pool); or all its connections are in use"
            )
        return (
            f"{what}: raise max_size, or acquire locks before taking a connection, because code that waits for a lock"
            " while it holds a connection keeps that connection from others"
        )


class BlockingPoolAdapter(PoolAdapter):
    """An adapter for psycopg_pool's ConnectionPool, which any thread may use."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        super().__init__(pool)
        self._blocking = pool

    def _take(self, patience: float) -> CallerConnection:
        connection: psycopg.Connection[Any] = self._blocking.getconn(patience)
        return connection

    def _return(self, connection: CallerConnection) -> None:
        self._blocking.putconn(connection)


class AsyncPoolAdapter(PoolAdapter):
    """An adapter for psycopg_pool's AsyncConnectionPool: threads make requests, the pool's event loop serves them."""

    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        super().__init__(pool)
        self._async_pool = pool
        self.loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def _take(self, patience: float) -> CallerConnection:
        request = ConnectionRequest(patience)
        self._on_loop(lambda: self._start(self._serve(request)))
        grace = min(patience, LOOP_PATIENCE)
        for event, wait in ((request.started, grace), (request.done, patience + grace)):
            if not event.wait(wait) and request.withdraw():
                raise LoopBusy(f"the event loop of pool {self._pool.name!r} does not answer")
        return request.result()

    async def _serve(self, request: ConnectionRequest) -> None:
        request.started.set()
        if request.withdrawn:
            return
        try:
            connection = await self._async_pool.getconn(request.patience)
        except BaseException as error:
            request.fail(error)
            if not isinstance(error, Exception):
                raise
            return
        if not request.fulfil(connection):  # the thread no longer waits
            await self._async_pool.putconn(connection)

    def _return(self, connection: CallerConnection) -> None:
        try:
            self._on_loop(lambda: self._start(self._async_pool.putconn(connection)))
        except LoopBusy:  # the loop is closed, and with it the pool
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

    async def wait_returned(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks))


class ConnectionRequest:
    """A thread's request for a connection, served on the pool's event loop. The connection is never leaked: the thread
    takes it, or the loop returns it to the pool.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.started = threading.Event()
        self.done = threading.Event()
        self.withdrawn = False
        self._lock = threading.Lock()
        self._connection: CallerConnection | None = None
        self._error: BaseException | None = None

    def fulfil(self, connection: CallerConnection) -> bool:
        """Give the connection to the thread. Returns False if the thread no longer waits for it."""
        with self._lock:
            if self.withdrawn:
                return False
            self._connection = connection
            self.done.set()
            return True

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = error
            self.done.set()

    def withdraw(self) -> bool:
        """Stop waiting for the connection. Returns False if the request is already done."""
        with self._lock:
            self.withdrawn = not self.done.is_set()
            return self.withdrawn

    def result(self) -> CallerConnection:
        if isinstance(self._error, Exception):
            raise self._error
        if self._connection is None:
            raise LoopBusy("the event loop of the pool ended") from self._error
        return self._connection
