"""The update of one run in one store operation: collects its jobs' transitions and stores them at the end.

A run therefore ends when no open job is left after the whole operation, never in the middle of one.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from backstay.engine.base import Micros
from backstay.job.run_model import EventKind, RunStatus
from backstay.job.stores.sqlite.columns import FAILED, FINALS, PARKED, PENDING, RUNNING, STATES, encode
from backstay.job.stores.sqlite.statements import load

RUN = load("run")

STATUS_QUEUED: Final = 0
STATUS_RUNNING: Final = 1
STATUS_SUCCESS: Final = 2
STATUS_FAILURE: Final = 3
STATUS_CANCELLED: Final = 4
#: Name of each status, by number.
STATUSES: tuple[RunStatus, ...] = ("queued", "running", "success", "failure", "cancelled")

#: Name of each event kind, by number. The numbers are stored: append new kinds at the end.
KINDS: tuple[EventKind, ...] = (
    "ready",
    "started",
    "scheduled",
    "completed",
    "failed",
    "cancelled",
    "skipped",
    "lease_expired",
    "run_created",
    "run_finished",
    "run_reopened",
    "run_cancelling",
)
KIND_NUMBERS: dict[str, int] = {kind: number for number, kind in enumerate(KINDS)}
#: Event kind of entering each job state. A blocked job has no event.
EVENT_OF_STATE: tuple[int | None, ...] = (
    *(KIND_NUMBERS.get({"pending": "ready", "running": "started"}.get(state, state)) for state in STATES[:8]),
    KIND_NUMBERS["ready"],
)
LEASE_EXPIRED: Final = KIND_NUMBERS["lease_expired"]
CREATED: Final = KIND_NUMBERS["run_created"]
FINISHED: Final = KIND_NUMBERS["run_finished"]
REOPENED: Final = KIND_NUMBERS["run_reopened"]
CANCELLING: Final = KIND_NUMBERS["run_cancelling"]

#: An event's number holds the namespace's number above this many bits, and the event's own below.
EVENT_BITS: Final = 40
#: An event as stored: kind, job, attempt, worker, why. One row holds at most `ROW` of them.
EventFields = tuple[int, str, int, str, str]
ROW: Final = 500


class RunUpdate:
    """The stored fields of a run, with the changes of one store operation."""

    __slots__ = (
        "_events", "_now", "broken", "cancel", "changed", "counts", "deadline", "finished", "id", "keep", "num",
        "reason", "seq", "started", "status", "timeout", "until",
    )  # fmt: skip

    def __init__(self, id_: str, row: tuple[Any, ...], now: Micros) -> None:
        self.id = id_
        self._now = now
        self.num: int
        self.status: int
        self.started: Micros
        self.finished: Micros
        self.timeout: Micros
        self.deadline: Micros
        self.keep: Micros
        self.until: Micros
        self.cancel: int
        self.reason: str
        #: The number of the last stored event, and the number of failed jobs that are not soft.
        self.seq: int
        self.broken: int
        (
            self.num, self.status, self.started, self.finished, self.timeout, self.deadline, self.keep, self.until,
            self.cancel, self.reason, self.seq, self.broken, *counts,
        ) = row  # fmt: skip
        #: Number of jobs by state.
        self.counts: list[int] = counts
        self.changed = False
        self._events: list[EventFields] = []

    @property
    def is_finished(self) -> bool:
        return self.status >= STATUS_SUCCESS

    @property
    def is_cancelling(self) -> bool:
        """Whether the run has a cancel request and has not ended."""
        return bool(self.cancel) and self.status < STATUS_SUCCESS

    def add_event(self, kind: int, job: str = "", attempt: int = 0, worker: str = "", why: str = "") -> None:
        self.changed = True
        self._events.append((kind, job, attempt, worker, why))

    def count_transition(
        self,
        old: int | None,
        new: int,
        job: str,
        attempt: int,
        worker: str = "",
        why: str = "",
        *,
        soft: bool = False,
        followed: bool = False,
    ) -> None:
        """Count a state transition of one of the run's jobs and add its event. `old` None: the job is new. `followed`:
        another job continues the chain and is counted instead.
        """
        if self.status >= STATUS_SUCCESS and new not in FINALS:
            self._reopen()
        self.changed = True
        counts = self.counts
        if old is not None:
            counts[PENDING if old == PARKED else old] -= 1
            if old == FAILED and not soft:
                self.broken -= 1
        if not followed:
            counts[new] += 1
        if new == RUNNING:
            self.status = STATUS_RUNNING
            self.started = self.started or self._now
        elif new == FAILED and not soft:
            self.broken += 1
        kind = EVENT_OF_STATE[new]
        if kind is not None:
            self._events.append((kind, job, attempt, worker, why))

    def request_cancel(self, reason: str) -> None:
        """Record a cancel request for the run."""
        self.cancel, self.reason = 1, reason
        self.add_event(CANCELLING, why=reason)

    def _reopen(self) -> None:
        """Reopen the run because one of its jobs is retried. Its timeout starts anew, otherwise the deadline would
        cancel it at once.
        """
        self.status, self.finished, self.until, self.cancel, self.reason = STATUS_RUNNING, 0, 0, 0, ""
        if self.timeout:
            self.deadline = self._now + self.timeout
        self.add_event(REOPENED)

    def correct_counts(self, counts: list[int], broken: int) -> bool:
        """Recompute the run's counts from its jobs. Returns False if they were already right."""
        if counts == self.counts and broken == self.broken:
            # No open job is left and the run has not ended: treat it as miscounted.
            self.changed = not any(counts[:4])
            return self.changed
        self.counts, self.broken, self.changed = counts, broken, True
        return True

    def finish_if_done(self) -> bool:
        """End the run if no open job is left. Returns whether it has just ended. Call it once, after the operation."""
        if self.status >= STATUS_SUCCESS or any(self.counts[:4]):
            return False
        self.status = STATUS_CANCELLED if self.cancel else STATUS_FAILURE if self.broken else STATUS_SUCCESS
        self.finished = self._now
        self.until = max(1, self._now + self.keep)
        self.add_event(FINISHED, why=STATUSES[self.status])
        return True

    def write(self, db: sqlite3.Connection, last: int) -> int:
        """Store the run and its new events; `last` is the number of the event before them. Returns how many events."""
        events, self._events = self._events, []
        for first in range(0, len(events), ROW):
            some = events[first : first + ROW]
            self.seq += len(some)
            last += len(some)
            db.execute(RUN["event"], (last, self.num, self.seq, self._now, encode(some)))
        db.execute(
            RUN["write"],
            (
                self.status, self.started, self.finished, self.deadline, self.until, self.cancel, self.reason, self.seq,
                self.broken, *self.counts, self.num,
            ),
        )  # fmt: skip
        return len(events)
