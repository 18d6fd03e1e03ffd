"""A job's record as Redis keeps it: a packed head, so that scripts read and write it without building tables of names.
Mirrors `lua/_record.lua`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from backstay.engine.base import Micros
from backstay.errors import ConfigError, CorruptRecord
from backstay.job.model import (
    Claimed,
    Concurrency,
    Failure,
    Job,
    JobResult,
    NewJob,
    Rate,
    State,
    Unique,
    UniqueScope,
    When,
)

_HEAD = struct.Struct(">cBQQQIdBHHHQQIIbQQ")
_SIZES = struct.Struct(">HHH")
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
_AWAITED = bytes((32,))
#: The size of a job's or a run's id is one byte of a record.
LONGEST_NAME = 255

_encode = msgspec.msgpack.Encoder().encode


class Doc(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What only workers and readers want of a job: never rewritten."""

    args: bytes
    meta: bytes
    after: tuple[str, ...] = ()


class Rare(msgspec.Struct, frozen=True, array_like=True):
    """What few jobs have."""

    chain: str = ""
    unique: str = ""
    scope: str = ""
    key: str = ""
    limit: int = 0
    next: str = ""
    window: Micros = 0


class Ext(msgspec.Struct, frozen=True, gc=False):
    """What a plain job does not have. `after` and `letters`: the chains it waits for and what became of each, unless
    that lies in keys.
    """

    run: str = ""
    after: tuple[str, ...] = ()
    letters: str = ""
    rare: Rare = Rare()


_EXT = struct.Struct(">BcBBB")
_RARE, _KEYED, _SOFT = 1, 2, 4
#: How many names a record has room for: of those it waits for, of those who wait for it.
MOST_AFTER, MOST_AWAITING = 16, 8
_WHENS: Final[dict[When, bytes]] = {"all_success": b"s", "all_done": b"d", "any_failure": b"f"}
PLAIN = Ext()
_NOTHING_RARE = Rare()
_docs = msgspec.msgpack.Decoder(Doc)
_rares = msgspec.msgpack.Decoder(Rare)
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


def name_of(job: NewJob) -> bytes:
    name = job.id.encode()
    if len(name) > LONGEST_NAME:
        raise ConfigError(f"a job's id has at most {LONGEST_NAME} bytes; got {len(name)}: make it with Ids.new(shard)")
    return name


def _names(names: Sequence[bytes]) -> list[bytes]:
    return [part for name in names for part in (bytes((len(name),)), name)]


def _ext(job: NewJob, awaiting: Sequence[bytes], *, inside: bool) -> bytes:
    unique, concurrency = job.unique, job.concurrency
    rare = _NOTHING_RARE
    if unique or concurrency or job.chain not in ("", job.id):
        rare = Rare(
            chain=job.chain if job.chain != job.id else "",
            unique=unique.key if unique else "",
            scope=_SCOPES[unique.scope] if unique else "",
            key=concurrency.key if concurrency else "",
            limit=concurrency.limit if concurrency else 0,
            window=unique.window if unique else 0,
        )
    keyed = job.after and not inside
    bits = _RARE * (rare is not _NOTHING_RARE) + (_KEYED if keyed else 0) + _SOFT * job.soft
    ext = _of_run(bits, job.when, job.run, tuple(awaiting), job.after if inside else ())
    return ext + _encode(rare) if bits & _RARE else ext


@lru_cache(maxsize=256)
def _of_run(bits: int, when: When, run: str, awaiting: tuple[bytes, ...], after: tuple[str, ...]) -> bytes:
    """The same for most jobs that a list was spread over."""
    name = run.encode()
    if len(name) > LONGEST_NAME:
        raise ConfigError(f"a run's id has at most {LONGEST_NAME} bytes; got {run!r}")
    names = [one.encode() for one in after]
    head = _EXT.pack(bits, _WHENS[when], len(name), len(awaiting), len(names))
    return b"".join((head, name, *_names(awaiting), b"w" * len(names), *_names(names)))


@lru_cache(maxsize=1024)
def _read_ext(raw: bytes) -> Ext:
    head: tuple[Any, ...] = _EXT.unpack_from(raw)
    bits, _, size, awaiting, after = head
    at: int = _EXT.size + size
    run = raw[_EXT.size : at].decode()
    for _ in range(awaiting):
        at += 1 + raw[at]
    letters, at = raw[at : at + after].decode(), at + after
    names: list[str] = []
    for _ in range(after):
        stop = at + 1 + raw[at]
        names.append(raw[at + 1 : stop].decode())
        at = stop
    return Ext(run, tuple(names), letters, _rares.decode(raw[at:]) if bits & _RARE else _NOTHING_RARE)


