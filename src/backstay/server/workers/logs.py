"""Job logs over HTTP: chunks from workers, numbered so that none is stored twice, and log streams for readers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from backstay.engine.base import Micros
from backstay.errors import CorruptRecord
from backstay.idempotency.api import Idempotency
from backstay.job.api.chain_log import ChainLog
from backstay.job.flows import send
from backstay.job.model import LogLine
from backstay.job.store import Store
from backstay.runtime.core import Core
from backstay.server.http.sse import Page, encode_event
from backstay.server.schemas.jobs import LogChunk, LogChunkIn

#: The largest number of leases whose chunk numbering is cached; for other leases it is determined again.
MAX_NUMBERINGS = 10_000
#: Lines per read: a line has up to 64 KiB.
PAGE = 100
#: A line counts for this many characters more than its text, so that empty lines count, too.
LINE_SIZE = 50
#: A log stream reads about PAGE_BYTES bytes per poll, but at least MIN_LINES lines (if there are that many) and at most
#: MOST_LINES.
PAGE_BYTES, MIN_LINES, MOST_LINES = 1024 * 1024, 50, 1000
#: Seconds. BASE_TTL: how long the base number of a lease's chunks is stored. BASE_LEASE: the lease of the idempotent
#: call that determines it.
BASE_TTL, BASE_LEASE = 7 * 86400.0, 5.0

Line = tuple[Micros, str, str]

_encode = msgspec.json.Encoder().encode


class ChunkNumbering:
    """How the chunks of a lease become log lines: the chunk that its worker sent with `sequence` s is stored as line
    number base + s + 1. `base` is the number of the last line that was stored before the lease.
    """

    __slots__ = ("base", "known", "lock", "next", "size")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.base = 0
        #: The number that the next chunk gets if its worker sent no sequence with it.
        self.next = 1
        self.known = False
        #: The size of the job's log in characters, as far as this server knows. A repeated chunk counts again.
        self.size = 0


class JobLogs:
    """Appends log chunks of HTTP workers. Appends under one lease are serialized per server."""

    def __init__(self, core: Core, store: Store, calls: Idempotency, limit: int) -> None:
        self._core = core
        #: The largest log of a job, in characters.
        self._limit = limit
        self._notice = f"the log of this job is larger than {limit} characters: the rest is not stored"
        self._store = store
        self._calls = calls
        self._numberings: OrderedDict[str, ChunkNumbering] = OrderedDict()

    async def append(self, lease: str, job: str, fence: int, chunks: Sequence[LogChunkIn]) -> bool:
        """Store chunks in order, each once. Returns False when the lease is not current."""
        numbering = self._numberings.get(lease)
        if numbering is None:
            numbering = self._numberings[lease] = ChunkNumbering()
            if len(self._numberings) > MAX_NUMBERINGS:
                self._numberings.popitem(last=False)
        now = self._core.engine.now()
        lines: list[Line] = [(chunk.timestamp_ms * 1000 or now, chunk.stream, chunk.data) for chunk in chunks]
        async with numbering.lock:
            if not numbering.known and not await self._find_base(numbering, lease, job, fence):
                return False
            # A chunk without a sequence gets the number after the last stored line. Read that number from the store,
            # because another server may have appended the line.
            if any(chunk.sequence is None for chunk in chunks):
                numbering.next = 1 + await self._last_number(job, numbering.next - 1)
            lines = self._cut(numbering, lines)
            if not lines:
                return True
            for first, group in self._group_consecutive(numbering, chunks[: len(lines)], lines):
                if not await send(self._core, self._store.append_log(job, fence, group, first)):
                    return False
                numbering.next = max(numbering.next, first + len(group))
        return True

    def _cut(self, numbering: ChunkNumbering, lines: list[Line]) -> list[Line]:
        """Return the lines that the log may still store. In place of the first one beyond its limit, it says so."""
        kept: list[Line] = []
        for line in lines:
            if numbering.size > self._limit:
                break
            numbering.size += len(line[2]) + LINE_SIZE
            if numbering.size > self._limit:
                kept.append((line[0], "log", self._notice))
                break
            kept.append(line)
        return kept

    @staticmethod
    def _group_consecutive(
        numbering: ChunkNumbering, chunks: Sequence[LogChunkIn], lines: Sequence[Line]
    ) -> list[tuple[int, list[Line]]]:
        """Give each chunk its line number, and group chunks with consecutive numbers: the store appends a group at
        once. Returns each group with the number of its first line.
        """
        groups: list[tuple[int, list[Line]]] = []
        coming = numbering.next
        for chunk, line in zip(chunks, lines, strict=True):
            number = coming if chunk.sequence is None else numbering.base + chunk.sequence + 1
            if groups and groups[-1][0] + len(groups[-1][1]) == number:
                groups[-1][1].append(line)
            else:
                groups.append((number, [line]))
            coming = number + 1
        return groups

    async def _find_base(self, numbering: ChunkNumbering, lease: str, job: str, fence: int) -> bool:
        """Determine the base number of this lease's chunks: the number of the last line stored before them. The first
        server that asks reads it inside an idempotent call with a key per lease; the other servers get the stored
        answer. So a repeated chunk gets the same number at any server. Returns False when the lease is not current.
        """
        found = await send(self._core, self._store.get(job))
        if found is None or found.state != "running" or found.fence != fence:
            return False

        async def base() -> int:
            return await self._last_number(job)

        key = f"log:{job}:{fence}"
        numbering.base = await self._calls.run(key, base, ttl=BASE_TTL, lease=BASE_LEASE)
        if numbering.base < 0:
            raise CorruptRecord(f"the stored outcome of {key!r} is not a line number: {numbering.base}")
        numbering.next = numbering.base + 1
        numbering.size = await self._measure(job)
        numbering.known = True
        return True

    async def _measure(self, job: str) -> int:
        """Return the size of the log so far: other servers and earlier attempts may have written to it."""
        size = last = 0
        while size <= self._limit and (lines := await send(self._core, self._store.read_log(job, last, PAGE))):
            if any(line.stream == "log" and line.data == self._notice for line in lines):
                return self._limit + 1
            size += sum(len(line.data) + LINE_SIZE for line in lines)
            last = lines[-1].seq
        return size

    async def _last_number(self, job: str, last: int = 0) -> int:
        """Return the number of the job's last log line. Only the lines after number `last` are read."""
        while lines := await send(self._core, self._store.read_log(job, last, PAGE)):
            last = lines[-1].seq
        return last


