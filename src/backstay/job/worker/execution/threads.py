"""Threads for handlers that are not async. One that does not come back is left behind, and another takes its place."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from queue import SimpleQueue
from typing import Any

Answer = Callable[[Any, BaseException | None], None]


class Errand:
    """One call in a thread. `abandon` before its end: nobody waits for it, and its thread ends with it."""

    __slots__ = ("_answer", "_call", "_context", "_threads", "abandoned", "error", "value")

    def __init__(self, threads: Threads, context: Context, call: Callable[[], Any], answer: Answer) -> None:
        self._threads = threads
        self._context = context
        self._call = call
        self._answer = answer
        self.abandoned = False
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self._context.run(self._call)
        except BaseException as error:  # noqa: BLE001 - sys.exit() in a handler ends the handler, not the thread
            self.error = error

    def tell(self) -> None:
        """On the loop."""
        if not self.abandoned:
            self._answer(self.value, self.error)

    def abandon(self) -> None:
        if not self.abandoned:
            self.abandoned = True
            self._threads.left_behind()


class Threads:
    """As many threads as there are calls at a time, made when needed, kept for the next. Daemons: a handler that hangs
    does not keep the process alive.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._errands: SimpleQueue[Errand | None] = SimpleQueue()
        self._done: deque[Errand] = deque()
        self._telling = False
        self._lock = threading.Lock()
        #: Threads that wait for an errand, and errands that wait for a thread.
        self._idle = 0
        self._closed = False
        self.alive = 0

    def call(self, context: Context, call: Callable[[], Any], answer: Answer) -> Errand:
        """Run `call` in a thread, in `context`; `answer` gets what it returned or raised, on the loop."""
        errand = Errand(self, context, call, answer)
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self.alive += 1
                threading.Thread(target=self._run, name="backstay-handler", daemon=True).start()
        self._errands.put(errand)
        return errand

    def left_behind(self) -> None:
        """A thread hangs: it counts no more."""
        with self._lock:
            self.alive -= 1

    def close(self) -> None:
        """Threads end when they are idle. Safe twice."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._errands.put(None)

    def _run(self) -> None:
        while (errand := self._errands.get()) is not None:
            errand.run()
            with self._lock:
                if errand.abandoned:
                    return
                closed = self._closed
                if not closed:
                    self._idle += 1
            self._done.append(errand)
            if not self._telling:  # one wake-up of the loop for all that end meanwhile
                self._telling = True
                with suppress(RuntimeError):  # closed: nobody waits
                    self._loop.call_soon_threadsafe(self._tell)
            if closed:
                return

    def _tell(self) -> None:
        self._telling = False  # first: whoever ends from now on calls again
        while self._done:
            self._done.popleft().tell()
