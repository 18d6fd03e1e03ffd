"""Lanes, from which a claim reads pending jobs, and budgets, which say how many of them a rate limit lets start.

A lane is the index partition of the pending jobs of one queue, label set and rate, ordered by rank (due time minus
priority).
"""

from __future__ import annotations

from typing import Any

from backstay.engine.base import Micros
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.statements import load

CLAIM = load("claim")
#: The largest number of rows that one read of a lane fetches.
LARGEST_CHUNK = 256

# Column positions in the rows of the statements `first` and `more`.
RANK, NUM, ID, KIND, ATTEMPT, RUN, FLAGS, CKEY, CLIMIT, UNIQ = 0, 1, 2, 3, 4, 11, 14, 15, 16, 17


class Budget:
    """How many jobs a rate bucket lets start (GCRA): one more every `period` µs, at most `burst` at once. `tat` is
    GCRA's theoretical arrival time, `left` the number of remaining starts.
    """

    __slots__ = ("_now", "burst", "charged", "left", "period", "tat")

    def __init__(self, period: Micros, burst: int, tat: Micros, now: Micros) -> None:
        self.period = max(1, period)
        self.burst = max(1, burst)
        self._now = now
        self.tat = max(tat, now)
        self.left = max(0, (self.burst * self.period - (self.tat - now)) // self.period)
        self.charged = False

    def charge(self) -> None:
        self.left -= 1
        self.tat += self.period
        self.charged = True

    def next_in(self) -> Micros:
        """Return the µs until one more job may start."""
        return max(1, self.tat + self.period - self.burst * self.period - self._now)


class Lane:
    """A cursor over the pending jobs of a lane. It reads them in chunks, each twice as large as the one before. A claim
    needs a further chunk only if most jobs of the earlier chunks could not start, so it may have to read many more.
    """

    __slots__ = ("_at", "_changes", "_chunk", "_num", "_rows", "budgets")

    def __init__(self, changes: Changes, num: int, budgets: list[Budget]) -> None:
        self._changes = changes
        self._num = num
        self._rows: list[tuple[Any, ...]] = []
        self._at = 0
        self._chunk = 0
        self.budgets = budgets

    def read(self, chunk: int) -> list[tuple[Any, ...]]:
        """Return the first `chunk` rows of the lane, one per pending job."""
        if chunk != self._chunk:
            self._chunk = chunk
            self._rows = self._changes.db.execute(CLAIM["first"], (self._num, chunk)).fetchall()
        return self._rows

    def open(self, chunk: int) -> tuple[Any, ...] | None:
        """Return the first row of the lane, or None if it is empty."""
        self.read(chunk)
        return self._rows[0] if self._rows else None

    def next(self) -> tuple[Any, ...] | None:
        """Return the next row of the lane, or None at its end."""
        self._at += 1
        if self._at < len(self._rows):
            return self._rows[self._at]
        if len(self._rows) < self._chunk:
            return None
        after = self._rows[-1][RANK], self._rows[-1][ID]
        self._chunk = min(2 * self._chunk, LARGEST_CHUNK)
        self._rows = self._changes.db.execute(CLAIM["more"], (self._num, *after, self._chunk)).fetchall()
        self._at = 0
        return self._rows[0] if self._rows else None
