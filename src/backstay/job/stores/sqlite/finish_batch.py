"""Apply the finishes of an exchange. Jobs that were claimed together usually complete together and with equal results;
one query and one statement apply such a batch. Any other batch is applied job by job (`finish.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from backstay.job.exchange import Verdict
from backstay.job.model import Finish
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import COMPLETED, RUNNING, json_text
from backstay.job.stores.sqlite.finish import UNIFORM_MIN, Finisher, PreparedFinish, prepare_finish
from backstay.job.stores.sqlite.finish_effects import FINISH

_by_fence = attrgetter("fence")
_OK: Verdict = "ok"


class FinishBatch:
    """The finishes of an exchange, with everything that can be computed before the transaction begins."""

    __slots__ = ("_finishes", "_ids", "_prepared", "consecutive")

    def __init__(self, finishes: Sequence[Finish]) -> None:
        self._finishes = finishes
        self._prepared: list[PreparedFinish] | None = None
        self._ids = ""
        #: The finishes in the order of fences, if all of them complete jobs with the same result and their fences are
        #: consecutive; their rows may then be consecutive too. Otherwise empty.
        self.consecutive = _find_consecutive(finishes)
        if not self.consecutive:
            self.prepare_each()

    def __len__(self) -> int:
        return len(self._finishes)

    def prepare_each(self) -> tuple[list[PreparedFinish], str]:
        """Return what `Finisher.run` needs to apply the finishes job by job: the prepared finishes, and the job ids as
        a JSON array. Both are computed at the first call.
        """
        if self._prepared is None:
            self._prepared = [prepare_finish(finish) for finish in self._finishes]
            self._ids = json_text([finish.job for finish in self._finishes])
        return self._prepared, self._ids


def _find_consecutive(finishes: Sequence[Finish]) -> Sequence[Finish]:
    """Return the finishes in the order of fences if they meet the conditions stated at `FinishBatch.consecutive`;
    otherwise an empty tuple.
    """
    count = len(finishes)
    if count < UNIFORM_MIN:
        return ()
    result = finishes[0].result
    plain = [f for f in finishes if f.kind == "complete" and f.next is None and not f.adds and not f.outputs]
    fences = [f.fence for f in plain if f.result == result]
    if len(fences) < count:
        return ()
    first = min(fences)
    expected = list(range(first, first + count))
    if fences == expected:
        return finishes
    return sorted(finishes, key=_by_fence) if sorted(fences) == expected else ()


def apply_finishes(changes: Changes, batch: FinishBatch) -> tuple[Verdict, ...]:
    """Apply the finishes. Returns the verdict of each."""
    if not batch:
        return ()
    if batch.consecutive and _complete(changes, batch.consecutive):
        return (_OK,) * len(batch)
    return tuple(Finisher(changes).run(*batch.prepare_each()))


def _complete(changes: Changes, finishes: Sequence[Finish]) -> bool:
    """Complete the jobs with one statement, if their rows are consecutive and no job has watchers, dependents, a run or
    keys. Returns whether it did.
    """
    first = finishes[0]
    found: tuple[int, str | None, str, int] = changes.db.execute(
        FINISH["consecutive"], (changes.space, first.job, len(finishes) - 1, first.fence)
    ).fetchone()
    num, ids, kinds, same_keep = found
    if ids != ",".join([finish.job for finish in finishes]):
        return False
    changes.db.execute(FINISH["complete_range"], (changes.now, first.result, num, num + len(finishes) - 1, same_keep))
    for kind, times in Counter(kinds.split(",")).items():
        changes.count_transition(int(kind), RUNNING, COMPLETED, times)
    return True
