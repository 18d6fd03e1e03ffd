"""What the jobs of a chain said, one after another, as one log whose numbers go on counting.

A line's number is its own, and the last ones of the jobs before it. Those have ended: so it never changes, and whoever
comes back with it goes on behind it.
"""

from __future__ import annotations

from msgspec.structs import replace

from backstay.job.api.registry import store_of
from backstay.job.flows import send
from backstay.job.model import FINAL, LogLine
from backstay.runtime.core import Core


class ChainLog:
    """Reads from a job on, and on to those that carry its chain on."""

    def __init__(self, core: Core, job: str) -> None:
        self._core = core
        self._store = store_of(core)
        #: What is read now, and how many numbers lie before it.
        self._job = job
        self._base = 0
        #: Everything was read, and the chain's last job has ended.
        self.ended = False

    async def read(self, after: int, limit: int) -> list[LogLine]:
        """Lines behind the one with the number `after`, which grows from call to call."""
        while True:
            behind = max(0, after - self._base)
            lines = await self._lines(behind, limit)
            if lines:
                return lines
            job = await send(self._core, self._store.get(self._job))
            if job is not None and job.state not in FINAL:
                self.ended = False
                return []
            lines = await self._lines(behind, limit)  # what it said last came before its end
            if lines:
                return lines
            if job is None or not job.followed_by:
                self.ended = True
                return []
            self._base += await self._last(behind)
            self._job = job.followed_by

    async def _lines(self, behind: int, limit: int) -> list[LogLine]:
        lines = await send(self._core, self._store.read_log(self._job, behind, limit))
        return [replace(line, seq=line.seq + self._base) for line in lines] if self._base else lines

    async def _last(self, beyond: int) -> int:
        """The number of the last line of a job that has ended; there is none behind `beyond`."""
        low, probe = -1, beyond - 1  # most often it is `beyond` itself
        while beyond - low > 1:
            if await send(self._core, self._store.read_log(self._job, probe, 1)):
                low = probe
            else:
                beyond = probe
            probe = (low + beyond) // 2
        return beyond
