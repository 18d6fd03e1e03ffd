"""Lanes, and how much may start: what a claim takes jobs from.

A lane holds the pending jobs of one queue, label set and rate in the order of their ranks.
"""

from __future__ import annotations

from typing import Any

from backstay.engine.base import Micros
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.statements import load

CLAIM = load("claim")
#: A lane's next piece is at most this large.
LARGEST_CHUNK = 256

# Where things are in a row of `first` and `more`.
RANK, NUM, ID, KIND, ATTEMPT, RUN, FLAGS, CKEY, CLIMIT, UNIQ = 0, 1, 2, 3, 4, 11, 14, 15, 16, 17


class Budget:
    """How many may start now in one bucket (GCRA): one more every `period`, at most `burst` at once."""

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
        """µs until one more may start."""
        return max(1, self.tat + self.period - self.burst * self.period - self._now)


class Lane:
    """The pending jobs of a lane, read in pieces: the next one is larger, since most were of no use."""

    __slots__ = ("_at", "_changes", "_chunk", "_num", "_rows", "budgets")

    def __init__(self, changes: Changes, num: int, budgets: list[Budget]) -> None:
        self._changes = changes
        self._num = num
        self._rows: list[tuple[Any, ...]] = []
        self._at = 0
        self._chunk = 0
        self.budgets = budgets

    def read(self, chunk: int) -> list[tuple[Any, ...]]:
        """The first piece."""
        if chunk != self._chunk:
            self._chunk = chunk
            self._rows = self._changes.db.execute(CLAIM["first"], (self._num, chunk)).fetchall()
        return self._rows

    def open(self, chunk: int) -> tuple[Any, ...] | None:
        self.read(chunk)
        return self._rows[0] if self._rows else None

    def next(self) -> tuple[Any, ...] | None:
        self._at += 1
        if self._at < len(self._rows):
            return self._rows[self._at]
        if len(self._rows) < self._chunk:
            return None
        place = self._rows[-1][RANK], self._rows[-1][ID]
        self._chunk = min(2 * self._chunk, LARGEST_CHUNK)
        self._rows = self._changes.db.execute(CLAIM["more"], (self._num, *place, self._chunk)).fetchall()
        self._at = 0
        return self._rows[0] if self._rows else None
