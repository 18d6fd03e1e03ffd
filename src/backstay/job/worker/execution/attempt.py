"""One attempt at a job: what a worker holds from the claim until the store has taken note of its end."""

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
    from backstay.job.worker.execution.log_buffer import Journal

FOREVER = float("inf")

#: Why a handler is to end early. "lost": the lease; whatever it still does is not protected.
Why = Literal["", "timeout", "cancelled", "stopping", "lost"]


class Attempt:
    """Lives on the worker's loop; the keeper's thread and a handler's thread only read, and set single fields."""

    # Most attempts end without ever touching these: they cost nothing as long as they are the class's own.

    #: When the handler is asked to end, and when it is left to itself.
    soft = FOREVER
    hard = FOREVER
    task: asyncio.Task[None] | None = None
    #: Tells a handler outside the loop that it is to end; ends one that does not.
    interrupted: Callable[[], None] | None = None
    kill: Callable[[], None] | None = None
    why: Why = ""
    reason = ""
    #: How it ended; from then on only the store's word is waited for.
    finish: Finish | None = None
    abandoned = False
    progress = -1.0
    next: NewJob | None = None
    adds: tuple[NewJob, ...] = ()
    outputs: dict[str, str] | None = None
    journal: Journal | None = None
    context: JobContext | None = None
    lease: BaseLease | None = None

    def __init__(self, job: Claimed, definition: BaseJobType[Any, Any], shard: int, ttl: float, sent: float) -> None:
        self.job = job
        self.definition = definition
        self.shard = shard
        self.ttl = ttl
        #: Until when the lease is certainly ours, and when it is to be renewed: counted from before the claim left.
        self.deadline = sent + ttl * (1 - MARGIN)
        self.renew_at = sent + ttl * RENEW_AT
        self.started = sent

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.job.type} {self.job.id}"

    @property
    def is_over(self) -> bool:
        """Nothing the handler still does counts."""
        return self.finish is not None or self.abandoned

    def interrupt(self, why: Why, reason: str, grace: float) -> bool:
        """Ask the handler to end; False when it has been asked already. It has `grace` seconds. On the loop only."""
        if self.is_over:
            return False
        if why == "lost" and self.lease is not None:
            self.lease.lose(reason)
        if self.why:
            if why == "lost":  # the one reason that outweighs another: nothing is reported any more
                self.why, self.reason = why, reason
            return False
        self.why, self.reason = why, reason
        self.hard = min(self.hard, steady() + grace)
        if self.interrupted is not None:
            self.interrupted()
        elif self.task is not None:
            self.task.cancel()
        return True

    def begin(self) -> None:
        """The handler is about to be called. Since the claim left, this process may have stood still for longer than a
        lease: then somebody else has the job, and must not find us at it.
        """
        if steady() >= self.deadline:
            self.why, self.reason = "lost", "it ran out before it began"
            raise self.loss()

    def begun(self, handler: Callable[[], Any]) -> Any:
        """The same for a handler that begins elsewhere: in a thread, when there is one."""
        self.begin()
        return handler()

    def check(self) -> None:
        """Raise if the handler ought to have ended, or if the lease may be somebody else's."""
        if self.why == "timeout":
            raise JobTimeout(job_id=self.job.id, type=self.job.type, timeout=self.soft - self.started)
        if self.why == "cancelled":
            raise JobCancelled(job_id=self.job.id, type=self.job.type, reason=self.reason)
        if self.why == "stopping":
            raise JobCancelled(job_id=self.job.id, type=self.job.type, reason="its worker stops")
        if self.why == "lost" or self.abandoned or steady() >= self.deadline:
            raise self.loss()

    def loss(self) -> LeaseLost:
        return LeaseLost(
            name=self.job.id,
            lock_id=lease_id(self.job.id, self.job.fence),
            fence=self.job.fence,
            reason=self.reason or "it ran out before it was renewed",
        )

    def extend(self, sent: float, until: int) -> None:
        """Renewed: ours for another while, counted from before the request left."""
        self.deadline = sent + self.ttl * (1 - MARGIN)
        self.renew_at = sent + self.ttl * RENEW_AT
        if self.lease is not None:
            self.lease.extend(until, sent, self.ttl)
