"""Logs of jobs over HTTP: what workers send, numbered so that nothing is stored twice, and what others read."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from backstay.engine.base import Micros
from backstay.idempotency.api import Idempotency
from backstay.job.api.chain_log import ChainLog
from backstay.job.flows import send
from backstay.job.model import LogLine
from backstay.job.store import Store
from backstay.runtime.core import Core
from backstay.server.http.sse import Page, event
from backstay.server.schemas.jobs import LogChunk, LogChunkIn

#: Leases whose place in their job's log is remembered; of others it is found again.
MOST = 10_000
PAGE = 1000
#: What one look of a stream reads, in bytes and in lines at least.
PAGE_BYTES, FEWEST = 1024 * 1024, 50
#: How long it is known where a lease's chunks begin, and how long one server may take to find out, in seconds.
KEPT, LEASE = 7 * 86400.0, 5.0

Line = tuple[Micros, str, str]

_encode = msgspec.json.Encoder().encode


class Cursor:
    """Where a lease's chunks go: the one with sequence s has the number base + s + 1."""

    __slots__ = ("base", "known", "lock", "next")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.base = 0
        #: For chunks without a sequence.
        self.next = 1
        self.known = False


class Logbook:
    def __init__(self, core: Core, store: Store, once: Idempotency) -> None:
        self._core = core
        self._store = store
        self._once = once
        self._cursors: OrderedDict[str, Cursor] = OrderedDict()

    async def append(self, lease: str, job: str, fence: int, chunks: Sequence[LogChunkIn]) -> bool:
        """In order, once each. False: the lease is not current."""
        cursor = self._cursors.get(lease)
        if cursor is None:
            cursor = self._cursors[lease] = Cursor()
            if len(self._cursors) > MOST:
                self._cursors.popitem(last=False)
        now = self._core.engine.now()
        lines = [(chunk.timestamp_ms * 1000 or now, chunk.stream, chunk.data) for chunk in chunks]
        async with cursor.lock:
            if not cursor.known and not await self._find(cursor, lease, job, fence):
                return False
            if any(chunk.sequence is None for chunk in chunks):  # others may have written meanwhile
                cursor.next = 1 + await self._last(job, cursor.next - 1)
            for first, group in self._groups(cursor, chunks, lines):
                if not await send(self._core, self._store.append_log(job, fence, group, first)):
                    return False
                cursor.next = max(cursor.next, first + len(group))
        return True

    @staticmethod
    def _groups(cursor: Cursor, chunks: Sequence[LogChunkIn], lines: Sequence[Line]) -> list[tuple[int, list[Line]]]:
        """Runs of neighbours, each with the number of its first."""
        groups: list[tuple[int, list[Line]]] = []
        coming = cursor.next
        for chunk, line in zip(chunks, lines, strict=True):
            number = coming if chunk.sequence is None else cursor.base + chunk.sequence + 1
            if groups and groups[-1][0] + len(groups[-1][1]) == number:
                groups[-1][1].append(line)
            else:
                groups.append((number, [line]))
            coming = number + 1
        return groups

    async def _find(self, cursor: Cursor, lease: str, job: str, fence: int) -> bool:
        """Where this lease's chunks begin: behind whatever was written before. Found once for all servers and kept, so
        that a chunk has one number wherever it is sent, and however often. False: the lease is not current.
        """
        found = await send(self._core, self._store.get(job))
        if found is None or found.state != "running" or found.fence != fence:
            return False

        async def base() -> int:
            return await self._last(job)

        cursor.base = await self._once.run(f"http-log:{lease}", base, ttl=KEPT, lease=LEASE)
        cursor.next = cursor.base + 1
        cursor.known = True
        return True

    async def _last(self, job: str, last: int = 0) -> int:
        """The number of the last chunk that there is, from a known one on."""
        while lines := await send(self._core, self._store.read_log(job, last, PAGE)):
            last = lines[-1].seq
        return last


def chunk_of(line: LogLine, workflow: str, run: str, name: str) -> LogChunk:
    return LogChunk(
        workflow_id=workflow,
        run_id=run,
        job_id=name,
        sequence=line.seq,
        data=line.data,
        timestamp_ms=line.at // 1000,
        stream=line.stream,
    )


class LogSource:
    """A job's log as it grows. Ends when the job has ended and everything was read; a job that another one carries on
    (a decision by what was decided about) ends with that one.
    """

    #: Workers that speak to the engine write without a word to us: look often while something may come.
    first_look = 0.1
    last_look = 0.5

    def __init__(self, core: Core, job: str, after: int, workflow: str, run: str, name: str) -> None:
        self.topic = f"log:{job}"
        self._log = ChainLog(core, job)
        self._after = after
        self._names = (workflow, run, name)
        #: As many lines as make about so many bytes, going by those before.
        self._limit = FEWEST

    async def look(self) -> Page:
        limit = self._limit
        lines = await self._log.read(self._after, limit)
        if not lines:
            return Page([], ended=self._log.ended)
        self._after = lines[-1].seq
        size = sum(len(line.data) for line in lines) // len(lines) + 1
        self._limit = max(FEWEST, min(PAGE, PAGE_BYTES // size, limit * 4))
        return Page([self._event(line) for line in lines], more=len(lines) == limit)

    def _event(self, line: LogLine) -> bytes:
        return event("log", _encode(chunk_of(line, *self._names)), str(line.seq))
