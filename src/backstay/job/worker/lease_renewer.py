"""Leases of running jobs, kept alive on the keeper's thread: a handler that blocks the loop keeps its job.

One call for each shard renews all of them. What the store says to a renewal is the truth about a lease: lost, or
wanted to end; a hint on `owls` only makes us ask sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from backstay.engine.base import steady
from backstay.job.model import Renewal
from backstay.job.worker.execution.attempt import FOREVER, Attempt
from backstay.runtime.keeper import LONGEST_CALL, RETRY_AT_LEAST, RETRY_AT_MOST, TOGETHER

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.job.worker.slots import Slots
    from backstay.runtime.core import Core

#: Progress is seen by others within about this time.
TELL_PROGRESS = 1.0

#: A handler that was to have ended so long ago has blocked the loop, which would have left it behind.
OVERDUE = 1.0

#: Called on the loop: this attempt's lease is lost, or its end is wanted.
Told = Callable[[Attempt, str], None]


class Tending:
    """Looks after everything in a worker's hands."""

    def __init__(
        self,
        core: Core,
        store: Store,
        slots: Slots,
        worker: str,
        *,
        lease: float,
        grace: float,
        lost: Told,
        cancelled: Told,
    ) -> None:
        self._core = core
        self._store = store
        self._slots = slots
        self._worker = worker
        self._lease = lease
        self._grace = grace
        self._lost = lost
        self._cancelled = cancelled
        #: When the keeper comes by itself.
        self._wake_at = FOREVER

    def open(self) -> None:
        self._core.keeper.attend(self)

    def close(self) -> None:
        """Safe twice. Leases that remain run out."""
        self._core.keeper.dismiss(self)

    def added(self, renew_at: float) -> None:
        """There is something more to look after."""
        if renew_at < self._wake_at:
            self._wake_at = renew_at
            self._core.keeper.wake(renew_at)

    def hurry(self, job_id: str | None = None) -> None:
        """Somebody says that a job is not ours any more, or is wanted to end; None: that may be so of any. Ask now."""
        found = list(self._slots.held.values()) if job_id is None else [self._slots.held.get(job_id)]
        for attempt in found:
            if attempt is not None and attempt.finish is None:
                attempt.renew_at = 0.0
        if found:
            self._core.keeper.wake(steady())

    def progressed(self, attempt: Attempt) -> None:
        """From any thread."""
        attempt.renew_at = min(attempt.renew_at, steady() + TELL_PROGRESS)
        self.added(attempt.renew_at)

    def tend(self, now: float) -> float:
        """On the keeper's thread."""
        self._wake_at = FOREVER  # first: whatever is added from here on calls the keeper itself
        due: dict[int, list[Attempt]] = {}
        soon = now + self._lease * TOGETHER
        urgent = False
        for attempt in list(self._slots.held.values()):
            if attempt.why == "lost":
                continue
            if now >= attempt.deadline:
                if attempt.finish is None:
                    self._tell(self._lost, attempt, "it ran out before it could be renewed")
            elif self._is_overdue(attempt, now):
                attempt.renew_at = FOREVER
            elif attempt.renew_at <= soon:
                urgent = urgent or attempt.renew_at <= now
                due.setdefault(attempt.shard, []).append(attempt)
        if urgent:
            self._renew(due)
        wake_at = min(
            (min(a.renew_at, a.deadline) for a in list(self._slots.held.values()) if a.why != "lost"), default=FOREVER
        )
        if wake_at <= now:  # what has ended and waits for the store's word is past its time
            wake_at = now + RETRY_AT_MOST
        self._wake_at = min(self._wake_at, wake_at)
        return wake_at

    def _is_overdue(self, attempt: Attempt, now: float) -> bool:
        """Its time is over, and the loop that was to see to it stands still: its lease runs out instead, so that a
        handler that never returns does not keep its job for ever.
        """
        return not attempt.is_over and now >= min(attempt.soft + self._grace, attempt.hard) + OVERDUE

    def _renew(self, due: dict[int, list[Attempt]]) -> None:
        now = steady()
        shortest = min(attempt.deadline for attempts in due.values() for attempt in attempts) - now
        timeout = min(LONGEST_CALL, max(RETRY_AT_LEAST, shortest / 2))
        micros = int(self._lease * 1_000_000)
        ops = [
            self._store.renew(
                shard, self._worker, micros, [Renewal(a.job.id, a.job.fence, a.progress) for a in attempts]
            )
            for shard, attempts in due.items()
        ]
        sent = steady()
        waiting = [attempt for attempts in due.values() for attempt in attempts]
        for attempt in waiting:
            attempt.renew_at = FOREVER  # whoever wants it told sooner says so from here on
        try:
            answers = self._core.engine.apply_many(ops, timeout)
        except BaseException:
            for attempt in waiting:
                attempt.renew_at = sent
            raise
        renewed = failed = 0
        for attempts, verdicts in zip(due.values(), answers, strict=True):
            if isinstance(verdicts, BaseException):
                failed += len(attempts)
                now = steady()
                for attempt in attempts:
                    attempt.renew_at = now + min(RETRY_AT_MOST, max(RETRY_AT_LEAST, (attempt.deadline - now) / 8))
                continue
            until = self._core.engine.now() + micros
            for attempt, verdict in zip(attempts, verdicts, strict=True):
                if verdict == "lost":
                    if attempt.finish is None:  # else its end came first, and that is why
                        self._tell(self._lost, attempt, "somebody else has the job, or its end, by now")
                    attempt.renew_at = FOREVER
                    continue
                renewed += 1
                wanted_at = attempt.renew_at
                attempt.extend(sent, until)
                attempt.renew_at = min(attempt.renew_at, wanted_at)
                if verdict == "cancelled" and not attempt.why:
                    self._tell(self._cancelled, attempt, "somebody cancelled it")
        self._core.telemetry.emit("job.renewed", count=renewed, failed=failed)

    def _tell(self, told: Told, attempt: Attempt, reason: str) -> None:
        self._core.port.signal(lambda: told(attempt, reason))
