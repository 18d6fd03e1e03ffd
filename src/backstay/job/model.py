"""What jobs are made of, as data: what a caller asks for, what a worker is handed, how an attempt ends.

Times are µs of the engine's clock, durations µs. A fence is a whole number that grows with every claim of a shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from backstay.engine.base import Micros

State = Literal["scheduled", "blocked", "pending", "running", "completed", "failed", "cancelled", "skipped"]

#: A job in one of these changes no more, except that a dead letter or a cancelled job may be tried again by hand.
FINAL: tuple[State, ...] = ("completed", "failed", "cancelled", "skipped")

UniqueScope = Literal["until_start", "until_done", "window"]
#: When a job that waits for others starts: all of them completed; or all of them ended, however; or all of them ended
#: and one of them failed, or was skipped because one before it had. Otherwise it is skipped.
When = Literal["all_success", "all_done", "any_failure"]

#: Priorities go from -LARGEST to LARGEST; more is sooner.
LARGEST_PRIORITY = 100
#: One point of priority is worth this much waiting: a job of priority 0 that has been due for ten minutes goes before
#: one of priority 1 that has just become due. So nothing starves, whatever keeps coming in above it.
AGEING: Micros = 600_000_000


def rank(due: Micros, priority: int) -> int:
    """The order of pending jobs: the smallest goes first."""
    return due - priority * AGEING


class Rate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """At most `burst` starts at once and one more every `interval` µs, for all jobs of one bucket (GCRA)."""

    bucket: str
    interval: Micros
    burst: int


class Unique(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One job for a key: until it starts, until it is done, or for `window` µs from its enqueueing on."""

    key: str
    scope: UniqueScope
    window: Micros = 0


