"""The log of a chain: the logs of its jobs, one after another, with continuous line numbers.

A line's number is its number in the log of its own job plus the number of the last line of each earlier job. The
earlier jobs have ended, so the number never changes and a reader can resume from it.
"""

from __future__ import annotations

from msgspec.structs import replace

from backstay.job.flows import send
from backstay.job.model import FINAL, LogLine
from backstay.job.store import JOB_STORE
from backstay.runtime.core import Core


class ChainLog:
    """Reads the log of a job and then the logs of the next jobs of its chain."""

    def __init__(self, core: Core, job: str) -> None:
        self._core = core
        self._store = core.services.get(JOB_STORE)
        #: The id of the job whose log is being read.
        self._job = job
        #: The sum of the last line numbers of all earlier jobs of the chain.
        self._base = 0
        #: Whether everything was read and the chain's last job has ended.
        self.ended = False

    async def read(self, after: int, limit: int) -> list[LogLine]:
        """Return lines after the line number `after`, which must not decrease from call to call."""
        while True:
            read_up_to = max(0, after - self._base)
            lines = await self._lines(read_up_to, limit)
            if lines:
                return lines
            job = await send(self._core, self._store.get(self._job))
            if job is not None and job.state not in FINAL:
                self.ended = False
                return []
            # The job may have written further lines between the first read and its end.
            lines = await self._lines(read_up_to, limit)
            if lines:
                return lines
            if job is None or not job.followed_by:
                self.ended = True
                return []
            self._base += await self._last_number(read_up_to)
            self._job = job.followed_by

    async def _lines(self, after: int, limit: int) -> list[LogLine]:
        lines = await send(self._core, self._store.read_log(self._job, after, limit))
        return [replace(line, seq=line.seq + self._base) for line in lines] if self._base else lines

    async def _last_number(self, bound: int) -> int:
        """Return the number of the last log line of the job being read. The job has ended, and its last line number is
        at most `bound`. No operation of the store returns this number, so find it by a binary search.
        """
        low, probe = -1, bound - 1  # first test whether line `bound` exists: it usually is the last one
        while bound - low > 1:
            if await send(self._core, self._store.read_log(self._job, probe, 1)):
                low = probe
            else:
                bound = probe
            probe = (low + bound) // 2
        return bound
