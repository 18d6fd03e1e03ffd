"""What one verb changes: every move of a job from one state to another goes through here.

So the counts by kind, what became ready, what others are told and a run's events are right everywhere, or nowhere.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from backstay.engine.base import Micros, Wake
from backstay.hub.protocol import CHAIN_COMPLETED, OWNERSHIP_LOST, channel
from backstay.job.stores.sqlite.columns import COLUMNS, PENDING, RUNNING, text_of
from backstay.job.stores.sqlite.runs.run import EVENT_BITS, LEASE_EXPIRED, RUN, RunCourse
from backstay.job.stores.sqlite.statements import load

SPACE = load("space")
KIND = load("kind")
#: A watched job ended, its chain goes on.
JOB_COMPLETED: Final = "jobc"
#: Something happened in a run.
EVENTS: Final = "events"
RUN_ENDED: Final = "runc"


class Changes:
    """One verb's course inside a transaction, on whichever connection that is. `write` or `close` puts down what it
    gathered.
    """

    __slots__ = ("_counts", "_event", "_fence", "_runs", "db", "now", "prefix", "ready", "space", "wakes")

    def __init__(
        self,
        db: sqlite3.Connection,
        namespace: str,
        prefix: str,
        now: Micros,
        wakes: list[Wake],
        *,
        reads: bool = False,
    ) -> None:
        self.db = db
        found = db.execute(SPACE["find"], (namespace,)).fetchone()
        if found is None and not reads:
            db.execute(SPACE["add"], (namespace,))
            found = db.execute(SPACE["find"], (namespace,)).fetchone()
        #: The namespace's number. No row has 0: whoever only looks finds nothing there.
        self.space: int
        self._fence: int
        self._event: int
        self.space, self._fence, self._event = found or (0, 0, 0)
        self.prefix = prefix
        self.now = now
        self.wakes = wakes
        #: Jobs that became pending, by number: their kind.
        self.ready: dict[int, int] = {}
        self._counts: dict[int, list[int]] = {}
        #: Runs that were looked up, by id. None: there is no such run.
        self._runs: dict[str, RunCourse | None] = {}

    def moved(self, kind: int, old: int | None, new: int | None, times: int = 1) -> None:
        """Jobs of a kind went from one state to another; None: from or to nowhere."""
        counts = self._counts.get(kind)
        if counts is None:
            counts = self._counts[kind] = [0] * len(COLUMNS)
        if old is not None:
            counts[old] -= times
        if new is not None:
            counts[new] += times

    def entered(
        self,
        num: int,
        id_: str,
        kind: int,
        run: str,
        old: int | None,
        new: int,
        attempt: int = 0,
        worker: str = "",
        why: str = "",
        *,
        soft: bool = False,
        followed: bool = False,
    ) -> None:
        """A job went from one state to another, and whoever must hear of it does. Its run tells of the attempt and
        whose it was, and why; `soft`: its failure is nobody's; `followed`: its chain goes on.
        """
        self.moved(kind, old, new)
        if new == PENDING:
            self.ready[num] = kind
        if run and (course := self.run(run)) is not None:
            course.moved(old, new, id_, attempt, worker, why, soft=soft, followed=followed)

    def run(self, id_: str) -> RunCourse | None:
        """A run, if it is stored. Whatever becomes of it is written at the end."""
        if id_ not in self._runs:
            row = self.db.execute(RUN["find"], (self.space, id_)).fetchone()
            self._runs[id_] = RunCourse(id_, row, self.now) if row is not None else None
        return self._runs[id_]

    @property
    def last_event(self) -> int:
        """The number of the last event that is told in this namespace."""
        return self._event

    def began(self, run: RunCourse) -> None:
        """A run was made by this very verb."""
        self._runs[run.id] = run

    def started(self, run: str, job: str, attempt: int, worker: str) -> None:
        """A job was handed to a worker. Its kind is counted elsewhere, with others."""
        course = self.run(run)
        if course is not None:
            course.moved(PENDING, RUNNING, job, attempt, worker)

    def lease_expired(self, run: str, job: str, attempt: int, worker: str, why: str) -> None:
        course = self.run(run) if run else None
        if course is not None:
            course.tell(LEASE_EXPIRED, job, attempt, worker, why)

    def chain_ended(self, chain: str) -> None:
        self.wakes.append(Wake(channel(self.prefix, CHAIN_COMPLETED), chain))

    def job_ended(self, job: str) -> None:
        self.wakes.append(Wake(channel(self.prefix, JOB_COMPLETED), job))

    def lost(self, job: str) -> None:
        self.wakes.append(Wake(channel(self.prefix, OWNERSHIP_LOST), job))

    def fences(self, many: int) -> int:
        """The first of so many new fences. They never go back, whatever becomes of the clock or of the tables."""
        first = max(self.now, self._fence + 1)
        self._fence = first + many - 1
        self.db.execute(SPACE["fence"], (self._fence, self.space))
        return first

    def count(self) -> None:
        """Write the counts: whoever looks for pending jobs goes by them."""
        changed = [(*counts, kind) for kind, counts in self._counts.items() if any(counts)]
        self._counts.clear()
        if changed:
            self.db.executemany(KIND["count"], changed)

    def write(self) -> None:
        """Write counts and events."""
        self.count()
        if self._runs:
            self._write_runs()

    def close(self) -> dict[str, int]:
        """Write counts and events. Answers how many jobs became ready, by type."""
        self.write()
        if not self.ready:
            return {}
        kinds = set(self.ready.values())
        types: dict[int, str] = dict(self.db.execute(KIND["types"], (text_of(sorted(kinds)),)))
        ready: dict[str, int] = {}
        for kind in self.ready.values():
            ready[types[kind]] = ready.get(types[kind], 0) + 1
        return ready

    def _write_runs(self) -> None:
        """The one place where runs change, in the transaction of what they tell of."""
        before = self._event
        for course in self._runs.values():
            if course is None or not course.changed:
                continue
            ended = course.settle()
            told = course.write(self.db, (self.space << EVENT_BITS) + self._event)
            self._event += told
            if told:
                self.wakes.append(Wake(channel(self.prefix, EVENTS), f"{course.id}:{course.seq}"))
            if ended:
                self.wakes.append(Wake(channel(self.prefix, RUN_ENDED), course.id))
        self._runs.clear()
        if self._event != before:
            self.db.execute(RUN["last_event"], (self._event, self.space))