def new(job: NewJob, awaiting: Sequence[bytes] = (), *, inside: bool = False) -> tuple[bytes, bool]:
    """The record of a job to be, and whether it is plain. `enqueued` has its delay, `due` its moment. `inside`: what it
    waits for is named in its record, as are those who wait for it (`awaiting`).
    """
    ext = b""
    if job.chain or job.run or job.unique or job.concurrency or job.after or job.soft or job.when == "any_failure":
        ext = _ext(job, awaiting, inside=inside)
    times = job.keep, job.keep_failed, job.retries, job.priority, job.delay, job.due
    try:
        head = _beginning(job.type, lane(job.queue, job.rate, job.labels), len(ext), *times)
    except struct.error as error:
        raise ConfigError(f"job {job.id}: a number is out of range: {error}") from None
    return head + ext, not ext


def doc_of(job: NewJob) -> bytes:
    """The doc of a job to be."""
    return _encode(Doc(job.args, job.meta, job.after) if job.after else Doc(job.args, job.meta))


@lru_cache(maxsize=1024)
def _beginning(
    type_: str, lane: bytes, ext: int, keep: int, keep_failed: int, retries: int, priority: int, delay: int, due: int
) -> bytes:
    """Head, type and lane: the same for most jobs of a type."""
    kind = type_.encode()
    sizes = len(kind), len(lane), ext
    head = _HEAD.pack(b"n", 0, 0, 0, 0, 0, 0.0, 0, *sizes, keep, keep_failed, 0, retries, priority, delay, due)
    return head + kind + lane


def of_run(raw: bytes, job: NewJob, *, awaited: bool) -> bytes:
    """A new record that says whether it waits for others (or for a failure that cannot be), and whether somebody waits
    for it whom it does not name.
    """
    state = b"b" if job.after else b"k" if job.when == "any_failure" else raw[:1]
    return state + raw[1:38] + (_AWAITED if awaited else raw[38:39]) + raw[39:]


def claimed(
    id_: bytes,
    raw: bytes,
    doc: bytes,
    until: Micros,
    upstream: dict[str, bytes | None],
    results: dict[str, bytes | None],
) -> Claimed:
    """A job for a worker. `results`: what chains came to that its record names."""
    (_, _, fence, _, _, attempt, _, _, a, b, c, _, _, snoozes, retries, priority, enqueued, due) = _HEAD.unpack_from(
        raw
    )
    a += 86
    b += a
    ext = _read_ext(raw[b : b + c]) if c else PLAIN
    if ext.after:
        upstream = {
            chain: results.get(chain) if letter == "+" else None
            for chain, letter in zip(ext.after, ext.letters, strict=True)
        }
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
        chain=ext.rare.chain or name,
        run=ext.run,
        labels=labels,
        enqueued=enqueued,
        due=due,
        until=until,
        upstream=upstream,
    )


def after_of(doc: bytes) -> tuple[str, ...]:
    """The chains that a job was made to wait for."""
    return _docs.decode(doc).after


def _waited_for(ext: Ext) -> list[str]:
    if "w" not in ext.letters:
        return []
    return [chain for chain, letter in zip(ext.after, ext.letters, strict=True) if letter == "w"]


def result(id_: bytes, raw: bytes) -> JobResult:
    """What a job came to, for whoever gathers the results of many."""
    name = id_.decode()
    try:
        a, b, c = _SIZES.unpack_from(raw, 39)
        a += 86
        b += a
        c += b
        rare = _read_ext(raw[b:c]).rare if c > b else _NOTHING_RARE
        state = STATES[raw[:1]]
        found = raw[c + raw[1] :] if state == "completed" else None
        return JobResult(name, _text(raw[86:a]), state, rare.chain or name, rare.next, found)
    except (struct.error, msgspec.MsgspecError, UnicodeDecodeError, KeyError, IndexError) as error:
        raise CorruptRecord(f"the record of job {name} cannot be read: {error}") from error


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
    ext = _read_ext(raw[b:c]) if c > b else PLAIN
    rare = ext.rare
    queue, labels = _of_lane(raw[a:b])
    found = _docs.decode(doc)
    tail = raw[d:]
    done = state == b"c"
    failure = _failures.decode(tail) if tail and not done else None
    return Job(
        id=id_,
        type=_text(raw[86:a]),
        queue=queue,
        state=STATES[state],
        args=found.args,
        meta=found.meta,
        labels=labels,
        priority=priority,
        attempt=attempt,
        retries=retries,
        snoozes=snoozes,
        chain=rare.chain or id_,
        run=ext.run,
        fence=fence,
        worker=_text(raw[c:d]),
        lease_until=int(float(until)) if until is not None and state == b"r" else 0,
        enqueued=enqueued,
        due=due,
        started=started,
        finished=finished,
        progress=progress,
        cancel_requested=bool(flags & CANCEL),
        result=tail if done else None,
        error=failure,
        unique=Unique(rare.unique, _SCOPE_NAMES[rare.scope], rare.window) if rare.unique else None,
        concurrency=Concurrency(rare.key, rare.limit) if rare.key else None,
        waits_for=tuple(sorted([*_waited_for(ext), *(chain.decode() for chain in waits)]))
        if ext.after or waits
        else (),
        after=found.after,
        followed_by=rare.next,
    )
