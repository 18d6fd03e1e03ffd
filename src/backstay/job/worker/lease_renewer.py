"""Renew the leases of running jobs on the keeper's thread, so a handler that blocks the event loop keeps its lease.

One call per shard renews all leases. Only the store's reply to a renewal decides whether a lease is lost or its job is
to be cancelled. A message on the hub's channel `owls` (short for "ownership lost") only makes the worker renew sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from backstay.engine.base import steady
from backstay.job.exchange import Renewal
from backstay.job.worker.execution.attempt import FOREVER, Attempt
from backstay.runtime.lease_keeper import LONGEST_CALL, RETRY_AT_LEAST, RETRY_AT_MOST, TOGETHER

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.job.worker.slots import Slots
    from backstay.runtime.core import Core

#: Progress is stored within about this many seconds.
PROGRESS_WITHIN = 1.0

#: If a handler still runs this many seconds after it should have been abandoned, it must be blocking the event loop:
#: otherwise the loop would have abandoned it.
OVERDUE = 1.0

#: A callback on the event loop. Its arguments are an attempt, which has lost its lease or is to be cancelled, and the
#: reason in words.
OnAttempt = Callable[[Attempt, str], None]


class LeaseRenewer:
    """Renews the leases of all attempts in a worker's slots."""

    def __init__(
        self,
        core: Core,
        store: Store,
        slots: Slots,
        worker: str,
        *,
        lease: float,
        grace: float,
        on_lost: OnAttempt,
        on_cancelled: OnAttempt,
    ) -> None:
        self._core = core
        self._store = store
        self._slots = slots
        self._worker = worker
        self._lease = lease
        self._grace = grace
        self._on_lost = on_lost
        self._on_cancelled = on_cancelled
        #: When the keeper next calls `renew_due`.
        self._wake_at = FOREVER

    def open(self) -> None:
        self._core.keeper.register(self)

    def close(self) -> None:
        """Stop renewing: the remaining leases expire. Safe to call twice."""
        self._core.keeper.unregister(self)

    def schedule(self, renew_at: float) -> None:
        """Make the keeper call `renew_due` no later than `renew_at` (monotonic clock)."""
        if renew_at < self._wake_at:
            self._wake_at = renew_at
            self._core.keeper.wake(renew_at)

    def renew_now(self, job_id: str | None = None) -> None:
        """Renew the job's lease at once or, if `job_id` is None, all leases. Called when the hub reports that the lease
        is lost or that the job's cancellation is requested: the store's reply to the renewal says which.
        """
        found = list(self._slots.leased.values()) if job_id is None else [self._slots.leased.get(job_id)]
        for attempt in found:
            if attempt is not None and attempt.finish is None:
                attempt.renew_at = 0.0
        if found:
            self._core.keeper.wake(steady())

    def report_progress(self, attempt: Attempt) -> None:
        """Send the attempt's progress with a renewal within PROGRESS_WITHIN seconds. Thread-safe."""
        attempt.renew_at = min(attempt.renew_at, steady() + PROGRESS_WITHIN)
        self.schedule(attempt.renew_at)

    def renew_due(self, now: float) -> float:
        """Renew the leases that are due and return the time of the next call. Called on the keeper's thread."""
        self._wake_at = FOREVER  # before the scan, so that a `schedule` call during the scan wakes the keeper
        due: dict[int, list[Attempt]] = {}
        soon = now + self._lease * TOGETHER
        urgent = False
        for attempt in list(self._slots.leased.values()):
            if attempt.why == "lost":
                continue
            if now >= attempt.deadline:
                if attempt.finish is None:
                    self._notify(self._on_lost, attempt, "the lease expired before it could be renewed")
            elif self._is_overdue(attempt, now):
                attempt.renew_at = FOREVER
            elif attempt.renew_at <= soon:
                urgent = urgent or attempt.renew_at <= now
                due.setdefault(attempt.shard, []).append(attempt)
        if urgent:
            self._renew(due)
        wake_at = min(
            (min(a.renew_at, a.deadline) for a in list(self._slots.leased.values()) if a.why != "lost"), default=FOREVER
        )
        # An attempt has ended and its lease has expired, but the store has not acknowledged its outcome yet. There is
        # nothing to renew, so look again later.
        if wake_at <= now:
            wake_at = now + RETRY_AT_MOST
        self._wake_at = min(self._wake_at, wake_at)
        return wake_at

    def _is_overdue(self, attempt: Attempt, now: float) -> bool:
        """Whether the attempt is past its time limit while the event loop, which enforces the limit, is blocked. Its
        lease is left to expire, so that a handler that never returns does not hold its job forever.
        """
        return not attempt.is_over and now >= min(attempt.timeout_at + self._grace, attempt.abandon_at) + OVERDUE

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
            attempt.renew_at = FOREVER  # reset before the call: another thread may request a renewal during it
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
                    if attempt.finish is None:  # else the acknowledgement overtook the renewal and ended the lease
                        self._notify(self._on_lost, attempt, "the store reports that the lease is not current")
                    attempt.renew_at = FOREVER
                    continue
                renewed += 1
                wanted_at = attempt.renew_at
                attempt.extend(sent, until)
                attempt.renew_at = min(attempt.renew_at, wanted_at)
                if verdict == "cancelled" and not attempt.why:
                    self._notify(self._on_cancelled, attempt, "the job was cancelled")
        self._core.telemetry.emit("job.renewed", count=renewed, failed=failed)

    def _notify(self, callback: OnAttempt, attempt: Attempt, reason: str) -> None:
        self._core.port.signal(lambda: callback(attempt, reason))
