"""Check and encode new jobs before their transaction begins, so that the write lock is held for SQL statements only."""

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
    json_text,
)

#: Times and other numbers of a job must be below this. SQLite integers have 64 bits, and the sum of several such
#: numbers (a time plus a retention) must fit into one.
LARGEST = 2**61
#: Arguments of more bytes are stored in `backstay_job_body`, since every state change rewrites the job's row.
LARGE = 1000


class Kind(NamedTuple):
    """The attributes that all jobs of a kind share, in the order in which the statements of kind.sql take them."""

    queue: str
    labels: str
    bucket: str
    period: int
    burst: int
    type: str
    #: 1 if the jobs belong to stored runs, else 0.
    runs: int = 0


class PreparedJob(NamedTuple):
    """A new job with everything that can be computed before the transaction begins."""

    job: NewJob
    kind: Kind
    uniq: bytes | None
    flags: int


def require_storable(what: str, *texts: str) -> None:
    """Raise ConfigError for text that SQLite would reject inside the transaction, because it is not valid Unicode."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} cannot be stored as UTF-8 text: {error.reason}") from error


def prepare(job: NewJob) -> PreparedJob:
    """Check and encode a job. Raises ConfigError for values that SQLite would reject inside the transaction."""
    if not -LARGEST_PRIORITY <= job.priority <= LARGEST_PRIORITY:
        raise ConfigError(
            f"priority {job.priority} of job {job.id} is out of range: use -{LARGEST_PRIORITY} to {LARGEST_PRIORITY}"
        )
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
        raise ConfigError(f"job id {job.id!r} or queue {job.queue!r} contains a NUL, which ends a name in SQLite")
    require_storable("a name of a job", *texts)
    return PreparedJob(
        job,
        Kind(
            job.queue,
            json_text(job.labels) if job.labels else "[]",
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


def mark_in_run(prepared: PreparedJob) -> PreparedJob:
    """Mark a job as part of a stored run, so that it is deleted together with the run."""
    if prepared.kind.runs:
        return prepared
    return PreparedJob(prepared.job, Kind(*prepared.kind[:-1], 1), prepared.uniq, prepared.flags | IN_RUN)
