"""Job logs over HTTP: chunks from workers, numbered so that none is stored twice, and log streams for readers."""

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

#: Leases whose cursor is cached; others are resolved again.
MAX_CURSORS = 10_000
PAGE = 1000
#: The target size of one poll of a stream in bytes, and the fewest lines that it reads.
PAGE_BYTES, MIN_LINES = 1024 * 1024, 50
#: Seconds: how long the base number of a lease's chunks is kept, and the lease of the server that determines it.
BASE_TTL, BASE_LEASE = 7 * 86400.0, 5.0

Line = tuple[Micros, str, str]

_encode = msgspec.json.Encoder().encode


class Cursor:
    """The numbering of a lease's chunks: the chunk with sequence s gets the number base + s + 1."""

    __slots__ = ("base", "known", "lock", "next")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.base = 0
        #: The number of the next chunk without a sequence.
        self.next = 1
        self.known = False


class JobLogs:
    """Appends log chunks of HTTP workers. Appends under one lease are serialized per server."""

    def __init__(self, core: Core, store: Store, idempotency: Idempotency) -> None:
        self._core = core
        self._store = store
        self._idempotency = idempotency
        self._cursors: OrderedDict[str, Cursor] = OrderedDict()

    async def append(self, lease: str, job: str, fence: int, chunks: Sequence[LogChunkIn]) -> bool:
        """Store chunks in order, each once. Returns False when the lease is not current."""
        cursor = self._cursors.get(lease)
        if cursor is None:
            cursor = self._cursors[lease] = Cursor()
            if len(self._cursors) > MAX_CURSORS:
                self._cursors.popitem(last=False)
        now = self._core.engine.now()
        lines = [(chunk.timestamp_ms * 1000 or now, chunk.stream, chunk.data) for chunk in chunks]
        async with cursor.lock:
            if not cursor.known and not await self._find_base(cursor, lease, job, fence):
                return False
            if any(chunk.sequence is None for chunk in chunks):  # another server may have appended meanwhile
                cursor.next = 1 + await self._last_number(job, cursor.next - 1)
            for first, group in self._group_consecutive(cursor, chunks, lines):
                if not await send(self._core, self._store.append_log(job, fence, group, first)):
                    return False
                cursor.next = max(cursor.next, first + len(group))
        return True

    @staticmethod
    def _group_consecutive(
        cursor: Cursor, chunks: Sequence[LogChunkIn], lines: Sequence[Line]
    ) -> list[tuple[int, list[Line]]]:
        """Group chunks with consecutive numbers. Returns each group with the number of its first chunk."""
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

    async def _find_base(self, cursor: Cursor, lease: str, job: str, fence: int) -> bool:
        """Determine where this lease's chunks begin: behind all earlier lines. An idempotent call agrees on it across
        servers, so a chunk has one number at whichever server, and however often, it arrives. Returns False when the
        lease is not current.
        """
        found = await send(self._core, self._store.get(job))
        if found is None or found.state != "running" or found.fence != fence:
            return False

        async def base() -> int:
            return await self._last_number(job)

        cursor.base = await self._idempotency.run(f"http-log:{lease}", base, ttl=BASE_TTL, lease=BASE_LEASE)
        cursor.next = cursor.base + 1
        cursor.known = True
        return True

    async def _last_number(self, job: str, last: int = 0) -> int:
        """Return the number of the last stored line; the search starts at `last`."""
        while lines := await send(self._core, self._store.read_log(job, last, PAGE)):
            last = lines[-1].seq
        return last


def build_chunk(line: LogLine, workflow: str, run: str, name: str) -> LogChunk:
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
    """A job's log as it grows. Ends when the job's chain has ended and all lines were read: a decision job ends with
    the planned job that follows it.
    """

    #: Workers that connect to the engine append without notifying this server, so the stream polls often.
    first_poll = 0.1
    max_poll = 0.5

    def __init__(self, core: Core, job: str, after: int, workflow: str, run: str, name: str) -> None:
        self.topic = f"log:{job}"
        self._log = ChainLog(core, job)
        self._after = after
        self._names = (workflow, run, name)
        #: Lines to read at once: as many as make about PAGE_BYTES, by the average of the last page.
        self._limit = MIN_LINES

    async def poll(self) -> Page:
        limit = self._limit
        lines = await self._log.read(self._after, limit)
        if not lines:
            return Page([], ended=self._log.ended)
        self._after = lines[-1].seq
        size = sum(len(line.data) for line in lines) // len(lines) + 1
        self._limit = max(MIN_LINES, min(PAGE, PAGE_BYTES // size, limit * 4))
        return Page([self._event(line) for line in lines], more=len(lines) == limit)

    def _event(self, line: LogLine) -> bytes:
        return event("log", _encode(build_chunk(line, *self._names)), str(line.seq))
