"""What is made of a new job before its transaction begins: checked, encoded, with its flags."""

from __future__ import annotations

from typing import NamedTuple

from backstay.errors import ConfigError
from backstay.job.model import LARGEST_PRIORITY, NewJob
from backstay.job.stores.sqlite.columns import (
    ALL_DONE,
    ANY_FAILURE,
    HAS_BLOCKERS,
    HAS_BODY,
    IN_RUN,
    SOFT,
    SPECIAL,
    encode,
    text_of,
)

#: SQLite's whole numbers end here; times stay far below, so that sums of two fit.
LARGEST = 2**61
#: Arguments of more bytes than this lie apart: a job's row is rewritten with every change of its state.
LARGE = 1000


class Kind(NamedTuple):
    """What a job shares with others, in the order of the statements in kind.sql."""

    queue: str
    labels: str
    bucket: str
    period: int
    burst: int
    type: str
    #: 1: of a run that is stored.
    runs: int = 0


class Encoded(NamedTuple):
    """A job with what can be made of it before the transaction begins."""

    job: NewJob
    kind: Kind
    uniq: bytes | None
    flags: int


def storable(what: str, *texts: str) -> None:
    """Refuses text that SQLite would refuse in the middle of a transaction."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} is not text that can be stored: {error.reason}") from error


def prepare(job: NewJob) -> Encoded:
    """Refuses here what SQLite would refuse in the middle of a transaction."""
    if not -LARGEST_PRIORITY <= job.priority <= LARGEST_PRIORITY:
        raise ConfigError(f"priority {job.priority} of job {job.id}: from -{LARGEST_PRIORITY} to {LARGEST_PRIORITY}")
    rate, concurrency, unique = job.rate, job.concurrency, job.unique
    numbers = [job.delay, job.due, job.retries, job.keep, job.keep_failed]
    texts: list[str] = [job.id, job.type, job.queue, job.chain, job.run, *job.labels, *job.after]
    if rate is not None:
        numbers += [rate.interval, rate.burst]
        texts.append(rate.bucket)
    if concurrency is not None:
        numbers.append(concurrency.limit)
        texts.append(concurrency.key)
    if unique is not None:
        numbers.append(unique.window)
        texts.append(unique.key)
    if min(numbers) <= -LARGEST or max(numbers) >= LARGEST:
        raise ConfigError(f"a number of job {job.id} ({job.type}) is too large: times are µs, below {LARGEST}")
    if "\0" in job.id or "\0" in job.queue:
        raise ConfigError(f"job {job.id!r} in queue {job.queue!r}: SQLite takes a NUL for the end of a name")
    storable("a name of a job", *texts)
    return Encoded(
        job,
        Kind(
            job.queue,
            text_of(job.labels) if job.labels else "[]",
            rate.bucket if rate else "",
            rate.interval if rate else 0,
            rate.burst if rate else 0,
            job.type,
        ),
        encode(unique) if unique is not None else None,
        flags_of(job),
    )


def flags_of(job: NewJob) -> int:
    special = job.run or (job.chain and job.chain != job.id) or job.unique is not None or job.concurrency is not None
    return (
        (HAS_BLOCKERS if job.after else 0)
        | (ALL_DONE if job.when == "all_done" else 0)
        | (HAS_BODY if len(job.args) + len(job.meta) > LARGE else 0)
        | (SPECIAL if special else 0)
        | (ANY_FAILURE if job.when == "any_failure" else 0)
        | (SOFT if job.soft else 0)
    )


def in_run(encoded: Encoded) -> Encoded:
    """A job whose run is stored."""
    if encoded.kind.runs:
        return encoded
    return Encoded(encoded.job, Kind(*encoded.kind[:-1], 1), encoded.uniq, encoded.flags | IN_RUN)
