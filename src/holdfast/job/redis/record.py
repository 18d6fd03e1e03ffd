"""A job's record as Redis keeps it: a packed head, so that scripts read and write it without building tables of names.
Mirrors `lua/_record.lua`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final

import msgspec

from holdfast.engine.base import Micros
from holdfast.errors import ConfigError, CorruptRecord
from holdfast.job.model import Claimed, Concurrency, Failure, Job, NewJob, Rate, State, Unique, UniqueScope

_HEAD = struct.Struct(">cBQQQIdBHHHQQIIbQQ")
_LETTERS: Final[dict[State, bytes]] = {
    "scheduled": b"s",
    "blocked": b"b",
    "pending": b"p",
    "running": b"r",
    "completed": b"c",
    "failed": b"f",
    "cancelled": b"x",
    "skipped": b"k",
}
STATES: Final[dict[bytes, State]] = {letter: state for state, letter in _LETTERS.items()}
_SCOPES: Final[dict[UniqueScope, str]] = {"until_start": "s", "until_done": "d", "window": "w"}
_SCOPE_NAMES: Final[dict[str, UniqueScope]] = {letter: scope for scope, letter in _SCOPES.items()}
CANCEL = 4

_encode = msgspec.msgpack.Encoder().encode


class Doc(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What only workers and readers want of a job: never rewritten."""

    args: bytes
    meta: bytes
    after: tuple[str, ...] = ()


class Ext(msgspec.Struct, frozen=True, array_like=True):
    """What a plain job does not have."""

    chain: str = ""
    run: str = ""
    unique: str = ""
    scope: str = ""
    key: str = ""
    limit: int = 0
    when: str = "s"
    next: str = ""
    after: bool = False
    window: Micros = 0


PLAIN = Ext()
_docs = msgspec.msgpack.Decoder(Doc)
_exts = msgspec.msgpack.Decoder(Ext)
_failures = msgspec.msgpack.Decoder(Failure)


def letter(state: State) -> bytes:
    return _LETTERS[state]


@lru_cache(maxsize=4096)
def lane(queue: str, rate: Rate | None, labels: tuple[str, ...]) -> bytes:
    """The name of the lane in which a job waits. No part may have a NUL in it."""
    parts = [queue, *((rate.bucket, str(rate.interval), str(rate.burst)) if rate else ("", "", "")), *labels]
    if any("\0" in part for part in parts):
        raise ConfigError(f"a queue, a rate's bucket and a label have no NUL in them; got {parts!r}")
    return "\0".join(parts).encode()


@lru_cache(maxsize=4096)
def _of_lane(raw: bytes) -> tuple[str, tuple[str, ...]]:
    """Queue and labels of a lane."""
    queue, _, _, _, *labels = raw.decode().split("\0")
    return queue, tuple(labels)


@lru_cache(maxsize=4096)
def _text(raw: bytes) -> str:
    return raw.decode()


def new(job: NewJob) -> tuple[bytes, bytes, bool]:
    """The record and the doc of a job to be, and whether it is plain. `enqueued` has its delay, `due` its moment."""
    ext = b""
    unique, concurrency = job.unique, job.concurrency
    if job.chain or job.run or unique or concurrency or job.after:
        ext = _encode(
            Ext(
                chain=job.chain if job.chain != job.id else "",
                run=job.run,
                unique=unique.key if unique else "",
                scope=_SCOPES[unique.scope] if unique else "",
                key=concurrency.key if concurrency else "",
                limit=concurrency.limit if concurrency else 0,
                when="d" if job.when == "all_done" else "s",
                after=bool(job.after),
                window=unique.window if unique else 0,
            )
        )
    times = job.keep, job.keep_failed, job.retries, job.priority, job.delay, job.due
    try:
        head = _beginning(job.type, lane(job.queue, job.rate, job.labels), len(ext), *times)
    except struct.error as error:
        raise ConfigError(f"job {job.id}: a number is out of range: {error}") from None
    doc = _encode(Doc(job.args, job.meta, job.after) if job.after else Doc(job.args, job.meta))
    return head + ext, doc, not ext


@lru_cache(maxsize=1024)
def _beginning(
    type_: str, lane: bytes, ext: int, keep: int, keep_failed: int, retries: int, priority: int, delay: int, due: int
) -> bytes:
    """Head, type and lane: the same for most jobs of a type."""
    kind = type_.encode()
    sizes = len(kind), len(lane), ext
    head = _HEAD.pack(b"n", 0, 0, 0, 0, 0, 0.0, 0, *sizes, keep, keep_failed, 0, retries, priority, delay, due)
    return head + kind + lane


def claimed(id_: bytes, raw: bytes, doc: bytes, until: Micros, upstream: dict[str, bytes | None]) -> Claimed:
    """A job for a worker."""
    (_, _, fence, _, _, attempt, _, _, a, b, c, _, _, snoozes, retries, priority, enqueued, due) = _HEAD.unpack_from(
        raw
    )
    a += 86
    b += a
    ext = _exts.decode(raw[b : b + c]) if c else PLAIN
    queue, labels = _of_lane(raw[a:b])
    name = id_.decode()
    found = _docs.decode(doc)
    return Claimed(
        id=name,
        fence=fence,
        type=_text(raw[86:a]),
        queue=queue,
        args=found.args,
        meta=found.meta,
        attempt=attempt,
        retries=retries,
        snoozes=snoozes,
        priority=priority,
        chain=ext.chain or name,
        run=ext.run,
        labels=labels,
        enqueued=enqueued,
        due=due,
        until=until,
        upstream=upstream,
    )


def job(id_: str, raw: bytes, doc: bytes | None, until: Any, waits: list[bytes]) -> Job:
    """A job for whoever asks."""
    try:
        return _job(id_, raw, doc or _encode(Doc(b"", b"")), until, waits)
    except (struct.error, msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
        raise CorruptRecord(f"the record of job {id_} cannot be read: {error}") from error


def _job(id_: str, raw: bytes, doc: bytes, until: Any, waits: list[bytes]) -> Job:
    head: tuple[Any, ...] = _HEAD.unpack_from(raw)
    (state, d, fence, finished, started, attempt, progress, flags, a, b, c, _, _) = head[:13]
    snoozes, retries, priority, enqueued, due = head[13:]
    a += 86
    b += a
    c += b
    d += c
    ext = _exts.decode(raw[b:c]) if c > b else PLAIN
    queue, labels = _of_lane(raw[a:b])
    found = _docs.decode(doc)
    tail = raw[d:]
    done = state == b"c"
    failure = _failures.decode(tail) if tail and not done else None
    return Job(
        id=id_,
        type=raw[86:a].decode(),
        queue=queue,
        state=STATES[state],
        args=found.args,
        meta=found.meta,
        labels=labels,
        priority=priority,
        attempt=attempt,
        retries=retries,
        snoozes=snoozes,
        chain=ext.chain or id_,
        run=ext.run,
        fence=fence,
        worker=raw[c:d].decode(),
        lease_until=int(float(until)) if until is not None and state == b"r" else 0,
        enqueued=enqueued,
        due=due,
        started=started,
        finished=finished,
        progress=progress,
        cancel_requested=bool(flags & CANCEL),
        result=tail if done else None,
        error=failure,
        unique=Unique(ext.unique, _SCOPE_NAMES[ext.scope], ext.window) if ext.unique else None,
        concurrency=Concurrency(ext.key, ext.limit) if ext.key else None,
        waits_for=tuple(sorted(chain.decode() for chain in waits)),
        after=found.after,
        followed_by=ext.next,
    )
