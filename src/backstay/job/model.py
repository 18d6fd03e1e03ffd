"""Data types of jobs: new jobs, outcomes and stored records.

Times are µs of the engine's clock, durations are µs. A fence is an integer that grows with every claim in a shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from backstay.engine.base import Micros

State = Literal["scheduled", "blocked", "pending", "running", "completed", "failed", "cancelled", "skipped"]

#: Final states. A job leaves a final state only when it is retried manually.
FINAL: tuple[State, ...] = ("completed", "failed", "cancelled", "skipped")

UniqueScope = Literal["until_start", "until_done", "window"]
#: When a job with blockers starts. all_success: all of them completed. all_done: all of them ended in any state.
#: any_failure: all of them ended, and one failed or was skipped because of a failure. Otherwise the job is skipped.
When = Literal["all_success", "all_done", "any_failure"]

#: Priorities range from -LARGEST_PRIORITY to LARGEST_PRIORITY; a higher one starts sooner.
LARGEST_PRIORITY = 100
#: One point of priority equals this much waiting time: a job of priority 0 that has been due for ten minutes starts
#: before one of priority 1 that has just become due. This prevents starvation of low priorities.
AGEING: Micros = 600_000_000


def rank(due: Micros, priority: int) -> int:
    """Return the sort key of a pending job in its queue: the due time, moved earlier by AGEING for each point of
    priority. The job with the smallest rank is claimed first.
    """
    return due - priority * AGEING


class StartRate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A rate limit (GCRA) that all jobs with the same `bucket` share: at most `burst` of them start at once, and one
    more every `interval` µs.
    """

    bucket: str
    interval: Micros
    burst: int


