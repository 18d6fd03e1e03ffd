"""The two ports that operations run on: `AsyncPort` for an event loop, `BlockingPort` for threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from backstay.engine.base import Op, OperationRunner, steady
from backstay.engine.capabilities import ThreadSubscriber, ThreadSubscribers
from backstay.errors import WrongLoop
from backstay.runtime.flows import Latch, run

T = TypeVar("T")


class AsyncLatch:
    """An event that any thread may set and one task waits for."""

    __slots__ = ("_flag", "_loop", "_thread", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        self._loop = loop
        self._thread = thread
        self._flag = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        if threading.get_ident() == self._thread:
            self._wake()
            return
        with suppress(RuntimeError):  # the event loop is closed, so no task waits for this latch
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._flag = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        self._flag = False

    async def wait(self, timeout: float | None) -> bool:
        if self._flag:
            return True
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_later(timeout, _expire, waiter) if timeout is not None else None
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        return self._flag


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class AsyncPort:
    """A port that awaits. It belongs to the first event loop that uses it."""

    def __init__(self, engine: OperationRunner) -> None:
        self._engine = engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._background: set[asyncio.Task[Any]] = set()

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return this port's event loop. Raises WrongLoop if another loop is running."""
        running = asyncio.get_running_loop()
        if running is not self._loop:
            if self._loop is not None:
                raise WrongLoop("this Backstay belongs to another event loop; create one per loop")
            self._loop = running
            self._thread = threading.get_ident()
        return running

    def latch(self) -> AsyncLatch:
        return AsyncLatch(self._loop or self.loop(), self._thread)

    def thread_subscribers(self) -> None:
        """Return None: on an event loop, the hub's one subscription receives the hints for all tasks."""

    def owner(self) -> object:
        return asyncio.current_task()

    def apply(self, op: Op[T]) -> Awaitable[T]:
        if asyncio.get_running_loop() is not self._loop:
            self.loop()
        return self._engine.submit(op)

    async def apply_all(self, ops: Sequence[Op[T]]) -> list[T]:
        self.loop()
        return list(await asyncio.gather(*[self._engine.submit(op) for op in ops]))

    async def for_each(
        self, do: Callable[[T], Coroutine[Any, Any, None]], things: Sequence[T], concurrency: int
    ) -> None:
        """Call `do` for each thing, in order, up to `concurrency` at a time. After the first error no call is started;
        the error is raised once the running calls have ended.
        """
        if len(things) == 1:
            await do(things[0])
            return
        rest = iter(things)
        failed = False

        async def consume() -> None:
            nonlocal failed
            for thing in rest:
                try:
                    await do(thing)
                except BaseException:
                    failed = True
                    raise
                if failed:
                    return

        self.loop()
        done = await asyncio.gather(*[consume() for _ in range(min(concurrency, len(things)))], return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    async def park(self, latch: Latch, timeout: float | None) -> bool:
        assert isinstance(latch, AsyncLatch)  # noqa: S101 - made by this port
        return await latch.wait(timeout)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def invoke(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)

    async def shield(self, coro: Coroutine[Any, Any, None], grace: float | None = None) -> None:
        task = asyncio.get_running_loop().create_task(coro)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        cancelled: asyncio.CancelledError | None = None
        ends = None if grace is None else steady() + grace
        while not task.done() and (ends is None or steady() < ends):
            try:
                await asyncio.wait([task], timeout=None if ends is None else ends - steady())
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            if task.done() and not task.cancelled():
                task.exception()
            raise cancelled
        if task.done():
            task.result()

    def signal(self, callback: Any) -> None:
        """Run `callback` on the event loop; callable from any thread."""
        if self._loop is None:
            return
        with suppress(RuntimeError):  # the loop is closed, so no task is left
            self._loop.call_soon_threadsafe(callback)

    def after_fork(self) -> None:
        self._loop = None
        self._background = set()


class BlockingPort:
    """A port that never suspends. Any thread may use it."""

    def __init__(
        self, engine: OperationRunner, subscribers: Callable[[], ThreadSubscribers | None] = lambda: None
    ) -> None:
        self._engine = engine
        self._subscribers = subscribers

    def latch(self) -> BlockingLatch:
        return BlockingLatch()

    def thread_subscribers(self) -> ThreadSubscribers | None:
        return self._subscribers()

    def owner(self) -> object:
        return threading.current_thread()

    async def apply(self, op: Op[T]) -> T:
        return self._engine.apply(op)

    async def apply_all(self, ops: Sequence[Op[T]]) -> list[T]:
        replies = self._engine.apply_many(ops)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return replies

    async def for_each(
        self, do: Callable[[T], Coroutine[Any, Any, None]], things: Sequence[T], concurrency: int
    ) -> None:
        """Call `do` for each thing, one after another."""
        for thing in things:
            await do(thing)

    async def park(self, latch: Latch, timeout: float | None) -> bool:
        return cast("BlockingLatch | ThreadSubscriber", latch).wait(timeout)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this port is the blocking one

    async def invoke(self, call: Callable[[], T]) -> T:
        return call()

    async def shield(self, coro: Coroutine[Any, Any, None], grace: float | None = None) -> None:
        run(coro)

    def signal(self, callback: Any) -> None:
        callback()

    def after_fork(self) -> None:
        pass


class BlockingLatch:
    """An event that any number of threads may wait for. It is one lock, which is free while the latch is set. Not
    `threading.Event`: a signal handler that raises in that class's Python code can leave its inner lock locked, and the
    thread that sets the event would then wait for ever.
    """

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        self._is_set = True
        with suppress(RuntimeError):  # the lock is free already: an earlier `set` was not cleared
            self._lock.release()

    def clear(self) -> None:
        """Clear the latch. If another thread calls `set` at the same time, the latch stays set, or the next `wait`
        returns once too often; no wake-up is lost.
        """
        self._is_set = False
        self._lock.acquire(blocking=False)

    def wait(self, timeout: float | None) -> bool:
        if self._is_set:
            return True
        if not self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return self._is_set
        self._wake_next()
        return True

    def _wake_next(self) -> None:
        """Free the lock again for the next thread that waits."""
        if self._is_set:
            self.set()
