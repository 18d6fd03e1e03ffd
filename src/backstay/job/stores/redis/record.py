"""Encode and decode the record of a job in Redis. Its fields have fixed offsets, so that scripts can read and write
single fields without building Lua tables. `lua/shared/_record.lua` has the same layout and describes it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from backstay.engine.base import Micros
from backstay.errors import ConfigError, CorruptRecord
from backstay.job.exchange import Claimed
from backstay.job.model import Concurrency, Failure, Job, JobResult, NewJob, StartRate, State, Unique, UniqueScope, When

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
#: The largest size of a job's or run's id in bytes: a record stores the size in one byte.
LONGEST_NAME = 255
#: The largest size of a worker's name in bytes: a record stores the size in one byte.
LONGEST_WORKER = 255

_encode = msgspec.msgpack.Encoder().encode


class JobDoc(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The fields of a job that never change. They are stored in the hash `doc`, apart from the job's record, so that a
    state change does not rewrite them.
    """

    args: bytes
    meta: bytes
    after: tuple[str, ...] = ()


class RareFields(msgspec.Struct, frozen=True, array_like=True):
    """Fields that few jobs have. `chain`: id of the chain that the job continues. `unique`, `scope`, `window`: the
    job's unique key, the letter of the key's scope, and the key's time in µs (with the scope "window"). `key`, `limit`:
    the job's concurrency key, and how many of its jobs may run at once. `next`: id of the job that continues the chain.
    """

    chain: str = ""
    unique: str = ""
    scope: str = ""
    key: str = ""
    limit: int = 0
    next: str = ""
    window: Micros = 0


class ExtraFields(msgspec.Struct, frozen=True, gc=False):
    """The part of a record that is called ext: fields that a plain job (without run, chain, blockers and keys) does not
    have. `after`: the chain ids of the job's blockers. `outcomes`: a letter for the outcome of each blocker. Both are
    empty if the job has many blockers, or some outside its run: these are stored in Redis keys of their own
    (SEPARATE_WAITS in `_record.lua`).
    """

    run: str = ""
    after: tuple[str, ...] = ()
    outcomes: str = ""
    rare: RareFields = RareFields()


_EXT = struct.Struct(">BcBBB")
_RARE, _SEPARATE_WAITS, _SOFT = 1, 2, 4
#: The largest number of blockers, and of dependents, that a record names; longer lists have keys of their own.
MAX_INLINE_AFTER, MAX_INLINE_AWAITING = 16, 8
_WHENS: Final[dict[When, bytes]] = {"all_success": b"s", "all_done": b"d", "any_failure": b"f"}
NO_EXTRA_FIELDS = ExtraFields()
_NO_RARE_FIELDS = RareFields()
_docs = msgspec.msgpack.Decoder(JobDoc)
_rares = msgspec.msgpack.Decoder(RareFields)
_failures = msgspec.msgpack.Decoder(Failure)


def state_letter(state: State) -> bytes:
    return _LETTERS[state]


@lru_cache(maxsize=4096)
def lane_name(queue: str, rate: StartRate | None, labels: tuple[str, ...]) -> bytes:
    """Return the name of a job's lane: queue, rate and labels, separated by NUL. Raises ConfigError if one of them
    contains a NUL.
    """
    parts = [queue, *((rate.bucket, str(rate.interval), str(rate.burst)) if rate else ("", "", "")), *labels]
    if any("\0" in part for part in parts):
        raise ConfigError(f"queues, rate buckets and labels must not contain a NUL, got {parts!r}")
    return "\0".join(parts).encode()


