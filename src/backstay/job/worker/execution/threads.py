"""A thread pool for handlers that are not async. A thread whose handler hangs is abandoned and replaced."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from queue import SimpleQueue
from typing import Any

OnResult = Callable[[Any, BaseException | None], None]


class ThreadCall:
    """One call in a pool thread. After `abandon`, its result is dropped, and its thread ends when the call returns."""

    __slots__ = ("_call", "_context", "_on_result", "_threads", "abandoned", "error", "value")

    def __init__(self, threads: Threads, context: Context, call: Callable[[], Any], on_result: OnResult) -> None:
        self._threads = threads
        self._context = context
        self._call = call
        self._on_result = on_result
        self.abandoned = False
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self._context.run(self._call)
        except BaseException as error:  # noqa: BLE001 - sys.exit() in a handler ends the handler, not the thread
            self.error = error

    def deliver(self) -> None:
        """Pass the result to the callback, on the event loop."""
        if not self.abandoned:
            self._on_result(self.value, self.error)

    def abandon(self) -> None:
        if not self.abandoned:
            self.abandoned = True
            self._threads.drop_thread()


class Threads:
    """A pool with one thread per concurrent call, started on demand and reused. All are daemon threads, so a handler
    that hangs does not keep the process alive.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: SimpleQueue[ThreadCall | None] = SimpleQueue()
        self._done: deque[ThreadCall] = deque()
        self._delivery_scheduled = False
        self._lock = threading.Lock()
        #: How many threads are free for a new call. A thread that waits, but for which a call is already queued, does
        #: not count.
        self._idle = 0
        self._closed = False
        self.alive = 0

    def call(self, context: Context, call: Callable[[], Any], on_result: OnResult) -> ThreadCall:
        """Run `call` in a pool thread, with the context variables of `context`. `on_result` is called on the event loop
        with its result or exception.
        """
        thread_call = ThreadCall(self, context, call, on_result)
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self.alive += 1
                threading.Thread(target=self._run, name="backstay-handler", daemon=True).start()
        self._calls.put(thread_call)
        return thread_call

    def drop_thread(self) -> None:
        """Stop counting the thread of an abandoned call as alive."""
        with self._lock:
            self.alive -= 1

    def close(self) -> None:
        """End every thread once it is idle. Safe to call twice."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._calls.put(None)

    def _run(self) -> None:
        while (thread_call := self._calls.get()) is not None:
            thread_call.run()
            with self._lock:
                if thread_call.abandoned:
                    return
                closed = self._closed
                if not closed:
                    self._idle += 1
            self._done.append(thread_call)
            if not self._delivery_scheduled:  # one callback on the event loop delivers the results of many calls
                self._delivery_scheduled = True
                with suppress(RuntimeError):  # the loop is closed: nothing waits for the result
                    self._loop.call_soon_threadsafe(self._deliver_done)
            if closed:
                return

    def _deliver_done(self) -> None:
        self._delivery_scheduled = False  # reset first: a call that ends from now on schedules another delivery
        while self._done:
            self._done.popleft().deliver()