class Unique(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A unique key, which at most one job holds at a time: until that job starts, until it is done, or for `window` µs
    after it is enqueued, as `scope` says.
    """

    key: str
    scope: UniqueScope
    window: Micros = 0


class Concurrency(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A concurrency key: at most `limit` jobs with this key run at once in their shard."""

    key: str
    limit: int


class NewJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A job to be enqueued. The caller generates its id, so that sending it twice stores one job (idempotent)."""

    id: str
    type: str
    queue: str = "default"
    #: The encoded arguments, opaque to the store.
    args: bytes = b""
    #: The encoded metadata (`Meta` in metadata.py: time limit, backoff, trace context, …), opaque to the store.
    meta: bytes = b""
    #: Sorted, without duplicates.
    labels: tuple[str, ...] = ()
    priority: int = 0
    #: How long after it is stored the job is due. Ignored if `due` is set.
    delay: Micros = 0
    #: The time at which the job is due; 0: `delay` decides.
    due: Micros = 0
    #: Attempts after the first.
    retries: int = 0
    unique: Unique | None = None
    concurrency: Concurrency | None = None
    rate: StartRate | None = None
    #: The job's blockers: ids of chains that must end before it starts, without duplicates.
    after: tuple[str, ...] = ()
    when: When = "all_success"
    #: The job's failure is tolerated: dependents start as if it had completed without a result; its run may succeed.
    soft: bool = False
    #: The id of the chain that the job continues, which is the id of the chain's first job; "": it starts a chain.
    chain: str = ""
    #: The id of the workflow run that the job belongs to; "": none.
    run: str = ""
    #: How long the job's record is stored after its end, unless it failed.
    keep: Micros = 86_400_000_000
    #: How long the record of a failed job is stored after its end.
    keep_failed: Micros = 30 * 86_400_000_000

    @property
    def starts_at_once(self) -> bool:
        """Whether the job is certain to be pending once it is stored: nothing can delay, block or deduplicate it."""
        return not (self.delay or self.due or self.after or self.unique)


class UniformBatch(list[NewJob]):
    """Jobs that differ only in id and arguments. What is checked of the first one therefore holds for all of them."""


def distinct_templates(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return the jobs that stand for all of a batch when a caller checks options: only the first job of a UniformBatch,
    whose jobs have equal options, else every job.
    """
    return jobs[:1] if isinstance(jobs, UniformBatch) else jobs


class Enqueued(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of enqueueing a NewJob: its id and state. If another job already holds its unique key, the NewJob is
    not stored: then `deduplicated` is True, and `id` and `state` are those of the other job.
    """

    id: str
    state: State
    deduplicated: bool = False


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why an attempt failed. Sent and stored as msgpack."""

    kind: str
    message: str
    #: The end of the handler's traceback; "" if there is none.
    trace: str = ""
    attempt: int = 0
    at: Micros = 0


FinishKind = Literal["complete", "fail", "retry", "snooze", "release", "cancel", "skip"]


class Finish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The outcome of an attempt, reported by the holder of its lease.

    `kind` is one of:
    complete: the job completes and `result` is stored. With `next`, that job is stored in the same transaction and
        continues the chain.
    fail: the job fails without further attempts and becomes a dead letter.
    retry: another attempt starts after `delay`. If no attempts are left, the job becomes a dead letter instead.
    snooze: another attempt starts after `delay`. The ended attempt is counted as a snooze, not as an attempt.
    release: the job is pending again at once, because its worker is stopping. The ended attempt does not count.
    cancel: the handler cancelled the job.
    skip: the job's condition does not hold. The job and its dependents are skipped, and none of them counts as failed.
    """

    job: str
    fence: int
    kind: FinishKind
    result: bytes = b""
    error: Failure | None = None
    delay: Micros = 0
    next: NewJob | None = None
    #: Only with `complete`: further jobs that are stored in the same transaction. They are stored before `next`, so
    #: that `next` may have them as blockers.
    adds: tuple[NewJob, ...] = ()
    #: Only with `complete`: the job's outputs (text by name), which are stored in the same transaction, as
    #: `Store.put_outputs` would store them.
    outputs: dict[str, str] = {}


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job's stored record."""

    id: str
    type: str
    queue: str
    state: State
    args: bytes
    meta: bytes
    labels: tuple[str, ...]
    priority: int
    attempt: int
    retries: int
    snoozes: int
    chain: str
    run: str
    #: The fence of the current lease. In this and the next six fields, 0 or "" means that the job has no such value
    #: yet, or no longer.
    fence: int = 0
    worker: str = ""
    lease_until: Micros = 0
    enqueued: Micros = 0
    due: Micros = 0
    started: Micros = 0
    finished: Micros = 0
    progress: float = 0.0
    cancel_requested: bool = False
    result: bytes | None = None
    error: Failure | None = None
    unique: Unique | None = None
    concurrency: Concurrency | None = None
    #: The chains that the job still waits for.
    waits_for: tuple[str, ...] = ()
    #: All chains that the job was enqueued to wait for.
    after: tuple[str, ...] = ()
    #: The id of the job that continues this job's chain; "": none.
    followed_by: str = ""


class JobResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The fields of a `Job` that suffice to collect the results of a workflow run. A run may have thousands of jobs, so
    the other fields are not read.
    """

    id: str
    type: str
    state: State
    chain: str
    followed_by: str
    result: bytes | None


class LogLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line of a job's log, or a part of a very long one. `seq` counts from 1 for each job."""

    seq: int
    at: Micros
    stream: str
    data: str


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's stored record, as of its last heartbeat."""

    id: str
    queues: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    concurrency: int = 1
    host: str = ""
    pid: int = 0
    #: How many jobs the worker is running.
    running: int = 0
    #: The id of one of the jobs that the worker is running.
    current: str = ""
    registered: Micros = 0
    beat: Micros = 0
    draining: bool = False
    #: The owner of the token with which an HTTP worker registered; empty without tokens, and for other workers.
    owner: str = ""


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with the number of its jobs by state."""

    name: str
    paused: bool = False
    rate: StartRate | None = None
    scheduled: int = 0
    blocked: int = 0
    pending: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    #: When the oldest pending job became due; 0: none is pending.
    oldest_due: Micros = 0


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """A moment at which a cron entry is due: `job` is enqueued unless the entry has already ticked at `at` or later."""

    name: str
    at: Micros
    job: NewJob
