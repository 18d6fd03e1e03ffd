"""Count, log and emit the outcomes of a worker's attempts once the store has acknowledged them."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from backstay.engine.base import steady

if TYPE_CHECKING:
    from backstay.job.exchange import ExchangeReply
    from backstay.job.worker.execution.attempt import Attempt
    from backstay.job.worker.slots import Slots
    from backstay.telemetry import Telemetry

log = logging.getLogger("backstay")

#: The telemetry event (`job.…`) of each kind of outcome.
EVENTS = {
    "complete": "completed",
    "fail": "failed",
    "retry": "retried",
    "snooze": "snoozed",
    "release": "released",
    "cancel": "cancelled",
    "skip": "skipped",
}
#: Outcomes that are logged, and at which level.
LOGGED = {"failed": logging.ERROR, "retried": logging.INFO, "lost": logging.WARNING}
WORDS = {
    "failed": "failed permanently",
    "retried": "will be retried",
    "lost": "finished too late: its lease was lost",
}


class OutcomeStats:
    """Counts outcomes by kind: completed, failed, retried, snoozed, released, cancelled, skipped, lost."""

    def __init__(self, slots: Slots, telemetry: Telemetry) -> None:
        self._slots = slots
        self._telemetry = telemetry
        self.counts: Counter[str] = Counter()

    def record(self, batch: list[Attempt], reply: ExchangeReply) -> None:
        """Record attempts that the store has acknowledged, and stop tracking their leases."""
        leased, counts = self._slots.leased, self.counts
        emits = self._telemetry.has_subscribers
        events = self._telemetry.counts
        for attempt, verdict in zip(batch, reply.verdicts, strict=True):
            job, finish = attempt.job, attempt.finish
            if leased.get(job.id) is attempt:
                del leased[job.id]
            kind = EVENTS[finish.kind] if finish is not None and verdict == "ok" else "lost"
            if kind == "retried" and job.attempt > job.retries:
                kind = "failed"
            counts[kind] += 1
            events[f"job.{kind}"] += 1
            if kind in LOGGED:
                _log(attempt, kind)
            if emits:
                self._emit(attempt, kind)

    def _emit(self, attempt: Attempt, kind: str) -> None:
        job = attempt.job
        self._telemetry.notify(
            f"job.{kind}",
            id=job.id,
            type=job.type,
            queue=job.queue,
            attempt=job.attempt,
            seconds=steady() - attempt.started,
            error=_cause(attempt),
        )


def _log(attempt: Attempt, kind: str) -> None:
    job, cause = attempt.job, _cause(attempt)
    suffix = f": {cause}" if cause else ""
    log.log(
        LOGGED[kind],
        "%s %s (attempt %d of %d)%s",
        attempt.name,
        WORDS[kind],
        job.attempt,
        job.retries + 1,
        suffix,
    )


def _cause(attempt: Attempt) -> str:
    error = attempt.finish.error if attempt.finish is not None else None
    return f"{error.kind}: {error.message}" if error is not None else ""
