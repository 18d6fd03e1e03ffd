"""The log of a chain: the logs of its jobs, one after another, with continuous line numbers.

A line's number is its number in its own job plus the last line numbers of all earlier jobs. Those jobs have ended, so
the number never changes and a reader can resume from it.
"""

from __future__ import annotations

from msgspec.structs import replace

from backstay.job.flows import send
from backstay.job.model import FINAL, LogLine
from backstay.job.store import JOB_STORE
from backstay.runtime.core import Core


class ChainLog:
    """Reads the log from a job on, and continues with the next jobs of its chain."""

    def __init__(self, core: Core, job: str) -> None:
        self._core = core
        self._store = core.services.get(JOB_STORE)
        #: The job being read, and the number of lines of the jobs before it.
        self._job = job
        self._base = 0
        #: Whether everything was read and the chain's last job has ended.
        self.ended = False

    async def read(self, after: int, limit: int) -> list[LogLine]:
        """Return lines after the line number `after`, which must not decrease from call to call."""
        while True:
            behind = max(0, after - self._base)
            lines = await self._lines(behind, limit)
            if lines:
                return lines
            job = await send(self._core, self._store.get(self._job))
            if job is not None and job.state not in FINAL:
                self.ended = False
                return []
            lines = await self._lines(behind, limit)  # lines written between the two calls precede the job's end
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
        """Find the number of an ended job's last log line by binary search. `beyond` is an upper bound."""
        low, probe = -1, beyond - 1  # first test whether line `beyond` exists: it usually is the last one
        while beyond - low > 1:
            if await send(self._core, self._store.read_log(self._job, probe, 1)):
                low = probe
            else:
                beyond = probe
            probe = (low + beyond) // 2
        return beyond
