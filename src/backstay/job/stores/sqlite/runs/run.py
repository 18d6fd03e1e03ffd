"""The changes that one store operation makes to one run. It collects the state transitions of the run's jobs, and
stores the run once, at the end of the operation.

Only at the end of the operation is it decided whether the run has finished. So an operation that ends the last open job
of a run and adds new jobs to it does not finish the run.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from backstay.engine.base import Micros
from backstay.job.run_model import EventKind, RunStatus
from backstay.job.run_status import final_status
from backstay.job.stores.sqlite.columns import CANCELLED, FAILED, FINALS, PARKED, PENDING, RUNNING, STATES, encode
from backstay.job.stores.sqlite.statements import load

RUN = load("run")

STATUS_QUEUED: Final = 0
STATUS_RUNNING: Final = 1
#: The first status of a finished run.
STATUS_SUCCESS: Final = 2
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
#: The kind of event that a job causes when it enters each state, by number of the state. None: no event.
EVENT_OF_STATE: tuple[int | None, ...] = (
    *(KIND_NUMBERS.get({"pending": "ready", "running": "started"}.get(state, state)) for state in STATES[:8]),
    KIND_NUMBERS["ready"],
)
LEASE_EXPIRED: Final = KIND_NUMBERS["lease_expired"]
CREATED: Final = KIND_NUMBERS["run_created"]
FINISHED: Final = KIND_NUMBERS["run_finished"]
REOPENED: Final = KIND_NUMBERS["run_reopened"]
CANCELLING: Final = KIND_NUMBERS["run_cancelling"]

#: The size in bits of the lower part of a key in `backstay_run_event`. A row holds several events. The lower part of
#: its key is the number, within the namespace, of its last event. The upper part is the number of the namespace.
EVENT_BITS: Final = 40
#: An event as stored: number of its kind (index in KINDS), job id, number of the attempt, name of the worker, reason.
EventFields = tuple[int, str, int, str, str]
#: The largest number of events in one row.
ROW_SIZE: Final = 500


class RunUpdate:
    """A run's stored fields, changed by one store operation. `write` stores them."""

    __slots__ = (
        "_events", "_now", "cancel", "changed", "counts", "deadline", "finished", "hard_failures", "id", "keep",
        "keep_until", "num", "reason", "seq", "started", "status", "timeout",
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
        self.keep_until: Micros
        self.cancel: int
        self.reason: str
        #: The number of the run's last event.
        self.seq: int
        #: The number of failed jobs that are not soft. Any of them makes the run fail.
        self.hard_failures: int
        (
            self.num, self.status, self.started, self.finished, self.timeout, self.deadline, self.keep, self.keep_until,
            self.cancel, self.reason, self.seq, self.hard_failures, *counts,
        ) = row  # fmt: skip
        #: Number of the run's jobs in each state. The index is the state's number.
        self.counts: list[int] = counts
        self.changed = False
        self._events: list[EventFields] = []

    @property
    def is_finished(self) -> bool:
        return self.status >= STATUS_SUCCESS

    @property
    def is_cancelling(self) -> bool:
        """Whether the run's cancellation is requested and the run has not finished."""
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
        """Count a state transition of one of the run's jobs and add its event. `old` is None for a new job.
        `followed`: the job has ended, and another job continues its chain. The run counts only that other job.
        """
        if self.status >= STATUS_SUCCESS and new not in FINALS:
            self._reopen()
        self.changed = True
        counts = self.counts
        if old is not None:
            counts[PENDING if old == PARKED else old] -= 1
            if old == FAILED and not soft:
                self.hard_failures -= 1
        if not followed:
            counts[new] += 1
        if new == RUNNING:
            self.status = STATUS_RUNNING
            self.started = self.started or self._now
        elif new == FAILED and not soft:
            self.hard_failures += 1
        kind = EVENT_OF_STATE[new]
        if kind is not None:
            self._events.append((kind, job, attempt, worker, why))

    def request_cancel(self, reason: str) -> None:
        """Mark the run as being cancelled. The caller must cancel the run's jobs."""
        self.cancel, self.reason = 1, reason
        self.add_event(CANCELLING, why=reason)

    def _reopen(self) -> None:
        """Reopen the finished run because one of its jobs is retried. Its timeout starts anew: the old deadline may
        have passed and would cancel the run at once.
        """
        self.status, self.finished, self.keep_until, self.cancel, self.reason = STATUS_RUNNING, 0, 0, 0, ""
        if self.timeout:
            self.deadline = self._now + self.timeout
        self.add_event(REOPENED)

    def correct_counts(self, counts: list[int], hard_failures: int) -> bool:
        """Replace the stored counts of the run by `counts` and `hard_failures`, which were counted from its jobs.
        Returns True if the run must be stored: the stored counts were wrong, or the run has no open job and should have
        finished.
        """
        if counts == self.counts and hard_failures == self.hard_failures:
            # The counts are right. But if no job is open, the run should have finished: mark it as changed, so that it
            # is finished now.
            self.changed = not any(counts[:4])
            return self.changed
        self.counts, self.hard_failures, self.changed = counts, hard_failures, True
        return True

    def finish_if_done(self) -> bool:
        """Finish the run if it has no open job left. Returns whether it did. Call it once, after all transitions."""
        if self.status >= STATUS_SUCCESS or any(self.counts[:4]):
            return False
        self.status = STATUSES.index(
            final_status(
                hard_failures=self.hard_failures, cancelled=self.counts[CANCELLED], cancel_requested=bool(self.cancel)
            )
        )
        self.finished = self._now
        self.keep_until = max(1, self._now + self.keep)
        self.add_event(FINISHED, why=STATUSES[self.status])
        return True

    def write(self, db: sqlite3.Connection, last: int) -> int:
        """Store the run and its new events. `last`: the key of the last row of events that was stored in the namespace;
        the keys of the new rows follow it (see EVENT_BITS). Returns the number of new events.
        """
        events, self._events = self._events, []
        for first in range(0, len(events), ROW_SIZE):
            some = events[first : first + ROW_SIZE]
            self.seq += len(some)
            last += len(some)
            db.execute(RUN["add_event"], (last, self.num, self.seq, self._now, encode(some)))
        db.execute(
            RUN["write"],
            (
                self.status, self.started, self.finished, self.deadline, self.keep_until, self.cancel, self.reason,
                self.seq, self.hard_failures, *self.counts, self.num,
            ),
        )  # fmt: skip
        return len(events)
