"""What workers and stores send each other: exchanges (acknowledge and claim in one round trip), handoffs, renewals.

Times are µs of the engine's clock, durations are µs. A fence is an integer that grows with every claim in a shard.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from backstay.engine.base import Micros
from backstay.job.model import Finish


class WaitingClaimSpec(msgspec.Struct, frozen=True, array_like=True):
    """How the claim of an idle worker waits: the shard stores the claim. A later `enqueue` of a job that this worker
    can run may lease the job directly to the worker, and publish it on the hub channel `inbox`.
    """

    #: A hub channel to which only this worker subscribes.
    inbox: str
    #: How long the claim waits at most.
    life: Micros
    #: The names of the job types that the worker runs, with a NUL before, between and after them: a substring search
    #: for a name between NULs finds only whole names.
    types: str
    queues: tuple[str, ...]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A request for up to `want` jobs from groups of queues. The groups are searched in order; within a group, the job
    with the smallest `rank` (above) comes first. `labels`: the worker's labels. A worker gets only jobs all of whose
    labels it has.
    """

    want: int
    queues: tuple[tuple[str, ...], ...] = (("default",),)
    labels: tuple[str, ...] = ()
    #: After this time without renewal the lease of a claimed job expires.
    lease: Micros = 30_000_000
    #: Each announcement of new jobs has a counter, so that only as many workers respond as there are jobs. `hints`
    #: are the counters of the announcements that this claim responds to. The claim decrements them by up to `want` in
    #: all, and returns at most as many jobs as it could decrement. Empty: the claim responds to no announcement and has
    #: no such limit. Only for a store with `claims_consume_hints`.
    hints: tuple[str, ...] = ()
    #: If the store supports it and no matching job is pending, the claim waits in the shard until an enqueue hands it a
    #: job, the channel sends its next exchange, or the claim expires.
    waiting: WaitingClaimSpec | None = None


class ExchangeCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's round trip to one shard: acknowledge finished attempts, then claim jobs. `channel` and `seq` make it
    idempotent: see `Store.exchange`. A worker may have several channels with a shard. Each has its own sequence, so an
    exchange on one channel need not wait for the reply on another.
    """

    shard: int
    worker: str
    #: A random id, drawn anew whenever a worker starts.
    incarnation: str
    channel: int
    seq: int
    finishes: tuple[Finish, ...] = ()
    claim: Claim
    #: The engine rejects the command after this time of its clock, so a delayed request cannot take effect late.
    not_after: Micros
    #: The seq of this channel's exchange whose claim may still wait in the shard, because the worker has received no
    #: handoff for it. 0: none.
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
    #: When the job was enqueued.
    enqueued: Micros
    #: When the job became due.
    due: Micros
    #: When the job loses its lease, unless the lease is renewed.
    until: Micros
    #: The encoded results of the job's blockers, by chain id; None for a chain that did not complete.
    upstream: dict[str, bytes | None] = {}


#: "ok": the outcome is stored. "stale": the lease is not current; nothing changed.
Verdict = Literal["ok", "stale"]


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a shard's outbox: `chain` has ended, and `job`, which is in another shard, waits for it. `result` is
    None unless the chain completed.
    """

    job: str
    chain: str
    result: bytes | None


class ExchangeReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to an exchange: a verdict on each reported finish, the claimed jobs, and what the worker does next."""

    now: Micros
    verdicts: tuple[Verdict, ...] = ()
    jobs: tuple[Claimed, ...] = ()
    #: µs until a job becomes due or a lease expires in the shard. None: no job is scheduled or running. 0: claim again
    #: at once, for example because the claim skipped a row that another transaction has locked.
    next_in: Micros | None = None
    #: By job type: how many jobs this exchange made pending without leasing them to this worker. The worker announces
    #: these jobs to other workers.
    ready: dict[str, int] = {}
    #: Ended chains that jobs in other shards wait for. The worker passes each to `Store.deliver` of the waiting job's
    #: shard, then to `Store.ack_deliveries` of this shard.
    outbox: tuple[Delivery, ...] = ()
    #: The shard has already seen a higher seq of this channel, so this exchange is outdated. Nothing changed.
    stale: bool = False
    #: `not_after` has passed. Nothing changed.
    expired: bool = False
    #: The claim answered announcements (`Claim.hints`), but other workers have already taken all announced jobs.
    #: Nothing changed.
    denied: bool = False
    #: The claim named by `waiting_seq` was answered by a handoff that the worker has not received; `jobs` are the jobs
    #: of that handoff. Nothing else changed: send the exchange again.
    handed_off: bool = False


class DirectHandoff(msgspec.Struct, frozen=True):
    """A message to a worker's inbox: an enqueue has leased jobs to the worker's waiting claim."""

    #: The worker channel that sent the claim: worker, incarnation and channel number, separated by NULs.
    channel: str
    seq: int
    reply: ExchangeReply


class Renewal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A lease to be renewed. `progress` (0 to 1) is stored as the job's progress; below 0, the stored one is kept."""

    job: str
    fence: int
    progress: float = -1.0


#: "ok": renewed. "cancelled": renewed, but the job's cancellation is requested. "lost": the lease is not current.
RenewalVerdict = Literal["ok", "cancelled", "lost"]
