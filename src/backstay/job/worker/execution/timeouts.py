"""Time limits of handlers: one timer for all of them, set to the earliest. A job that ends in time costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from backstay.engine.base import steady
from backstay.job.worker.execution.attempt import FOREVER, Attempt
from backstay.job.worker.slots import Slots


class Overtime:
    """At `soft` an attempt is asked to end; at `hard` nobody waits for it any more."""

    def __init__(self, slots: Slots, late: Callable[[Attempt], None], abandon: Callable[[Attempt], None]) -> None:
        self._slots = slots
        self._late = late
        self._abandon = abandon
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at = FOREVER

    def arm(self, at: float) -> None:
        """Look at the latest then (steady)."""
        if at >= self._at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_later(max(0.0, at - steady()), self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        self._at = FOREVER
        now = steady()
        soonest = FOREVER
        for attempt in self._slots.running():
            if attempt.hard <= now:
                self._abandon(attempt)
                continue
            if attempt.soft <= now and not attempt.why:
                self._late(attempt)
            soonest = min(soonest, attempt.hard, FOREVER if attempt.why else attempt.soft)
        self.arm(soonest)
