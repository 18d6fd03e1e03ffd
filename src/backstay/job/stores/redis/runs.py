"""Workflow runs in Redis. A run's record, jobs and events are in one shard, so that one script changes them atomically.

The layout of records and events is that of `lua/shared/_runs.lua`.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from backstay.engine.base import Op
from backstay.engine.redis.encoder import Procedure
from backstay.errors import ConfigError, CorruptRecord
from backstay.job.model import NewJob, State
from backstay.job.run_model import LARGEST_RUN, EventKind, EventPage, NewRun, Run, RunEvent, RunStatus, bad_cursor_error
from backstay.job.stores.redis import record
from backstay.job.stores.redis.calls import group_pairs
from backstay.job.stores.redis.cross_shard import CrossShard

_RUN = struct.Struct(">cBQQQQQQIIIIIIIIIIIH")
#: The id of an entry of the stream `events`, optionally with the number of an event in that entry.
CURSOR = re.compile(r"[0-9]{1,19}-[0-9]{1,19}(:[0-9]{1,15})?")
_EVENT = struct.Struct(">cQIB")
_ROW = struct.Struct(">II")
_COUNTED: Final[tuple[State, ...]] = (
    "scheduled",
    "blocked",
    "pending",
    "running",
    "completed",
    "failed",
    "cancelled",
    "skipped",
)
_LETTERS: Final[dict[RunStatus, bytes]] = {
    "queued": b"q",
    "running": b"r",
    "success": b"s",
    "failure": b"f",
    "cancelled": b"x",
}
_STATUSES: Final[dict[bytes, RunStatus]] = {letter: status for status, letter in _LETTERS.items()}
_KINDS: Final[dict[bytes, EventKind]] = {
    b"p": "ready",
    b"r": "started",
    b"s": "scheduled",
    b"c": "completed",
    b"f": "failed",
    b"x": "cancelled",
    b"k": "skipped",
    b"l": "lease_expired",
    b"n": "run_created",
    b"e": "run_finished",
    b"o": "run_reopened",
    b"w": "run_cancelling",
}
#: The largest size of a workflow's name in bytes: a run's record stores the size in two bytes.
LONGEST_WORKFLOW = 65_535
_encode = msgspec.msgpack.Encoder().encode


class Runs(CrossShard):
    """The store operations on runs and their events."""

    def start_run(self, run: NewRun) -> Op[Run]:
        shard = self._shard_of(run.id)

        def requests(clock: bytes) -> Procedure:
            _check_run(run, shard, self.shards)
            about = _encode([run.version, run.timeout, run.keep, run.workflow])
            count = str(len(run.jobs)).encode()
            head = (self._shard_count, self._prefix, run.id.encode(), about, run.doc, count)
            raw, doc = yield from self._call("start_run", shard, clock, *head, *self._encode_run_jobs(shard, run))
            if not raw:
                raise ConfigError(f"job {doc.decode()} of run {run.id} is already stored: create a new id for each job")
            return _decode_run(run.id, raw, run.doc if doc is None else doc)

        return self._operation(max(shard, 0), requests)

    def _encode_run_jobs(self, shard: int, run: NewRun) -> list[bytes]:
        """Encode the jobs of a run as arguments of `start_run.lua`: first the jobs, then the lists of blockers and
        dependents that are too long for a job's record.
        """
        positions = {job.id: position for position, job in enumerate(run.jobs)}
        awaiting: defaultdict[str, list[int]] = defaultdict(list)
        for position, job in enumerate(run.jobs):
            for blocker in job.after:
                awaiting[blocker].append(position)
        names = [record.encode_id(job) for job in run.jobs]
        rows: list[list[bytes]] = []
        rest: list[bytes] = []
        known: tuple[NewJob, list[int]] | None = None
        for job, name in zip(run.jobs, names, strict=True):
            dependents = awaiting.get(job.id, [])
            inline, fits = len(job.after) <= record.MAX_INLINE_AFTER, len(dependents) <= record.MAX_INLINE_AWAITING
            template = replace(job, id="", args=b"", meta=b""), dependents
            # Consecutive jobs with equal records, such as those of one `flow.map`, share one encoded record.
            if template != known or job.chain:
                known = template
                self._check_keys_shard(shard, job)
                raw, _ = record.encode_new(job, [names[i] for i in dependents] if fits else (), inline=inline)
                rows.append([record.encode_for_run(raw, job, awaited=not fits), b""])
            rows[-1] += (name, record.encode_doc(job))
            if not inline:
                rest += (b"waits:" + name, _encode_ranges(positions[blocker] for blocker in job.after))
            if not fits:
                rest += (b"awaiting:" + name, _encode_ranges(dependents))
        for row in rows:
            row[1] = b"%d" % (len(row) // 2 - 1)
        return [*(part for row in rows for part in row), *rest]

    def get_run(self, run: str, *, doc: bool = True) -> Op[Run | None]:
        shard = self._shard_of(run)

        def requests(clock: bytes) -> Procedure:
            if shard < 0:
                return None
            raw, text = yield from self._call("get_run", shard, clock, run.encode(), b"1" if doc else b"")
            return None if raw is None else _decode_run(run, raw, text)

        return self._operation(max(shard, 0), requests, reads=True)

    def list_runs(
        self, *, workflow: str = "", status: RunStatus | None = None, before: str = "", limit: int = 50
    ) -> Op[list[Run]]:
        newer = before.partition("-")[2]

        def requests(clock: bytes) -> Procedure:
            found: list[Run] = []
            for shard in range(self.shards):
                cursor = f"{shard:x}-{newer}".encode() if before else b""
                letter = _LETTERS[status] if status else b""
                arguments = (workflow.encode(), letter, cursor, str(limit).encode())
                for id_, raw in group_pairs((yield from self._call("list_runs", shard, clock, *arguments))):
                    found.append(_decode_run(id_.decode(), raw, b""))
            # Merge the shards newest first: an id consists of its shard, a hyphen and a time.
            found.sort(key=lambda run: run.id.partition("-")[2], reverse=True)
            return found[:limit]

        return self._operation(0, requests, reads=True)

    def cancel_run(self, run: str, reason: str) -> Op[Run | None]:
        shard = self._shard_of(run)

        def requests(clock: bytes) -> Procedure:
            if shard < 0:
                return None
            arguments = (self._prefix, run.encode(), reason.encode())
            raw, doc, outbox = yield from self._call("cancel_run", shard, clock, *arguments)
            yield from self._deliver_outbox(clock, shard, outbox)
            return None if raw is None else _decode_run(run, raw, doc)

        return self._operation(max(shard, 0), requests)

    def rerun_failed(self, run: str) -> Op[Run | None]:
        shard = self._shard_of(run)

        def requests(clock: bytes) -> Procedure:
            if shard < 0:
                return None
            arguments = (self._prefix, run.encode())
            raw, doc, remote = yield from self._call("rerun_failed", shard, clock, *arguments)
            yield from self._reopen_waits(clock, remote)
            return None if raw is None else _decode_run(run, raw, doc)

        return self._operation(max(shard, 0), requests)

    def check_runs(self, shard: int, limit: int = 100) -> Op[list[str]]:
        def requests(clock: bytes) -> Procedure:
            arguments = (self._prefix, str(limit).encode())
            outbox, repaired = yield from self._call("check_runs", shard, clock, *arguments)
            yield from self._deliver_outbox(clock, shard, outbox)
            return [run.decode() for run in repaired]

        return self._operation(shard, requests)

    # ── events ──

    def run_events(self, run: str, after: int = 0, limit: int = 1000) -> Op[list[RunEvent]]:
        shard = self._shard_of(run)

        def requests(clock: bytes) -> Procedure:
            if shard < 0:
                return []
            arguments = (run.encode(), str(after).encode(), str(limit).encode())
            found = yield from self._call("run_events", shard, clock, *arguments)
            return _decode_events(run, after + 1, found)

        return self._operation(max(shard, 0), requests, reads=True)

    def events(self, shard: int, after: str = "", limit: int = 1000) -> Op[EventPage]:
        if after not in ("", "$") and not CURSOR.fullmatch(after):
            raise bad_cursor_error(after)

        def requests(clock: bytes) -> Procedure:
            cursor, *found = yield from self._call("events", shard, clock, after.encode(), str(limit).encode())
            events: list[RunEvent] = []
            at = 0
            while at < len(found):
                run, first, count = found[at].decode(), found[at + 1], found[at + 2]
                events += _decode_events(run, first, found[at + 3 : at + 3 + count])
                at += 3 + count
            return EventPage(tuple(events), cursor.decode())

        return self._operation(shard, requests, reads=True)


def _encode_ranges(positions: Iterable[int]) -> bytes:
    """Encode ascending positions of jobs in a run as ranges of consecutive positions. Each range consists of its first
    position (counted from 1) and its length.
    """
    rows: list[tuple[int, int]] = []
    first = following = -1
    for position in positions:
        if position != following:
            rows.append((first, following))
            first = position
        following = position + 1
    rows.append((first, following))
    return b"".join(_ROW.pack(first + 1, following - first) for first, following in rows[1:])


def _check_run(run: NewRun, shard: int, shards: int) -> None:
    if shard < 0:
        raise ConfigError(f"run id {run.id!r} names none of the {shards} shards: create it with Ids.new(shard)")
    if len(run.jobs) > LARGEST_RUN:
        raise ConfigError(
            f"run {run.id} has {len(run.jobs)} jobs, at most {LARGEST_RUN} are allowed: add jobs from a running job, or"
            " split it into several runs"
        )
    if len(run.workflow.encode()) > LONGEST_WORKFLOW:
        raise ConfigError(f"a workflow name has at most {LONGEST_WORKFLOW} bytes")
    known: set[str] = set()
    for job in run.jobs:
        _check_job(run, job, shard, known)
        known.add(job.id)


def _check_job(run: NewRun, job: NewJob, shard: int, known: set[str]) -> None:
    if job.id in known:
        raise ConfigError(f"run {run.id} contains job {job.id} twice")
    if job.run != run.id:
        raise ConfigError(f"job {job.id} belongs to run {job.run!r}, not to {run.id}: set its run to {run.id}")
    if job.id.partition("-")[0] != run.id.partition("-")[0]:
        raise ConfigError(f"job {job.id} is not in the shard of its run: create its id with Ids.new({shard})")
    if job.unique is not None:
        raise ConfigError(f"job {job.id} of run {run.id} has a unique key: a run must create all of its jobs")
    for chain in job.after:
        if chain not in known:
            raise ConfigError(
                f"job {job.id} of run {run.id} waits for {chain!r}, which is not among the run's earlier jobs"
            )


def _decode_run(id_: str, raw: bytes, doc: bytes | None) -> Run:
    try:
        head: tuple[Any, ...] = _RUN.unpack_from(raw)
        status, cancelling, created, started, finished, deadline, _, _, events, version, _, *counts, size = head
        stop = _RUN.size + size
        return Run(
            id=id_,
            workflow=raw[_RUN.size : stop].decode(),
            version=version,
            status=_STATUSES[status],
            doc=doc or b"",
            created=created,
            started=started,
            finished=finished,
            deadline=deadline,
            cancel_requested=bool(cancelling),
            reason=raw[stop:].decode(),
            counts={state: count for state, count in zip(_COUNTED, counts, strict=True) if count},
            events=events,
        )
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise CorruptRecord(f"the record of run {id_} cannot be read: {error}") from error


def _decode_events(run: str, first: int, found: Sequence[bytes]) -> list[RunEvent]:
    return list(_decode_each_event(run, first, found))


def _decode_each_event(run: str, first: int, found: Sequence[bytes]) -> Iterable[RunEvent]:
    for seq, raw in enumerate(found, first):
        head: tuple[Any, ...] = _EVENT.unpack_from(raw)
        kind, at, attempt, size = head
        stop: int = _EVENT.size + size
        end = stop + 1 + raw[stop]
        yield RunEvent(
            run,
            seq,
            at,
            _KINDS[kind],
            raw[stop + 1 : end].decode(),
            attempt,
            raw[_EVENT.size : stop].decode(),
            raw[end:].decode(),
        )
