"""What became of a worker's attempts, once the store has taken note: counted, told, and logged where it hurts."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from backstay.engine.base import steady

if TYPE_CHECKING:
    from backstay.job.model import StepReply
    from backstay.job.worker.execution.attempt import Attempt
    from backstay.job.worker.slots import Slots
    from backstay.telemetry import Telemetry

log = logging.getLogger("backstay")

#: What an end is called once it is stored.
EVENTS = {
    "complete": "completed",
    "fail": "failed",
    "retry": "retried",
    "snooze": "snoozed",
    "release": "released",
    "cancel": "cancelled",
    "skip": "skipped",
}
#: Ends that somebody who reads the worker's log wants to know of, and how loudly they are told.
LOGGED = {"failed": logging.ERROR, "retried": logging.INFO, "lost": logging.WARNING}
WORDS = {"failed": "failed for good", "retried": "will be tried again", "lost": "came too late to end its job"}


class Ledger:
    """Counts ends by kind: completed, failed, retried, snoozed, released, cancelled, skipped, lost."""

    def __init__(self, slots: Slots, telemetry: Telemetry) -> None:
        self._slots = slots
        self._telemetry = telemetry
        self.counts: Counter[str] = Counter()

    def settled(self, batch: list[Attempt], reply: StepReply) -> None:
        """The store has taken note of these."""
        held, counts = self._slots.held, self.counts
        telling = self._telemetry.active
        events = self._telemetry.counts
        for attempt, verdict in zip(batch, reply.verdicts, strict=True):
            job, finish = attempt.job, attempt.finish
            if held.get(job.id) is attempt:
                del held[job.id]
            kind = EVENTS[finish.kind] if finish is not None and verdict == "ok" else "lost"
            if kind == "retried" and job.attempt > job.retries:
                kind = "failed"
            counts[kind] += 1
            events[f"job.{kind}"] += 1
            if kind in LOGGED:
                _log(attempt, kind)
            if telling:
                self._tell(attempt, kind)

    def _tell(self, attempt: Attempt, kind: str) -> None:
        job = attempt.job
        self._telemetry.tell(
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
    said = f": {cause}" if cause else ""
    log.log(
        LOGGED[kind],
        "%s %s at attempt %d of %d%s",
        attempt.name,
        WORDS[kind],
        job.attempt,
        job.retries + 1,
        said,
    )


def _cause(attempt: Attempt) -> str:
    error = attempt.finish.error if attempt.finish is not None else None
    return f"{error.kind}: {error.message}" if error is not None else ""