def build_chunk(line: LogLine, workflow: str, run: str, name: str) -> LogChunk:
    return LogChunk(
        workflow_id=workflow,
        run_id=run,
        job_id=name,
        sequence=line.seq - 1,
        data=line.data,
        timestamp_ms=line.at // 1000,
        stream="stderr" if line.stream == "stderr" else "stdout",
        source=line.stream,
    )


def lines_read(after: int | None) -> int:
    """Return the number of the last line that a client has read, from the sequence number of its last chunk. Lines of a
    log count from 1, chunks from 0. None: the client has read nothing.
    """
    return 0 if after is None else after + 1


class LogSource:
    """A job's log as it grows, followed by the logs of the next jobs of its chain. Ends when the last job of the chain
    has ended and all lines were read.
    """

    #: Seconds between polls; without new lines they grow up to `max_poll`. They are short, because workers that connect
    #: to the engine append lines without notifying this server.
    first_poll = 0.1
    max_poll = 0.5

    def __init__(self, core: Core, job: str, after: int, workflow: str, run: str, name: str) -> None:
        self.topic = f"log:{job}"
        self._log = ChainLog(core, job)
        self._after = after
        self._names = (workflow, run, name)
        #: Lines per read: about PAGE_BYTES, estimated from the average line of the last page.
        self._limit = MIN_LINES

    async def poll(self) -> Page:
        limit = self._limit
        lines = await self._log.read(self._after, limit)
        if not lines:
            return Page([], ended=self._log.ended)
        self._after = lines[-1].seq
        size = sum(len(line.data) for line in lines) // len(lines) + 1
        self._limit = max(MIN_LINES, min(MOST_LINES, PAGE_BYTES // size, limit * 4))
        return Page([self._event(line) for line in lines], more=len(lines) == limit)

    def _event(self, line: LogLine) -> bytes:
        chunk = build_chunk(line, *self._names)
        return encode_event("log", _encode(chunk), str(chunk.sequence))
