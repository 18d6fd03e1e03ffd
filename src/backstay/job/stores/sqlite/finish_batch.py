"""The ends that a step brings. Most workers tell together what they claimed together, and most of it ended alike: that
is one look and one statement, however many there are. Everything else is looked at one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from backstay.job.model import Finish, Verdict
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import COMPLETED, RUNNING, text_of
from backstay.job.stores.sqlite.ending import FINISH
from backstay.job.stores.sqlite.finish import ALIKE, Ending, Finishing, prepare_finish

_by_fence = attrgetter("fence")
_OK: Verdict = "ok"


class Ends:
    """A step's ends, with what can be made of them before the transaction begins."""

    __slots__ = ("_endings", "_finishes", "_ids", "in_row")

    def __init__(self, finishes: Sequence[Finish]) -> None:
        self._finishes = finishes
        self._endings: list[Ending] | None = None
        self._ids = ""
        #: By fence, if they completed with the same result under fences in a row: perhaps they lie in a row, too.
        self.in_row = _in_row(finishes)
        if not self.in_row:
            self.one_by_one()

    def __len__(self) -> int:
        return len(self._finishes)

    def one_by_one(self) -> tuple[list[Ending], str]:
        """Each by itself, and their ids for a statement."""
        if self._endings is None:
            self._endings = [prepare_finish(finish) for finish in self._finishes]
            self._ids = text_of([finish.job for finish in self._finishes])
        return self._endings, self._ids


def _in_row(finishes: Sequence[Finish]) -> Sequence[Finish]:
    many = len(finishes)
    if many < ALIKE:
        return ()
    result = finishes[0].result
    plain = [f for f in finishes if f.kind == "complete" and f.next is None and not f.adds and not f.outputs]
    fences = [f.fence for f in plain if f.result == result]
    if len(fences) < many:
        return ()
    first = min(fences)
    row = list(range(first, first + many))
    if fences == row:
        return finishes
    return sorted(finishes, key=_by_fence) if sorted(fences) == row else ()


def end(changes: Changes, ends: Ends) -> tuple[Verdict, ...]:
    """What became of each."""
    if not ends:
        return ()
    if ends.in_row and _complete(changes, ends.in_row):
        return (_OK,) * len(ends)
    return tuple(Finishing(changes).run(*ends.one_by_one()))


def _complete(changes: Changes, finishes: Sequence[Finish]) -> bool:
    """Whether they were what they looked like: then they have completed. If not, nothing has happened."""
    first = finishes[0]
    found: tuple[int, str | None, str, int] = changes.db.execute(
        FINISH["together"], (changes.space, first.job, len(finishes) - 1, first.fence)
    ).fetchone()
    num, ids, kinds, kept_alike = found
    if ids != ",".join([finish.job for finish in finishes]):
        return False
    changes.db.execute(FINISH["complete_row"], (changes.now, first.result, num, num + len(finishes) - 1, kept_alike))
    for kind, times in Counter(kinds.split(",")).items():
        changes.moved(int(kind), RUNNING, COMPLETED, times)
    return True
