"""An attempt: what a worker knows of one claimed job, from the claim until the store has acknowledged the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from backstay.engine.base import steady
from backstay.errors import JobCancelled, JobTimeout, LeaseLost
from backstay.job.exchange import Claimed
from backstay.job.ids import lease_id
from backstay.job.model import Finish, NewJob
from backstay.runtime.lease import MARGIN, RENEW_AT, BaseLease

if TYPE_CHECKING:
    from backstay.job.api.context import JobContext
    from backstay.job.api.definition import BaseJobType
    from backstay.job.worker.execution.log_buffer import LogBuffer

FOREVER = float("inf")

#: Why a handler must end early; "": it need not. "lost": its lease is lost, so another worker may run the same job.
Why = Literal["", "timeout", "cancelled", "stopping", "lost"]


class Attempt:
    """One attempt at a job. It belongs to the worker's event loop; the keeper's thread and the handler's thread only
    read it and assign single fields.
    """

    # Fields with a default, from `timeout_at` to `lease`. Most attempts keep the defaults. They are class attributes,
    # so an attempt that keeps them needs no memory and no time for them.

    #: When (monotonic clock) the handler exceeds its time limit and is interrupted.
    timeout_at = FOREVER
    #: When (monotonic clock) the handler is abandoned if it still runs.
    abandon_at = FOREVER
    task: asyncio.Task[None] | None = None
    #: Asks a handler in a thread or a child process to end.
    on_interrupt: Callable[[], None] | None = None
    #: Gives up on a handler that does not end: abandons its thread, or kills its child process.
    kill: Callable[[], None] | None = None
    why: Why = ""
    reason = ""
    #: The outcome, once it is decided. The attempt then only waits for the store's acknowledgement.
    finish: Finish | None = None
    abandoned = False
    progress = -1.0
    next: NewJob | None = None
    adds: tuple[NewJob, ...] = ()
    outputs: dict[str, str] | None = None
    log_buffer: LogBuffer | None = None
    context: JobContext | None = None
    lease: BaseLease | None = None

    def __init__(self, job: Claimed, definition: BaseJobType[Any, Any], shard: int, ttl: float, sent: float) -> None:
        self.job = job
        self.definition = definition
        self.shard = shard
        self.ttl = ttl
        #: Until when (monotonic clock) this worker certainly holds the lease. It is counted from when the claim was
        #: sent, because the lease began after that.
        self.deadline = sent + ttl * (1 - MARGIN)
        #: When the lease is to be renewed.
        self.renew_at = sent + ttl * RENEW_AT
        self.started = sent

    @property
    def name(self) -> str:
        """The name used in logs: job type and id."""
        return f"{self.job.type} {self.job.id}"

    @property
    def is_over(self) -> bool:
        """Whether the outcome is decided, so that what the handler may still do is ignored."""
        return self.finish is not None or self.abandoned

    def interrupt(self, why: Why, reason: str, grace: float) -> bool:
        """Ask the handler to end within `grace` seconds. Returns False if it was asked before or has ended. Call it on
        the event loop.
        """
        if self.is_over:
            return False
        if why == "lost" and self.lease is not None:
            self.lease.lose(reason)
        if self.why:
            if why == "lost":  # overrides any other reason: the outcome is not reported at all
                self.why, self.reason = why, reason
            return False
        self.why, self.reason = why, reason
        self.abandon_at = min(self.abandon_at, steady() + grace)
        if self.on_interrupt is not None:
            self.on_interrupt()
        elif self.task is not None:
            self.task.cancel()
        return True

    def require_lease(self) -> None:
        """Raise LeaseLost if the lease may have expired. Called right before the handler: the process may have been
        suspended for longer than a lease since the claim, so that another worker may run the job now.
        """
        if steady() >= self.deadline:
            self.why, self.reason = "lost", "the lease expired before the handler started"
            raise self._lease_lost_error()

    def call_leased(self, handler: Callable[[], Any]) -> Any:
        """Check the lease, then call the handler. Runs in a pool thread, which may start long after the claim, when the
        lease may have expired.
        """
        self.require_lease()
        return handler()

    def check(self) -> None:
        """Raise JobTimeout, JobCancelled or LeaseLost if the handler must end or the lease may have expired."""
        if self.why == "timeout":
            raise JobTimeout(job_id=self.job.id, type=self.job.type, timeout=self.timeout_at - self.started)
        if self.why == "cancelled":
            raise JobCancelled(job_id=self.job.id, type=self.job.type, reason=self.reason)
        if self.why == "stopping":
            raise JobCancelled(job_id=self.job.id, type=self.job.type, reason="the worker is stopping")
        if self.why == "lost" or self.abandoned or steady() >= self.deadline:
            raise self._lease_lost_error()

    def _lease_lost_error(self) -> LeaseLost:
        """Return the error for a handler whose lease is lost."""
        return LeaseLost(
            name=self.job.id,
            lock_id=lease_id(self.job.id, self.job.fence),
            fence=self.job.fence,
            reason=self.reason or "the lease expired before it was renewed",
        )

    def extend(self, sent: float, until: int) -> None:
        """Record that the lease was renewed. `sent`: when the request was sent (monotonic clock); this worker counts
        the lease's TTL from then. `until`: the lease's new end on the engine's clock.
        """
        self.deadline = sent + self.ttl * (1 - MARGIN)
        self.renew_at = sent + self.ttl * RENEW_AT
        if self.lease is not None:
            self.lease.extend(until, sent, self.ttl)
