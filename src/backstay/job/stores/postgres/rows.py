"""Rows of the PostgreSQL store, and what they mean."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import msgspec

from backstay.engine.base import Micros
from backstay.engine.postgres.connection.wire import Rows
from backstay.engine.postgres.pipeline.pipeline import RoundTrip
from backstay.job.exchange import Claimed
from backstay.job.model import Concurrency, Failure, Job, NewJob, Unique
from backstay.job.stores.postgres.statements import readable, statement

#: What `flags` of a job are made of.
WATCHED, CHAIN_WATCHED, AWAITED, UNIQUE_DONE, UNIQUE_START, KEYED, WAITS = 1, 2, 4, 8, 16, 32, 64
IN_RUN, SOFT = 128, 256
#: Something hangs on the end of a job with one of these, so that one statement cannot end it.
CARE = AWAITED | UNIQUE_DONE | KEYED | IN_RUN
#: Between labels.
SEPARATOR = "\x1f"

T = Any
#: A part of a talk: yields rounds inside a transaction.
Part = Generator[RoundTrip, list[Rows], T]

_failure = msgspec.msgpack.Decoder(Failure)
encode_failure: Final = msgspec.msgpack.Encoder().encode


def inside(*statements: tuple[str, Mapping[str, Any]]) -> RoundTrip:
    """A round that leaves its transaction open."""
    return RoundTrip([(statement(name), values) for name, values in statements], commit=False)


def whole(*statements: tuple[str, Mapping[str, Any]]) -> RoundTrip:
    """A round that commits."""
    return RoundTrip([(statement(name), values) for name, values in statements])


def ask(name: str, values: Mapping[str, Any]) -> Part:
    """One statement inside a transaction."""
    (rows,) = yield inside((name, values))
    return rows


def _number(text: str) -> int:
    """A bigint that every process makes of the same text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def turn_of(incarnation: str, lane: int, seq: int) -> int:
    """What jobs remember of the step that claimed them, beside its worker."""
    return _number(f"{incarnation}:{lane}:{seq}")


@lru_cache(maxsize=4096)
def lane_of(space: str, queue: str, labels: tuple[str, ...], bucket: str, keyed: bool, in_run: bool) -> int:
    """Where pending jobs of one kind lie, in order: a number that every process makes of the same parts."""
    kind = ("key" if keyed else "") + (" run" if in_run else "")
    return _number("\x00".join((space, queue, bucket, kind, *labels)))


def lane_of_job(space: str, job: NewJob, *, in_run: bool = False) -> int:
    bucket = job.rate.bucket if job.rate is not None else ""
    return lane_of(space, job.queue, job.labels, bucket, job.concurrency is not None, in_run)


@lru_cache(maxsize=4096)
def key_lock(space: str, key: str) -> int:
    """The advisory lock of a concurrency key."""
    return _number(f"backstay job key\x00{space}\x00{key}")


@lru_cache(maxsize=4096)
def split(labels: str) -> tuple[str, ...]:
    return tuple(labels.split(SEPARATOR)) if labels else ()


def chains_of(upstream: str) -> tuple[str, ...]:
    return tuple(upstream.split(SEPARATOR)) if upstream else ()


def flags_of(job: NewJob) -> int:
    # Who starts because of a failure, and waits for nobody, is looked at like one who waits.
    flags = WAITS if job.after or job.when == "any_failure" else 0
    if job.soft:
        flags |= SOFT
    if job.concurrency is not None:
        flags |= KEYED
    if job.unique is not None:
        flags |= {"until_done": UNIQUE_DONE, "until_start": UNIQUE_START, "window": 0}[job.unique.scope]
    return flags


def claimed(rows: Iterable[tuple[Any, ...]], until: Micros = 0) -> tuple[list[Claimed], dict[str, tuple[str, ...]]]:
    """What claim.sql answers, as jobs in the order of its rows; and which of them waited for others, with the chains of
    their own runs. `until`: where the rows (of claim_plain.sql) do not say.
    """
    jobs: list[Claimed] = []
    waited: dict[str, tuple[str, ...]] = {}
    for row in rows:
        if row[3] is None:
            continue
        job = Claimed(
            id=row[3],
            fence=row[4],
            type=readable(row[5]),
            queue=row[6],
            args=row[7],
            meta=row[8],
            attempt=row[9],
            retries=row[10],
            snoozes=row[11],
            priority=row[12],
            chain=row[13] or row[3],
            run=row[14],
            labels=split(row[15]),
            enqueued=row[16],
            due=row[17],
            until=row[18] or until,
        )
        jobs.append(job)
        if row[19] & WAITS:
            waited[job.id] = chains_of(row[21])
    return jobs, waited


def job_of(row: Sequence[Any], after: Iterable[tuple[str, bool]] = ()) -> Job:
    """What get.sql answers; `after`: the chains it waits for or waited for, and whether they ended."""
    ended = dict.fromkeys(chains_of(row[28]), True)  # those of its own run, unless it is said otherwise
    chains = sorted((ended | dict(after)).items())
    running = row[3] == "running"
    return Job(
        id=row[0],
        type=readable(row[1]),
        queue=row[2],
        state=row[3],
        args=row[4],
        meta=row[5],
        labels=split(row[6]),
        priority=row[7],
        attempt=row[8],
        retries=row[9],
        snoozes=row[10],
        chain=row[11],
        run=row[12],
        fence=row[13],
        worker=row[14],
        lease_until=row[15] if running else 0,
        enqueued=row[16],
        due=row[17],
        started=row[18],
        progress=row[19],
        cancel_requested=row[20],
        error=_failure.decode(row[21]) if row[21] else None,
        unique=Unique(row[22], row[23], row[24]) if row[22] else None,
        concurrency=Concurrency(row[25], row[26]) if row[25] else None,
        finished=row[29],
        result=row[30],
        followed_by=row[31],
        waits_for=tuple(chain for chain, ended in chains if not ended),
        after=tuple(chain for chain, _ in chains),
    )
