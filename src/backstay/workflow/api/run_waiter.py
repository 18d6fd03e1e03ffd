"""Wait for an event or the end of a run. Hub notifications wake the waiters; polling is the backstop.

All waiters of a process share two subscriptions. When a run has new events, `<run>:<number of its last event>` is
published on `<prefix>:events`. When it ends, its id is also published on `<prefix>:runc`, so that a caller that waits
only for the end is not woken by every event.
"""

from __future__ import annotations

from backstay.engine.base import steady
from backstay.errors import ResultTimeout
from backstay.job.api.completion_waiters import CompletionWaiters
from backstay.job.flows import BLIND_POLL, NOTIFIED_POLL, OUTAGE_PATIENCE, POLL_GROWTH
from backstay.job.run_model import RunStatus
from backstay.runtime.core import Core
from backstay.runtime.flows import Latch
from backstay.runtime.services import Service


class RunEventWaiters(CompletionWaiters):
    """Wakes the callers that follow a run's events. One per Backstay: `core.services.get(RUN_EVENT_WAITERS)`."""

    channels = ("events",)

    def _id_of(self, payload: str) -> str:
        return payload.rpartition(":")[0]


class RunEndWaiters(CompletionWaiters):
    """Wakes the callers that wait for a run's end. One per Backstay: `core.services.get(RUN_END_WAITERS)`."""

    channels = ("runc",)


RUN_EVENT_WAITERS: Service[RunEventWaiters] = Service(
    "listener for run events", RunEventWaiters, close=RunEventWaiters.close
)
RUN_END_WAITERS: Service[RunEndWaiters] = Service("listener for run ends", RunEndWaiters, close=RunEndWaiters.close)


class RunWaiter:
    """One caller's wait for a run. In a loop, the caller calls `rearm`, reads the run and, if nothing is new, calls
    `wait_for_change`; at the end, it calls `close`.
    """

    def __init__(self, core: Core, run_id: str, timeout: float | None, waiters: CompletionWaiters) -> None:
        self._core = core
        self._run = run_id
        self._waiters = waiters
        self._latch: Latch = self._waiters.add(run_id)
        self._timeout = timeout
        self._began = steady()
        self._interval = self._failing_since = 0.0
        self._rechecked = False

    def close(self) -> None:
        self._waiters.remove(self._run, self._latch)

    def rearm(self) -> None:
        """Clear the latch that a notification sets. Call this before each read of the run: then a change during the
        read sets the latch again and is not missed (lost wake-up).
        """
        self._latch.clear()

    async def pause_after_error(self, error: Exception) -> None:
        """Pause after a failed read: an engine outage does not end the wait. Raises `error` when the outage has lasted
        OUTAGE_PATIENCE seconds or reaches the timeout.
        """
        now = steady()
        self._failing_since = self._failing_since or now
        patience = (
            OUTAGE_PATIENCE
            if self._timeout is None
            else min(OUTAGE_PATIENCE, self._began + self._timeout - self._failing_since)
        )
        if now - self._failing_since >= patience:
            raise error
        await self._core.port.pause(BLIND_POLL[0])
        self._core.check_open()

    async def wait_for_change(self, status: RunStatus) -> None:
        """Wait until a notification arrives or the next poll is due. Raises ResultTimeout."""
        self._failing_since = 0.0
        left = None if self._timeout is None else self._began + self._timeout - steady()
        if left is not None and left <= 0:
            raise ResultTimeout(job_id=self._run, waited=self._timeout or 0.0, state=status)
        listening = self._waiters.is_listening
        if not listening:
            listening = await self._waiters.listen()
            if listening and not self._rechecked:
                # The change may have happened before the subscription: let the caller read once more.
                self._rechecked = True
                return
        first, last = NOTIFIED_POLL if listening else BLIND_POLL
        self._interval = min(max(first, self._interval * POLL_GROWTH), last)
        await self._core.park(self._latch, self._interval if left is None else min(self._interval, left))
