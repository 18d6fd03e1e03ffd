"""Background parts share one `Loop`: a `tick()` again and again, until it is stopped.

Every part (heartbeat, scheduler, pruner, reload watch) is one coroutine function without a loop of its own. Any number
of processes may run the same part: what a tick does must be safe twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from backstay.telemetry import Telemetry

log = logging.getLogger("backstay")

#: After a failed tick: the first pause, and the longest one that doubling reaches.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: Fleets start together; their ticks need not stay together.
JITTER = 0.1


class Loop:
    """Calls `tick` every `every` seconds, or when the tick itself says: it may answer seconds. A tick that raises is
    told to telemetry (`loop.failed`) and tried again after a growing pause; it never ends the loop.
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
        """Tick from now on. Safe twice; one that was stopped begins anew."""
        if self.is_running and not self._stopping:
            return
        self._stopping = False
        self._failures = 0
        self._woken = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"backstay-{self.name}")

    def wake(self) -> None:
        """Tick now instead of later. From the loop's own thread."""
        self._woken.set()

    async def drain(self) -> None:
        """No more ticks; the one under way is waited for. Safe twice."""
        self._stopping = True
        self._woken.set()
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait([self._task])

    async def stop(self, within: float = 5.0) -> None:
        """No more ticks; the one under way has `within` seconds, then it is cancelled. Safe twice."""
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
            with suppress(TimeoutError):  # whoever stops it wakes it, too
                await asyncio.wait_for(woken.wait(), pause)
            woken.clear()

    async def _once(self) -> float:
        try:
            asked = await self._tick()
        except Exception as error:  # noqa: BLE001 - a background part goes on, whatever a tick met
            self._failures += 1
            if self._failures == 1:  # once for each spell of trouble
                log.warning("%s failed and will be tried again: %s: %s", self.name, type(error).__name__, error)
            self._telemetry.emit("loop.failed", name=self.name, why=type(error).__name__, failures=self._failures)
            pause = min(FIRST_PAUSE * 2 ** min(self._failures - 1, 16), max(LONGEST_PAUSE, self._every))
            return random.uniform(pause / 2, pause)
        self._failures = 0
        if asked is not None:
            return max(0.0, asked)
        return self._every * random.uniform(1 - JITTER, 1 + JITTER)
