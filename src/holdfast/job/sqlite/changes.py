"""What one verb changes: every move of a job from one state to another goes through here.

So the counts by kind, what became ready, what others are told and a run's events are right everywhere, or nowhere.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from holdfast.engine.base import Micros, Wake
from holdfast.hub.wire import CHAIN_COMPLETED, OWNERSHIP_LOST, channel
from holdfast.job.sqlite.shape import COLUMNS, FINALS, PENDING, RUNNING, STATES, text_of
from holdfast.job.sqlite.texts import load

SPACE = load("space")
KIND = load("kind")
EVENT = load("event")
#: A watched job ended, its chain goes on.
JOB_COMPLETED: Final = "jobc"


class Changes:
    """One verb's course inside a transaction, on whichever connection that is. `write` or `close` puts down what it
    gathered.
    """

    __slots__ = ("_counts", "_events", "_fence", "db", "now", "prefix", "ready", "space", "wakes")

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
        self.space, self._fence = found or (0, 0)
        self.prefix = prefix
        self.now = now
        self.wakes = wakes
        #: Jobs that became pending, by number: their kind.
        self.ready: dict[int, int] = {}
        self._counts: dict[int, list[int]] = {}
        self._events: list[tuple[str, str, str]] = []

    def moved(self, kind: int, old: int | None, new: int | None, times: int = 1) -> None:
        """Jobs of a kind went from one state to another; None: from or to nowhere."""
        counts = self._counts.get(kind)
        if counts is None:
            counts = self._counts[kind] = [0] * len(COLUMNS)
        if old is not None:
            counts[old] -= times
        if new is not None:
            counts[new] += times

    def event(self, run: str, kind: str, job: str) -> None:
        """Something happened to a job: its run is told, if it has one."""
        if run:
            self._events.append((run, kind, job))

    def entered(self, num: int, id_: str, kind: int, run: str, old: int | None, new: int) -> None:
        """A job went from one state to another, and whoever must hear of it does."""
        self.moved(kind, old, new)
        if new == PENDING:
            self.ready[num] = kind
        if run:
            if new == PENDING:
                self.event(run, "ready", id_)
            elif new == RUNNING:
                self.event(run, "started", id_)
            elif new in FINALS:
                self.event(run, STATES[new], id_)

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
        if self._events:
            self._append_events()

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

    def _append_events(self) -> None:
        """The one place where a run's events are written, in the transaction of what they tell of."""
        last: dict[str, int] = {}
        for run, kind, job in self._events:
            if run not in last:
                (last[run],) = self.db.execute(EVENT["last"], (self.space, run)).fetchone()
            last[run] += 1
            self.db.execute(EVENT["append"], (self.space, run, last[run], self.now, kind, job, b""))
