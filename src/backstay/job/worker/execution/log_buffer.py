"""The log buffer of an attempt: stores its log lines in batches and in order, all of them before the attempt ends."""

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
from backstay.runtime.serialization import escape_surrogates

log = logging.getLogger("backstay")

#: Lines are sent PATIENCE seconds after the first of them was written, or at once when BATCH of them are buffered.
PATIENCE, BATCH = 0.5, 200
#: The most lines that are buffered. Further lines are dropped, and a line in the job's log states how many.
MOST_WAITING = 10_000
#: The longest line, in characters; a longer one is split into several.
LONGEST_LINE = 16_000
#: Seconds between attempts to store lines while the engine is unavailable.
RETRY_PAUSE = 1.0


class LogBuffer:
    """Buffers the log of one attempt. `write` is thread-safe; everything else runs on the event loop."""

    def __init__(self, core: Core, store: Store, loop: asyncio.AbstractEventLoop, attempt: Attempt) -> None:
        self._core = core
        self._store = store
        self._loop = loop
        self._attempt = attempt
        #: Filled by any thread and emptied on the event loop. The deque is never replaced by another: a thread could
        #: append a line to the old one after it was sent, and the line would be lost.
        self._lines: deque[tuple[Micros, str, str]] = deque()
        self._dropped = 0
        #: `_flush_planned`: a flush will run on the event loop, usually after PATIENCE seconds. `_flush_urgent`: it
        #: will run at once, because BATCH lines are buffered.
        self._flush_planned = self._flush_urgent = False
        self._timer: asyncio.TimerHandle | None = None
        self._sending = asyncio.Lock()
        #: The sequence number of the next line. 0: not known yet, because earlier attempts may have stored lines.
        self._next = 0
        self._lease_lost = False

    def write(self, data: str, stream: str) -> None:
        now = self._core.engine.now()
        data, stream = escape_surrogates(data), escape_surrogates(stream)
        lines = self._lines
        for start in range(0, max(1, len(data)), LONGEST_LINE):
            if len(lines) >= MOST_WAITING:
                self._dropped += 1
                continue
            lines.append((now, stream, data[start : start + LONGEST_LINE]))
        many = len(lines) >= BATCH
        if not self._flush_planned or (many and not self._flush_urgent):
            self._flush_planned, self._flush_urgent = True, many
            with suppress(RuntimeError):  # the loop is closed: the lines cannot be stored
                self._loop.call_soon_threadsafe(self._plan_flush, 0.0 if many else PATIENCE)

    async def write_all(self, lines: Sequence[tuple[Micros, str, str]]) -> None:
        """Add lines, each at most LONGEST_LINE long, and wait until they are stored or the lease is lost."""
        self._lines += lines
        await self._flush()

    def _plan_flush(self, delay: float) -> None:
        if self._timer is not None:
            if delay:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._flush_planned = self._flush_urgent = False  # reset first: a line written from now on plans another flush
        task = self._loop.create_task(self._flush())
        task.add_done_callback(_consume_exception)

    async def close(self) -> None:
        """Store the remaining lines. Called once, before the attempt finishes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._flush()

    async def _flush(self) -> None:
        async with self._sending:
            while self._lines and not self._lease_lost:
                lines = [self._lines.popleft() for _ in range(len(self._lines))]
                if self._dropped:
                    lines.append((lines[-1][0], "log", f"… {self._dropped} lines dropped: too many at once"))
                    self._dropped = 0
                await self._append(lines)

    async def _append(self, lines: list[tuple[Micros, str, str]]) -> None:
        job = self._attempt.job
        while not self._lease_lost:
            try:
                if not self._next:
                    self._next = await self._last_seq() + 1
                kept = await send(self._core, self._store.append_log(job.id, job.fence, lines, self._next))
            except BackstayError as error:
                if not isinstance(error, EngineError) or error.is_permanent:
                    log.warning("the log of %s cannot be stored: %s", self._attempt.name, error)
                    return
                if self._attempt.why == "lost":
                    return
                await asyncio.sleep(RETRY_PAUSE)
                continue
            if kept:
                self._next += len(lines)
            else:
                self._lease_lost = True
            return

    async def _last_seq(self) -> int:
        """Return the sequence number of the last line that earlier attempts have stored; 0: there is none."""
        last = 0
        while lines := await send(self._core, self._store.read_log(self._attempt.job.id, last, 1000)):
            last = lines[-1].seq
        return last


def _consume_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
