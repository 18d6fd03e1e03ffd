"""Apply the finishes of an exchange. Jobs that were claimed together usually finish together with equal results: one
query and one statement cover them all. Every other batch is handled job by job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from backstay.job.model import Finish, Verdict
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import COMPLETED, RUNNING, json_text
from backstay.job.stores.sqlite.ending import FINISH
from backstay.job.stores.sqlite.finish import UNIFORM_MIN, Finisher, PreparedFinish, prepare_finish

_by_fence = attrgetter("fence")
_OK: Verdict = "ok"


class FinishBatch:
    """The finishes of an exchange, with everything that can be computed before the transaction begins."""

    __slots__ = ("_finishes", "_ids", "_prepared", "consecutive")

    def __init__(self, finishes: Sequence[Finish]) -> None:
        self._finishes = finishes
        self._prepared: list[PreparedFinish] | None = None
        self._ids = ""
        #: The finishes by fence, if all complete with one result under consecutive fences: their rows may be
        #: consecutive too. Else empty.
        self.consecutive = _consecutive(finishes)
        if not self.consecutive:
            self.prepare_each()

    def __len__(self) -> int:
        return len(self._finishes)

    def prepare_each(self) -> tuple[list[PreparedFinish], str]:
        """Return each finish prepared by itself, and the job ids as JSON."""
        if self._prepared is None:
            self._prepared = [prepare_finish(finish) for finish in self._finishes]
            self._ids = json_text([finish.job for finish in self._finishes])
        return self._prepared, self._ids


def _consecutive(finishes: Sequence[Finish]) -> Sequence[Finish]:
    many = len(finishes)
    if many < UNIFORM_MIN:
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


def apply_finishes(changes: Changes, ends: FinishBatch) -> tuple[Verdict, ...]:
    """Apply the finishes. Returns the verdict of each."""
    if not ends:
        return ()
    if ends.consecutive and _complete(changes, ends.consecutive):
        return (_OK,) * len(ends)
    return tuple(Finisher(changes).run(*ends.prepare_each()))


def _complete(changes: Changes, finishes: Sequence[Finish]) -> bool:
    """Complete the jobs with one statement, if their rows are consecutive and their ends have no effects. False:
    nothing changed.
    """
    first = finishes[0]
    found: tuple[int, str | None, str, int] = changes.db.execute(
        FINISH["consecutive"], (changes.space, first.job, len(finishes) - 1, first.fence)
    ).fetchone()
    num, ids, kinds, kept_alike = found
    if ids != ",".join([finish.job for finish in finishes]):
        return False
    changes.db.execute(FINISH["complete_range"], (changes.now, first.result, num, num + len(finishes) - 1, kept_alike))
    for kind, times in Counter(kinds.split(",")).items():
        changes.count_transition(int(kind), RUNNING, COMPLETED, times)
    return True
