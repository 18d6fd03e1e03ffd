"""`stay.queues` of the async API: list, pause, resume, rate-limit and drain queues."""

from __future__ import annotations

import builtins

from backstay.job import admin
from backstay.job.view import QueueInfo
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration


class Queues:
    """Inspect, pause, resume, rate-limit and drain queues."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(self) -> builtins.list[QueueInfo]:
        """Return all queues with the number of their jobs by state."""
        return await admin.list_queues(self._core)

    async def get(self, name: str) -> QueueInfo:
        """Return one queue; an unknown name returns an empty queue."""
        return await admin.get_queue(self._core, name)

    async def pause(self, name: str) -> None:
        """Pause a queue: workers claim none of its jobs; running jobs continue."""
        await admin.pause(self._core, name, paused=True)

    async def resume(self, name: str) -> None:
        """Resume a paused queue."""
        await admin.pause(self._core, name, paused=False)

    async def rate(self, name: str, rate: str | None, *, burst: int | None = None) -> None:
        """Limit the rate at which jobs of a queue start, over all workers: "100/minute"; None: no limit. `burst`: how
        many may start at once (default: all of them).
        """
        await admin.limit(self._core, name, rate, burst)

    async def drain(self, name: str, timeout: Duration | None = None) -> QueueInfo:
        """Pause a queue and wait until none of its jobs run. Raises ResultTimeout; the queue stays paused."""
        within = None if timeout is None else validation.to_seconds(timeout, "timeout", zero=True)
        return await admin.drain(self._core, name, within)
