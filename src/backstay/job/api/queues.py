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
        """Return all queues, each with the number of its jobs by state."""
        return await admin.list_queues(self._core)

    async def get(self, name: str) -> QueueInfo:
        """Return one queue; for an unknown name, a queue without jobs."""
        return await admin.get_queue(self._core, name)

    async def pause(self, name: str) -> None:
        """Pause a queue: workers claim none of its jobs; running jobs continue."""
        await admin.pause(self._core, name, paused=True)

    async def resume(self, name: str) -> None:
        """Resume a paused queue."""
        await admin.pause(self._core, name, paused=False)

    async def rate(self, name: str, rate: str | None, *, burst: int | None = None) -> None:
        """Limit how many jobs of a queue start in a period, over all workers: "100/minute", or None for no limit.
        `burst`: how many of them may start at once (default: all 100).
        """
        await admin.limit_queue(self._core, name, rate, burst)

    async def drain(self, name: str, timeout: Duration | None = None) -> QueueInfo:
        """Pause a queue and wait until none of its jobs run. Raises ResultTimeout after `timeout` seconds. The queue
        stays paused in both cases.
        """
        within = None if timeout is None else validation.to_seconds(timeout, "timeout", zero=True)
        return await admin.drain(self._core, name, within)
