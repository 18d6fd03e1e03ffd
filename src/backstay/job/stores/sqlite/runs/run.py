"""A run as one verb changes it: the moves of its jobs are gathered here and written at the verb's end.

So a run ends when nothing of it is left to be done after the whole verb, never in the middle of one.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from backstay.engine.base import Micros
from backstay.job.run_model import EventKind, RunStatus
from backstay.job.stores.sqlite.columns import FAILED, FINALS, PARKED, PENDING, RUNNING, STATES, encode
from backstay.job.stores.sqlite.statements import load

RUN = load("run")

QUEUED: Final = 0
GOING: Final = 1
SUCCESS: Final = 2
FAILURE: Final = 3
CALLED_OFF: Final = 4
#: By number: what the status is called.
STATUSES: tuple[RunStatus, ...] = ("queued", "running", "success", "failure", "cancelled")

#: By number: what the kind of an event is called. New ones at the end: the numbers are stored.
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
#: By a job's state: the event of entering it. A job that waits for others tells nothing.
ENTERED: tuple[int | None, ...] = (
    *(KIND_NUMBERS.get({"pending": "ready", "running": "started"}.get(state, state)) for state in STATES[:8]),
    KIND_NUMBERS["ready"],
)
LEASE_EXPIRED: Final = KIND_NUMBERS["lease_expired"]
CREATED: Final = KIND_NUMBERS["run_created"]
FINISHED: Final = KIND_NUMBERS["run_finished"]
REOPENED: Final = KIND_NUMBERS["run_reopened"]
CANCELLING: Final = KIND_NUMBERS["run_cancelling"]

#: An event's number: the namespace's above so many bits, its own below.
EVENT_BITS: Final = 40
#: An event as it is stored: kind, job, attempt, worker, why. So many of them share a row at most.
Told = tuple[int, str, int, str, str]
ROW: Final = 500


class RunCourse:
    """A run in the hands of one verb."""

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
        #: The number of the last event that is stored, and how many jobs failed that are not soft.
        self.seq: int
        self.broken: int
        (
            self.num, self.status, self.started, self.finished, self.timeout, self.deadline, self.keep, self.until,
            self.cancel, self.reason, self.seq, self.broken, *counts,
        ) = row  # fmt: skip
        #: By state.
        self.counts: list[int] = counts
        self.changed = False
        self._events: list[Told] = []

    @property
    def is_over(self) -> bool:
        return self.status >= SUCCESS

    @property
    def is_cancelling(self) -> bool:
        """Somebody wants it to end, and it has not yet."""
        return bool(self.cancel) and self.status < SUCCESS

    def tell(self, kind: int, job: str = "", attempt: int = 0, worker: str = "", why: str = "") -> None:
        self.changed = True
        self._events.append((kind, job, attempt, worker, why))

    def moved(
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
        """A job of it went from one state to another; None: it is new. `followed`: another one carries its chain on,
        and is counted instead.
        """
        if self.status >= SUCCESS and new not in FINALS:
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
            self.status = GOING
            self.started = self.started or self._now
        elif new == FAILED and not soft:
            self.broken += 1
        kind = ENTERED[new]
        if kind is not None:
            self._events.append((kind, job, attempt, worker, why))

    def call_off(self, reason: str) -> None:
        """Its end is wanted."""
        self.cancel, self.reason = 1, reason
        self.tell(CANCELLING, why=reason)

    def _reopen(self) -> None:
        """One of its jobs is tried again. It has all its time once more, else it were cancelled at once."""
        self.status, self.finished, self.until, self.cancel, self.reason = GOING, 0, 0, 0, ""
        if self.timeout:
            self.deadline = self._now + self.timeout
        self.tell(REOPENED)

    def set_right(self, counts: list[int], broken: int) -> bool:
        """Its jobs were counted. False: that is what it knew."""
        if counts == self.counts and broken == self.broken:
            # Nothing is left to be done, and it has not ended: as if it had been miscounted.
            self.changed = not any(counts[:4])
            return self.changed
        self.counts, self.broken, self.changed = counts, broken, True
        return True

    def settle(self) -> bool:
        """The verb is over: so is the run, if nothing is left to be done. Answers whether it has just ended."""
        if self.status >= SUCCESS or any(self.counts[:4]):
            return False
        self.status = CALLED_OFF if self.cancel else FAILURE if self.broken else SUCCESS
        self.finished = self._now
        self.until = max(1, self._now + self.keep)
        self.tell(FINISHED, why=STATUSES[self.status])
        return True

    def write(self, db: sqlite3.Connection, last: int) -> int:
        """Puts everything down; `last` is the number of the last event before. Answers how many there were."""
        events, self._events = self._events, []
        for first in range(0, len(events), ROW):
            told = events[first : first + ROW]
            self.seq += len(told)
            last += len(told)
            db.execute(RUN["event"], (last, self.num, self.seq, self._now, encode(told)))
        db.execute(
            RUN["write"],
            (
                self.status, self.started, self.finished, self.deadline, self.until, self.cancel, self.reason, self.seq,
                self.broken, *self.counts, self.num,
            ),
        )  # fmt: skip
        return len(events)
