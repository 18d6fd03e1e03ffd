"""The loop of every background part: call `tick()` periodically, with jitter and error backoff, until it is stopped.

Each part (heartbeat, scheduler, pruner, reload watch) is one coroutine function without a loop of its own. Any number
of processes may run the same part, so a tick must be safe to run twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from backstay.engine.jitter import RANDOM
from backstay.telemetry import Telemetry

log = logging.getLogger("backstay")

#: Backoff after a failed tick in seconds: the first pause and, after doubling, the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: Each pause varies by this fraction, so that processes that start together do not tick together (thundering herd).
JITTER = 0.1


class Loop:
    """Calls `tick` every `every` seconds, or after the number of seconds that the tick returns. A tick that raises
    emits `loop.failed` and is retried after a growing pause; it never ends the loop.
    """

    def __init__(
        self,
        tick: Callable[[], Awaitable[float | None]],
        *,
        name: str,
        every: float,
        telemetry: Telemetry,
    ) -> None:
        self.name = name
        self._tick = tick
        self._every = every
        self._telemetry = telemetry
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._stopping = False
        self._failures = 0

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Start ticking. Safe to call twice; a stopped loop starts again."""
        if self.is_running and not self._stopping:
            return
        self._stopping = False
        self._failures = 0
        self._woken = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"backstay-{self.name}")

    def wake(self) -> None:
        """Tick now instead of later. Call it on the event loop's thread."""
        self._woken.set()

    async def drain(self) -> None:
        """Start no more ticks, and wait for the running one. Safe to call twice."""
        self._stopping = True
        self._woken.set()
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait([self._task])

    async def stop(self, within: float = 5.0) -> None:
        """Start no more ticks; cancel the running one after `within` seconds. Safe to call twice."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.drain(), within)
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        woken = self._woken
        while not self._stopping:
            pause = await self._once()
            with suppress(TimeoutError):  # the pause is over; `wake`, `drain` and `stop` end it early
                await asyncio.wait_for(woken.wait(), pause)
            woken.clear()

    async def _once(self) -> float:
        try:
            delay = await self._tick()
        except Exception as error:  # noqa: BLE001 - no failure of a tick may end a background part
            self._failures += 1
            if self._failures == 1:  # log once per series of failures
                log.warning("%s failed and will be retried: %s: %s", self.name, type(error).__name__, error)
            self._telemetry.emit("loop.failed", name=self.name, why=type(error).__name__, failures=self._failures)
            pause = min(FIRST_PAUSE * 2 ** min(self._failures - 1, 16), max(LONGEST_PAUSE, self._every))
            return RANDOM.uniform(pause / 2, pause)
        self._failures = 0
        if delay is not None:
            return max(0.0, delay)
        return self._every * RANDOM.uniform(1 - JITTER, 1 + JITTER)
