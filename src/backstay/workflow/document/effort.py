"""Bounds the work of reading one document, so that no document occupies a thread for long: threads cannot be stopped
from outside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from itertools import islice

from backstay.errors import Problem

#: Limits of one document: steps (values, expressions, references, values of matrix jobs) and seconds of CPU time.
MOST_STEPS, MOST_SECONDS = 500_000, 20.0
#: Limits of did-you-mean hints, whose comparisons are slow: names that are compared for all hints of a document
#: together, and characters of a word. Later problems and longer words get no hint.
MOST_COMPARISONS, LONGEST_WORD = 4000, 60


class UnreadableDocument(Exception):
    """Raised for a problem after which a workflow document cannot be parsed further."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Hints:
    """Suggests known names for unknown ones, with a bounded number of comparisons over all calls."""

    def __init__(self, comparisons: int = MOST_COMPARISONS) -> None:
        self.left = comparisons

    def suggest(self, word: str, known: Iterable[str]) -> str:
        """Return "; did you mean …?" with the closest known name, or ""."""
        if self.left <= 0 or len(word) > LONGEST_WORD:
            return ""
        names = [name for name in islice(known, self.left) if len(name) <= LONGEST_WORD]
        self.left -= len(names)
        close = get_close_matches(word, names, n=1, cutoff=0.6)
        return f"; did you mean {close[0]!r}?" if close else ""


class Effort:
    """Counts the work of reading one document. Time is the CPU time of the reading thread, which does not grow while
    other threads and processes are busy.
    """

    def __init__(
        self, steps: int = MOST_STEPS, seconds: float = MOST_SECONDS, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._steps = steps
        self._clock = clock
        self._until = clock() + seconds
        self.spent = 0

    def spend(self, steps: int, line: int = 0, column: int = 0) -> None:
        """Count work that is about to be done. Raises UnreadableDocument when it exceeds a limit."""
        self.spent += steps
        if self.spent > self._steps or self._clock() > self._until:
            what = "reading this document takes too much work; split it into several workflows"
            raise UnreadableDocument(Problem(what, line, column))
