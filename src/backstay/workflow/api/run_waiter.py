"""Waiting for something to happen in a run, or for its end: pushed by the hub, with a poll as the backstop."""

from __future__ import annotations

from backstay.engine.base import steady
from backstay.errors import ResultTimeout
from backstay.job.api.completion_waiters import Waiters
from backstay.job.flows import AWAY, GROWTH, HEARD, UNHEARD
from backstay.job.run_model import RunStatus
from backstay.runtime.core import Core
from backstay.runtime.flows import Latch


class Vigil:
    """One caller's. `ready`, look, and `rest` when there was nothing new; `leave` in the end."""

    def __init__(self, core: Core, run_id: str, timeout: float | None, watchers: Waiters) -> None:
        self._core = core
        self._run = run_id
        self._watchers = watchers
        self._latch: Latch = self._watchers.join(run_id)
        self._timeout = timeout
        self._began = steady()
        self._nap = self._away = 0.0
        self._sure = False

    def leave(self) -> None:
        self._watchers.leave(self._run, self._latch)

    def ready(self) -> None:
        """Before each look: what happens from here on wakes."""
        self._latch.clear()

    async def trouble(self, error: Exception) -> None:
        """The run goes on without the engine's answer, and so does whoever waits for it: for a while."""
        now = steady()
        self._away = self._away or now
        patience = AWAY if self._timeout is None else min(AWAY, self._began + self._timeout - self._away)
        if now - self._away >= patience:
            raise error
        await self._core.port.pause(UNHEARD[0])
        self._core.check_open()

    async def rest(self, status: RunStatus) -> None:
        """After a look that found nothing new. Raises ResultTimeout."""
        self._away = 0.0
        left = None if self._timeout is None else self._began + self._timeout - steady()
        if left is not None and left <= 0:
            raise ResultTimeout(job_id=self._run, waited=self._timeout or 0.0, state=status)
        hears = self._watchers.hears
        if not hears:
            hears = await self._watchers.open()
            if hears and not self._sure:  # it may have passed before anybody listened
                self._sure = True
                return
        first, last = HEARD if hears else UNHEARD
        self._nap = min(max(first, self._nap * GROWTH), last)
        await self._core.port.park(self._latch, self._nap if left is None else min(self._nap, left))
        self._core.check_open()