@lru_cache(maxsize=4096)
def _parse_lane(raw: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the queue and the labels that a lane's name contains."""
    queue, _, _, _, *labels = raw.decode().split("\0")
    return queue, tuple(labels)


@lru_cache(maxsize=4096)
def _decode_text(raw: bytes) -> str:
    return raw.decode()


@lru_cache(maxsize=64)
def truncate_worker(worker: str) -> str:
    """Cut a worker's name to LONGEST_WORKER bytes."""
    return worker.encode()[:LONGEST_WORKER].decode(errors="ignore")


def encode_id(job: NewJob) -> bytes:
    name = job.id.encode()
    if len(name) > LONGEST_NAME:
        raise ConfigError(f"a job id has at most {LONGEST_NAME} bytes, got {len(name)}: create it with Ids.new(shard)")
    return name


def _encode_names(names: Sequence[bytes]) -> list[bytes]:
    return [part for name in names for part in (bytes((len(name),)), name)]


def _encode_ext(job: NewJob, awaiting: Sequence[bytes], *, inline: bool) -> bytes:
    unique, concurrency = job.unique, job.concurrency
    rare = _NO_RARE_FIELDS
    if unique or concurrency or job.chain not in ("", job.id):
        rare = RareFields(
            chain=job.chain if job.chain != job.id else "",
            unique=unique.key if unique else "",
            scope=_SCOPES[unique.scope] if unique else "",
            key=concurrency.key if concurrency else "",
            limit=concurrency.limit if concurrency else 0,
            window=unique.window if unique else 0,
        )
    separate = job.after and not inline
    bits = _RARE * (rare is not _NO_RARE_FIELDS) + (_SEPARATE_WAITS if separate else 0) + _SOFT * job.soft
    ext = _encode_ext_head(bits, job.when, job.run, tuple(awaiting), job.after if inline else ())
    return ext + _encode(rare) if bits & _RARE else ext


@lru_cache(maxsize=256)
def _encode_ext_head(bits: int, when: When, run: str, awaiting: tuple[bytes, ...], after: tuple[str, ...]) -> bytes:
    """Encode the part ext of a record (ExtraFields), but without the rare fields. Cached, since the jobs of one
    `flow.map` usually have the same.
    """
    name = run.encode()
    if len(name) > LONGEST_NAME:
        raise ConfigError(f"a run id has at most {LONGEST_NAME} bytes, got {run!r}")
    names = [one.encode() for one in after]
    head = _EXT.pack(bits, _WHENS[when], len(name), len(awaiting), len(names))
    return b"".join((head, name, *_encode_names(awaiting), b"w" * len(names), *_encode_names(names)))


@lru_cache(maxsize=1024)
def _decode_ext(raw: bytes) -> ExtraFields:
    head: tuple[Any, ...] = _EXT.unpack_from(raw)
    bits, _, size, awaiting, after = head
    at: int = _EXT.size + size
    run = raw[_EXT.size : at].decode()
    for _ in range(awaiting):
        at += 1 + raw[at]
    outcomes, at = raw[at : at + after].decode(), at + after
    names: list[str] = []
    for _ in range(after):
        stop = at + 1 + raw[at]
        names.append(raw[at + 1 : stop].decode())
        at = stop
    return ExtraFields(run, tuple(names), outcomes, _rares.decode(raw[at:]) if bits & _RARE else _NO_RARE_FIELDS)


def encode_new(job: NewJob, awaiting: Sequence[bytes] = (), *, inline: bool = False) -> tuple[bytes, bool]:
    """Encode the record of a new job. Returns the record, and whether the job is plain (its ext is empty).

    The script that stores the record sets its times `enqueued` and `due`. Until then, `enqueued` holds the delay after
    which the job is due, and `due` its due time, or 0 if the delay counts. `awaiting`: the ids of the job's
    dependents that are stored in the record. `inline`: whether the job's blockers are stored in the record, too.
    """
    ext = b""
    if job.chain or job.run or job.unique or job.concurrency or job.after or job.soft or job.when == "any_failure":
        ext = _encode_ext(job, awaiting, inline=inline)
    times = job.keep, job.keep_failed, job.retries, job.priority, job.delay, job.due
    try:
        head = _encode_head(job.type, lane_name(job.queue, job.rate, job.labels), len(ext), *times)
    except struct.error as error:
        raise ConfigError(f"a number of job {job.id} is out of range: {error}") from None
    return head + ext, not ext


def encode_doc(job: NewJob) -> bytes:
    """Encode the fields of a new job that never change."""
    return _encode(JobDoc(job.args, job.meta, job.after) if job.after else JobDoc(job.args, job.meta))


@lru_cache(maxsize=1024)
def _encode_head(
    type_: str, lane: bytes, ext: int, keep: int, keep_failed: int, retries: int, priority: int, delay: int, due: int
) -> bytes:
    """Encode the first parts of a record: head (the fields with fixed sizes), type and lane. Cached, since these parts
    are equal for most jobs of a type.
    """
    kind = type_.encode()
    sizes = len(kind), len(lane), ext
    head = _HEAD.pack(b"n", 0, 0, 0, 0, 0, 0.0, 0, *sizes, keep, keep_failed, 0, retries, priority, delay, due)
    return head + kind + lane


def encode_for_run(raw: bytes, job: NewJob, *, awaited: bool) -> bytes:
    """Return the encoded record `raw` of a run's job, with the job's initial state filled in. The job is blocked if it
    has blockers. It is skipped if it starts only after a failure of a blocker (any_failure) but has no blockers.
    `awaited`: the job has dependents that are stored outside its record.
    """
    state = b"b" if job.after else b"k" if job.when == "any_failure" else raw[:1]
    return state + raw[1:38] + (_AWAITED if awaited else raw[38:39]) + raw[39:]


def decode_claimed(
    id_: bytes,
    raw: bytes,
    doc: bytes,
    until: Micros,
    upstream: dict[str, bytes | None],
    results: dict[str, bytes | None],
) -> Claimed:
    """Decode a claimed job. The results of its blockers, by chain id, are in `results` if the record contains the
    blockers' ids, else in `upstream`.
    """
    (_, _, fence, _, _, attempt, _, _, a, b, c, _, _, snoozes, retries, priority, enqueued, due) = _HEAD.unpack_from(
        raw
    )
    a += 86
    b += a
    ext = _decode_ext(raw[b : b + c]) if c else NO_EXTRA_FIELDS
    if ext.after:
        upstream = {
            chain: results.get(chain) if letter == "+" else None
            for chain, letter in zip(ext.after, ext.outcomes, strict=True)
        }
    queue, labels = _parse_lane(raw[a:b])
    name = id_.decode()
    found = _docs.decode(doc)
    return Claimed(
        id=name,
        fence=fence,
        type=_decode_text(raw[86:a]),
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


def decode_after(doc: bytes) -> tuple[str, ...]:
    """Return the chains that a job was enqueued to wait for. `doc`: the job's encoded JobDoc."""
    return _docs.decode(doc).after


def _list_open_blockers(ext: ExtraFields) -> list[str]:
    if "w" not in ext.outcomes:
        return []
    return [chain for chain, letter in zip(ext.after, ext.outcomes, strict=True) if letter == "w"]


def decode_result(id_: bytes, raw: bytes) -> JobResult:
    """Decode only the fields of a record that a JobResult has. Raises CorruptRecord."""
    name = id_.decode()
    try:
        a, b, c = _SIZES.unpack_from(raw, 39)
        a += 86
        b += a
        c += b
        rare = _decode_ext(raw[b:c]).rare if c > b else _NO_RARE_FIELDS
        state = STATES[raw[:1]]
        found = raw[c + raw[1] :] if state == "completed" else None
        return JobResult(name, _decode_text(raw[86:a]), state, rare.chain or name, rare.next, found)
    except (struct.error, msgspec.MsgspecError, UnicodeDecodeError, KeyError, IndexError) as error:
        raise CorruptRecord(f"the record of job {name} cannot be read: {error}") from error


def decode_job(id_: str, raw: bytes, doc: bytes | None, until: Any, waits: list[bytes]) -> Job:
    """Decode a job with all its fields. Raises CorruptRecord."""
    try:
        return _decode_fields(id_, raw, doc or _encode(JobDoc(b"", b"")), until, waits)
    except (struct.error, msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
        raise CorruptRecord(f"the record of job {id_} cannot be read: {error}") from error


def _decode_fields(id_: str, raw: bytes, doc: bytes, until: Any, waits: list[bytes]) -> Job:
    head: tuple[Any, ...] = _HEAD.unpack_from(raw)
    (state, d, fence, finished, started, attempt, progress, flags, a, b, c, _, _) = head[:13]
    snoozes, retries, priority, enqueued, due = head[13:]
    a += 86
    b += a
    c += b
    d += c
    ext = _decode_ext(raw[b:c]) if c > b else NO_EXTRA_FIELDS
    rare = ext.rare
    queue, labels = _parse_lane(raw[a:b])
    found = _docs.decode(doc)
    tail = raw[d:]
    done = state == b"c"
    failure = _failures.decode(tail) if tail and not done else None
    return Job(
        id=id_,
        type=_decode_text(raw[86:a]),
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
        worker=_decode_text(raw[c:d]),
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
        waits_for=tuple(sorted([*_list_open_blockers(ext), *(chain.decode() for chain in waits)]))
        if ext.after or waits
        else (),
        after=found.after,
        followed_by=rare.next,
    )
