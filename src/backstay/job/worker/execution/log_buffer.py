"""What handlers say while they run: lines that are kept with their job. Sent in batches, in order, before its end."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from backstay.engine.base import Micros
from backstay.errors import BackstayError, EngineError
from backstay.job.flows import send
from backstay.job.store import Store
from backstay.job.worker.execution.attempt import Attempt
from backstay.runtime.core import Core
from backstay.runtime.serialization import storable

log = logging.getLogger("backstay")

#: Lines wait this long for company, and go at once when there are so many.
PATIENCE, BATCH = 0.5, 200
#: A handler that says more than a store takes loses lines, and is told how many.
MOST_WAITING = 10_000
#: A line has at most so many characters; the rest follows as another.
LONGEST_LINE = 16_000
#: While the engine is away.
AGAIN = 1.0


class Journal:
    """The log of one attempt. `say` may be called from any thread."""

    def __init__(self, core: Core, store: Store, loop: asyncio.AbstractEventLoop, attempt: Attempt) -> None:
        self._core = core
        self._store = store
        self._loop = loop
        self._attempt = attempt
        #: Filled by any thread and emptied on the loop, so it stays the same one: a line never goes to a list that has
        #: just been sent.
        self._lines: deque[tuple[Micros, str, str]] = deque()
        self._dropped = 0
        #: The loop knows that there are lines, and that there are many.
        self._told = self._hurried = False
        self._timer: asyncio.TimerHandle | None = None
        self._sending = asyncio.Lock()
        #: The number of the next line; 0: an earlier attempt may have written some.
        self._next = 0
        self._lost = False

    def say(self, data: str, stream: str) -> None:
        now = self._core.engine.now()
        data, stream = storable(data), storable(stream)
        lines = self._lines
        for start in range(0, max(1, len(data)), LONGEST_LINE):
            if len(lines) >= MOST_WAITING:
                self._dropped += 1
                continue
            lines.append((now, stream, data[start : start + LONGEST_LINE]))
        many = len(lines) >= BATCH
        if not self._told or (many and not self._hurried):
            self._told, self._hurried = True, many
            with suppress(RuntimeError):  # the loop is closed: nobody keeps it
                self._loop.call_soon_threadsafe(self._plan, 0.0 if many else PATIENCE)

    async def keep(self, lines: Sequence[tuple[Micros, str, str]]) -> None:
        """Any number of lines, none of them longer than LONGEST_LINE: comes back when they are stored, or the lease is
        lost.
        """
        self._lines += lines
        await self._flush()

    def _plan(self, delay: float) -> None:
        if self._timer is not None:
            if delay:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(delay, self._due)

    def _due(self) -> None:
        self._timer = None
        self._told = self._hurried = False  # first: whoever speaks from now on says so
        task = self._loop.create_task(self._flush())
        task.add_done_callback(_seen)

    async def close(self) -> None:
        """Send what is left. The attempt is over after this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._flush()

    async def _flush(self) -> None:
        async with self._sending:
            while self._lines and not self._lost:
                lines = [self._lines.popleft() for _ in range(len(self._lines))]
                if self._dropped:
                    lines.append((lines[-1][0], "log", f"… {self._dropped} lines were dropped: too many at once"))
                    self._dropped = 0
                await self._append(lines)

    async def _append(self, lines: list[tuple[Micros, str, str]]) -> None:
        job = self._attempt.job
        while not self._lost:
            try:
                if not self._next:
                    self._next = await self._last() + 1
                kept = await send(self._core, self._store.append_log(job.id, job.fence, lines, self._next))
            except EngineError:
                if self._attempt.why == "lost":
                    return
                await asyncio.sleep(AGAIN)
                continue
            except BackstayError as error:
                log.warning("the log of %s cannot be kept: %s", self._attempt.name, error)
                return
            if kept:
                self._next += len(lines)
            else:
                self._lost = True
            return

    async def _last(self) -> int:
        """The number of the last line that earlier attempts wrote."""
        last = 0
        while lines := await send(self._core, self._store.read_log(self._attempt.job.id, last, 1000)):
            last = lines[-1].seq
        return last


def _seen(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