class Concurrency(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """At most `limit` jobs of this key run at once in their shard."""

    key: str
    limit: int


class NewJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A job to be. Its id is made by the caller, so that asking twice makes one job."""

    id: str
    type: str
    queue: str = "default"
    #: The arguments as bytes, and what else only workers read (time limit, back-off, trace context, …).
    args: bytes = b""
    meta: bytes = b""
    #: Sorted, without doubles.
    labels: tuple[str, ...] = ()
    priority: int = 0
    #: How long from now until it is due; `due` is a moment instead (0: `delay` counts).
    delay: Micros = 0
    due: Micros = 0
    #: Attempts after the first.
    retries: int = 0
    unique: Unique | None = None
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    #: Ids of chains that must end before it starts. A set: no doubles.
    after: tuple[str, ...] = ()
    when: When = "all_success"
    #: Its failure holds nobody up: whoever waits for it goes on as if it had completed with no result, and its run may
    #: still succeed.
    soft: bool = False
    #: The first job of its chain; "": itself.
    chain: str = ""
    #: The workflow run it belongs to; "": none.
    run: str = ""
    #: How long its record stays after it completed (or was cancelled or skipped), and after it failed.
    keep: Micros = 86_400_000_000
    keep_failed: Micros = 30 * 86_400_000_000

    @property
    def starts_at_once(self) -> bool:
        """Whether it certainly is pending as soon as it is stored."""
        return not (self.delay or self.due or self.after or self.unique)


class Alike(list[NewJob]):
    """Jobs that differ in their ids and arguments alone: what is found out of the first holds for all of them."""


def each_kind(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """One job of each kind among these, or simply all of them."""
    return jobs[:1] if isinstance(jobs, Alike) else jobs


class Enqueued(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of a NewJob: its id and state; or those of the job that has its unique key already."""

    id: str
    state: State
    deduplicated: bool = False


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why an attempt ended badly. Travels and is stored as msgpack."""

    kind: str
    message: str
    #: The worker's traceback, shortened; "" where there is none.
    trace: str = ""
    attempt: int = 0
    at: Micros = 0


FinishKind = Literal["complete", "fail", "retry", "snooze", "release", "cancel", "skip"]


class Finish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How an attempt ended, by whoever holds its lease.

    complete: `result` is kept; with `next`, the chain goes on with it in the same step.
    fail: no more attempts: dead letter. retry: again after `delay`; dead letter when attempts are used up.
    snooze: again after `delay`, the attempt is not counted, `snoozes` is. release: again at once, the attempt is not
    counted (a worker that leaves). cancel: ended for good, by its own will. skip: it need not be done (its condition
    does not hold); those who wait for it are skipped with it, as nobody's failure.
    """

    job: str
    fence: int
    kind: FinishKind
    result: bytes = b""
    error: Failure | None = None
    delay: Micros = 0
    next: NewJob | None = None
    #: Jobs made in the same step, before `next` (which may wait for them): with `complete` only.
    adds: tuple[NewJob, ...] = ()
    #: Text by key, kept with the job in the same step (as by `Store.put_outputs`): with `complete` only.
    outputs: dict[str, str] = {}


class Stand(msgspec.Struct, frozen=True, array_like=True):
    """What a worker without work leaves in the shard: whoever enqueues a plain job of these queues and types may lease
    it to that worker, and tell it so on a channel of its own.
    """

    #: A channel that nobody else hears.
    inbox: str
    #: How long it stands.
    life: Micros
    #: Names of types with NULs before, between and behind them.
    types: str
    queues: tuple[str, ...]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker can take: up to `want` jobs, from queues in groups. Groups come in order; within one, the smallest
    rank first. A job's labels must all be among the worker's.
    """

    want: int
    queues: tuple[tuple[str, ...], ...] = (("default",),)
    labels: tuple[str, ...] = ()
    #: How long a lease lives without renewal.
    lease: Micros = 30_000_000
    #: Counters of announcements, where the store announces: no more jobs than they still allow. Empty: any number.
    hints: tuple[str, ...] = ()
    #: Where the store takes such: if there is nothing to take, the claim stands until its lane's next step, its end, or
    #: the job that is handed over to it.
    stand: Stand | None = None


class StepCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's turn in one shard: finish these, then hand me more. `lane` and `seq` make it safe to send again: see
    `Store.step`. `lanes` of one worker never wait for one another.
    """

    shard: int
    worker: str
    #: New with every start of a worker and after every fork.
    incarnation: str
    lane: int
    seq: int
    finishes: tuple[Finish, ...] = ()
    claim: Claim
    #: Engine time after which it has no effect.
    not_after: Micros
    #: The seq of this lane whose claim was left standing, if nothing was heard of it since; 0: none.
    unheard: int = 0


class Claimed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job in a worker's hands: `fence` names its lease, which lives until `until` unless renewed."""

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
    #: When it was enqueued, when it became due, until when the lease lives.
    enqueued: Micros
    due: Micros
    until: Micros
    #: What the chains it waited for came to, by chain id: the result's bytes, or None for one that did not complete.
    upstream: dict[str, bytes | None] = {}


#: "ok": done. "stale": the lease is not current; nothing changed.
Verdict = Literal["ok", "stale"]


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """A chain of one shard has ended, and `job` of another waits for it. `result`: None unless it completed."""

    job: str
    chain: str
    result: bytes | None


class StepReply(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a step."""

    now: Micros
    verdicts: tuple[Verdict, ...] = ()
    jobs: tuple[Claimed, ...] = ()
    #: µs until something here becomes due or a lease ends; None: nothing is scheduled and nobody runs anything. 0: also
    #: when it passed over a job that somebody else held at that moment.
    next_in: Micros | None = None
    #: Jobs by type that this step made pending and did not hand to this worker: others ought to hear of them.
    ready: dict[str, int] = {}
    #: Ends of chains that jobs of other shards wait for: `Store.deliver` each to its shard, then `Store.delivered`.
    outbox: tuple[Delivery, ...] = ()
    #: The lane is past this seq: whoever sent it is no longer the one to be answered. Nothing happened.
    stale: bool = False
    #: `not_after` was over. Nothing happened.
    expired: bool = False
    #: The hints it came for are used up, and it came for nothing else. Nothing happened.
    denied: bool = False
    #: The claim that stood was answered, unheard: these are its jobs. Nothing else happened: send the step once more.
    handed: bool = False


class Handed(msgspec.Struct, frozen=True):
    """What came to an inbox: the answer to a claim that stood."""

    #: Whose step that was: worker, incarnation and lane, with NULs between them.
    lane: str
    seq: int
    reply: StepReply


class Renewal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A lease to be kept alive, and how far its job has come (0 to 1; below 0: nothing to say)."""

    job: str
    fence: int
    progress: float = -1.0


#: "ok": it lives on. "cancelled": it lives on, but somebody wants it ended. "lost": it is not current.
RenewalVerdict = Literal["ok", "cancelled", "lost"]


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job as stored, for whoever asks."""

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
    #: 0: not (yet).
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
    #: The chains it still waits for, those it ever waited for, and the job that follows it in its chain.
    waits_for: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    followed_by: str = ""


class JobResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a job of a run came to: of a `Job`, what whoever gathers the results of thousands wants of each."""

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
    """A worker as it told of itself."""

    id: str
    queues: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    concurrency: int = 1
    host: str = ""
    pid: int = 0
    #: How many jobs it runs, and one of them.
    running: int = 0
    current: str = ""
    registered: Micros = 0
    beat: Micros = 0
    draining: bool = False


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue and what is in it."""

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
    """A cron entry's turn: `job` is enqueued unless a tick as late as `at` was before. `skipped`: earlier moments
    that were missed and are not caught up.
    """

    name: str
    at: Micros
    job: NewJob
