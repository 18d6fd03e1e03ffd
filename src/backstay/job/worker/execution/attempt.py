"""An attempt: a worker's state of one claimed job, from the claim until the store has acknowledged its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from backstay.engine.base import steady
from backstay.errors import JobCancelled, JobTimeout, LeaseLost
from backstay.job.ids import lease_id
from backstay.job.model import Claimed, Finish, NewJob
from backstay.runtime.lease import MARGIN, RENEW_AT, BaseLease

if TYPE_CHECKING:
    from backstay.job.api.context import JobContext
    from backstay.job.api.definition import BaseJobType
    from backstay.job.worker.execution.log_buffer import LogBuffer

FOREVER = float("inf")

#: Why a handler must end early. "lost": its lease is lost, so another worker may run the same job.
Why = Literal["", "timeout", "cancelled", "stopping", "lost"]


class Attempt:
    """One attempt at a job. Belongs to the worker's event loop; the keeper's thread and the handler's thread only read
    it and assign single fields.
    """

    # Most attempts never set these fields; as class attributes they cost no memory or time per attempt.

    #: When (monotonic clock) the handler is interrupted, and when it is abandoned.
    timeout_at = FOREVER
    abandon_at = FOREVER
    task: asyncio.Task[None] | None = None
    #: Asks a handler in a thread or process to end; kills one that does not.
    on_interrupt: Callable[[], None] | None = None
    kill: Callable[[], None] | None = None
    why: Why = ""
    reason = ""
    #: The outcome. Once set, only the store's acknowledgement is missing.
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
        #: Until when this worker surely holds the lease, and when to renew it: counted from before the claim was sent.
        self.deadline = sent + ttl * (1 - MARGIN)
        self.renew_at = sent + ttl * RENEW_AT
        self.started = sent

    @property
    def name(self) -> str:
        """The name used in logs: job type and id."""
        return f"{self.job.type} {self.job.id}"

    @property
    def is_over(self) -> bool:
        """Whether the outcome is decided, so that nothing the handler still does counts."""
        return self.finish is not None or self.abandoned

    def interrupt(self, why: Why, reason: str, grace: float) -> bool:
        """Ask the handler to end within `grace` seconds. Returns False if it was asked before. Event loop only."""
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
        """Raise LeaseLost if the lease may have expired; called right before the handler. The process may have been
        suspended for longer than a lease since the claim was sent, and another worker may run the job by now.
        """
        if steady() >= self.deadline:
            self.why, self.reason = "lost", "the lease expired before the handler started"
            raise self.lease_lost()

    def call_leased(self, handler: Callable[[], Any]) -> Any:
        """Check the lease, then call the handler. For threads, where the handler may start much later."""
        self.require_lease()
        return handler()

    def check(self) -> None:
        """Raise if the handler must end or if the lease may have expired."""
        if self.why == "timeout":
            raise JobTimeout(job_id=self.job.id, type=self.job.type, timeout=self.timeout_at - self.started)
        if self.why == "cancelled":
            raise JobCancelled(job_id=self.job.id, type=self.job.type, reason=self.reason)
        if self.why == "stopping":
            raise JobCancelled(job_id=self.job.id, type=self.job.type, reason="the worker is stopping")
        if self.why == "lost" or self.abandoned or steady() >= self.deadline:
            raise self.lease_lost()

    def lease_lost(self) -> LeaseLost:
        """Return the error for a handler whose lease is lost."""
        return LeaseLost(
            name=self.job.id,
            lock_id=lease_id(self.job.id, self.job.fence),
            fence=self.job.fence,
            reason=self.reason or "the lease expired before it was renewed",
        )

    def extend(self, sent: float, until: int) -> None:
        """Record a renewal: the lease runs for another `ttl`, counted from before the request was sent."""
        self.deadline = sent + self.ttl * (1 - MARGIN)
        self.renew_at = sent + self.ttl * RENEW_AT
        if self.lease is not None:
            self.lease.extend(until, sent, self.ttl)
