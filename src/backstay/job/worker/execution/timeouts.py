"""Time limits of handlers. One timer serves all attempts and is set to the earliest limit, so that no attempt needs a
timer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from backstay.engine.base import steady
from backstay.job.worker.execution.attempt import FOREVER, Attempt
from backstay.job.worker.slots import Slots


class Timeouts:
    """Enforces time limits: interrupts an attempt at its `timeout_at` and abandons it at its `abandon_at`."""

    def __init__(
        self, slots: Slots, on_timeout: Callable[[Attempt], None], on_abandon: Callable[[Attempt], None]
    ) -> None:
        self._slots = slots
        self._on_timeout = on_timeout
        self._on_abandon = on_abandon
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at = FOREVER

    def arm(self, at: float) -> None:
        """Check the limits no later than `at` (monotonic clock)."""
        if at >= self._at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_later(max(0.0, at - steady()), self._check)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        self._at = FOREVER
        now = steady()
        soonest = FOREVER
        for attempt in self._slots.running_attempts():
            if attempt.abandon_at <= now:
                self._on_abandon(attempt)
                continue
            if attempt.timeout_at <= now and not attempt.why:
                self._on_timeout(attempt)
            soonest = min(soonest, attempt.abandon_at, FOREVER if attempt.why else attempt.timeout_at)
        self.arm(soonest)
