"""Data types of jobs: new jobs, claims, outcomes, exchanges and stored records.

Times are µs of the engine's clock, durations are µs. A fence is an integer that grows with every claim in a shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from backstay.engine.base import Micros

State = Literal["scheduled", "blocked", "pending", "running", "completed", "failed", "cancelled", "skipped"]

#: Final states. A job leaves one only when it is retried manually.
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
    """Return the sort key of a pending job; the smallest is claimed first."""
    return due - priority * AGEING


class Rate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A rate limit (GCRA) for all jobs of one bucket: at most `burst` starts at once, one more every `interval` µs."""

    bucket: str
    interval: Micros
    burst: int


class Unique(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A unique key: one job per key until it starts, until it is done, or for `window` µs after it is enqueued."""

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
    #: The encoded arguments, and encoded metadata that only workers read (time limit, backoff, trace context, …).
    args: bytes = b""
    meta: bytes = b""
    #: Sorted, without duplicates.
    labels: tuple[str, ...] = ()
    priority: int = 0
    #: The delay until the job is due. `due` is an absolute time instead; 0: use `delay`.
    delay: Micros = 0
    due: Micros = 0
    #: Attempts after the first.
    retries: int = 0
    unique: Unique | None = None
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    #: Its blockers: ids of chains that must end before it starts, without duplicates.
    after: tuple[str, ...] = ()
    when: When = "all_success"
    #: Its failure is tolerated: dependents start as if it had completed without a result, and its run may succeed.
    soft: bool = False
    #: The id of its chain, which is that of the chain's first job; "": it starts a chain.
    chain: str = ""
    #: The workflow run it belongs to; "": none.
    run: str = ""
    #: Retention of its record after it completed (or was cancelled or skipped), and after it failed.
    keep: Micros = 86_400_000_000
    keep_failed: Micros = 30 * 86_400_000_000

    @property
    def starts_at_once(self) -> bool:
        """Whether the job is certain to be pending as soon as it is stored."""
        return not (self.delay or self.due or self.after or self.unique)


class UniformBatch(list[NewJob]):
    """Jobs that differ only in id and arguments, so that checks on the first one hold for all of them."""


def distinct_templates(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return the jobs whose options must be checked: only the first if all jobs of the batch have the same options,
    else all of them.
    """
    return jobs[:1] if isinstance(jobs, UniformBatch) else jobs


class Enqueued(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of enqueueing a NewJob: its id and state, or those of the job that already has its unique key."""

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

    complete: `result` is stored; with `next`, the chain continues with that job in the same transaction.
    fail: no more attempts, the job becomes a dead letter.
    retry: another attempt after `delay`; a dead letter if the attempts are used up.
    snooze: another try after `delay`; counts as a snooze, not as an attempt.
    release: pending again at once without counting the attempt (a worker stops).
    cancel: the handler cancelled the job. skip: the job's condition does not hold; its dependents are skipped too,
    without counting as a failure.
    """

    job: str
    fence: int
    kind: FinishKind
    result: bytes = b""
    error: Failure | None = None
    delay: Micros = 0
    next: NewJob | None = None
    #: Jobs stored in the same transaction, before `next`, which may wait for them: with `complete` only.
    adds: tuple[NewJob, ...] = ()
    #: Strings by key, stored with the job in the same transaction (as by `Store.put_outputs`): with `complete` only.
    outputs: dict[str, str] = {}


class WaitingClaimSpec(msgspec.Struct, frozen=True, array_like=True):
    """How an idle worker's claim waits in the shard: `enqueue` may lease a matching job directly to that worker and
    publish it to the worker's inbox.
    """

    #: A hub channel to which only this worker subscribes.
    inbox: str
    #: How long the claim waits.
    life: Micros
    #: Names of job types with NULs before, between and after them.
    types: str
    queues: tuple[str, ...]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A request for up to `want` jobs from groups of queues. Groups are searched in order; within one, the smallest
    rank comes first. The worker must have all labels of a job.
    """

    want: int
    queues: tuple[tuple[str, ...], ...] = (("default",),)
    labels: tuple[str, ...] = ()
    #: The duration of a lease without renewal.
    lease: Micros = 30_000_000
    #: Announcement counters, if claims consume them: claim no more jobs than they still allow. Empty: no such limit.
    hints: tuple[str, ...] = ()
    #: If the store supports it and nothing is pending, the claim waits in the shard until the channel's next exchange,
    #: its expiry, or a job handed to it.
    waiting: WaitingClaimSpec | None = None


class ExchangeCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's round trip to one shard: acknowledge finished attempts, then claim jobs. `channel` and `seq` make it
    idempotent: see `Store.exchange`. The channels of one worker never wait for each other.
    """

    shard: int
    worker: str
    #: A new one for every start of a worker and after every fork.
    incarnation: str
    channel: int
    seq: int
    finishes: tuple[Finish, ...] = ()
    claim: Claim
    #: Engine time after which the command has no effect.
    not_after: Micros
    #: The seq of this channel whose claim may still wait in the shard, without a handoff received for it; 0: none.
    waiting_seq: int = 0


class Claimed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A claimed job: `fence` identifies its lease, which expires at `until` unless renewed."""

    id: str
    fence: int
    type: str
    queue: str
    args: bytes
    meta: bytes
    #: Counted from 1.
    attempt: int
    retries: int
    snoozes: int
    priority: int
    chain: str
    run: str
    labels: tuple[str, ...]
    #: When it was enqueued, when it became due, when the lease expires.
    enqueued: Micros
    due: Micros
    until: Micros
    #: The encoded results of its blockers, by chain id; None for a chain that did not complete.
    upstream: dict[str, bytes | None] = {}


#: "ok": the outcome is stored. "stale": the lease is not current; nothing changed.
Verdict = Literal["ok", "stale"]


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """An ended chain that `job` in another shard waits for. `result` is None unless the chain completed."""

    job: str
    chain: str
    result: bytes | None


class ExchangeReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to an exchange."""

    now: Micros
    verdicts: tuple[Verdict, ...] = ()
    jobs: tuple[Claimed, ...] = ()
    #: µs until a job becomes due or a lease expires in the shard; None: no job is scheduled or running. 0 also when the
    #: claim skipped a row locked by another transaction.
    next_in: Micros | None = None
    #: Jobs by type that this exchange made pending and did not lease to this worker: announce them to other workers.
    ready: dict[str, int] = {}
    #: Ended chains that jobs in other shards wait for: `Store.deliver` each to its shard, then `Store.delivered`.
    outbox: tuple[Delivery, ...] = ()
    #: The shard has seen a higher seq of this channel, so the sender is outdated. Nothing changed.
    stale: bool = False
    #: `not_after` has passed. Nothing changed.
    expired: bool = False
    #: The claim was limited to announcements, and their counters are used up. Nothing changed.
    denied: bool = False
    #: The waiting claim was answered by a handoff that the worker has not received: `jobs` are its jobs. Nothing else
    #: changed: send the exchange again.
    handed_off: bool = False


class DirectHandoff(msgspec.Struct, frozen=True):
    """A message to a worker's inbox: jobs leased to its waiting claim."""

    #: The channel of the claim: worker, incarnation and channel number, with NULs between them.
    channel: str
    seq: int
    reply: ExchangeReply


class Renewal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A lease to be renewed, and its job's progress (0 to 1; below 0: unchanged)."""

    job: str
    fence: int
    progress: float = -1.0


#: "ok": renewed. "cancelled": renewed, but the job's cancellation is requested. "lost": the lease is not current.
RenewalVerdict = Literal["ok", "cancelled", "lost"]


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
    #: 0 in these fields: not yet, or never.
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
    #: The blockers it still waits for, all of its blockers, and the next job of its chain.
    waits_for: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    followed_by: str = ""


class JobResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a `Job` needed to collect the results of a run with thousands of jobs."""

    id: str
    type: str
    state: State
    chain: str
    followed_by: str
    result: bytes | None


class LogLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One chunk of a job's log. `seq` counts from 1 for each job."""

    seq: int
    at: Micros
    stream: str
    data: str


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's record, as of its last heartbeat."""

    id: str
    queues: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    concurrency: int = 1
    host: str = ""
    pid: int = 0
    #: The number of jobs it runs, and the id of one of them.
    running: int = 0
    current: str = ""
    registered: Micros = 0
    beat: Micros = 0
    draining: bool = False


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with the number of its jobs by state."""

    name: str
    paused: bool = False
    rate: Rate | None = None
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
    """A due moment of a cron entry: `job` is enqueued unless the entry has already ticked at `at` or later."""

    name: str
    at: Micros
    job: NewJob
