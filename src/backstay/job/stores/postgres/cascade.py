"""The common way through a run, in one write: attempts end well, those who waited for them start, some of these are
handed out, and their runs count it. Everything here is a statement for one transaction; `exchange.py` says when.

What one statement did, those behind it hear of in settings of the transaction (`_moved.sql`), not from us: so nobody
holds a run's row while an answer travels. Whatever is not common (a failure, limits, a lease that ran out) makes these
statements leave alone what it concerns, and all that comes behind it, so that nothing is held in another order than
ever (`ending.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from backstay.job.model import Finish
from backstay.job.stores.postgres.ending import Ends
from backstay.job.stores.postgres.events import LARGEST
from backstay.job.stores.postgres.finish import is_plain
from backstay.job.stores.postgres.rows import KEYED, UNIQUE_DONE
from backstay.job.stores.postgres.statements import Bytes, Numbers, Texts

Named = tuple[str, dict[str, Any]]

#: Jobs with one of these end with more care.
MORE_CARE = UNIQUE_DONE | KEYED


def end_well(finishes: Iterable[Finish]) -> bool:
    """Whether all of them are successes that make nothing."""
    return all(finish.kind == "complete" and is_plain(finish) for finish in finishes)


def finishing(lane: dict[str, Any], finishes: Sequence[Finish], *, reaped: bool) -> list[Named]:
    """They end; those who waited for them hear of it, and start."""
    if not finishes:
        return []
    ends = {
        **lane,
        "care": MORE_CARE,
        "reaped": reaped,
        "count": len(finishes),
        "ids": Texts([finish.job for finish in finishes]),
        "fences": Numbers([finish.fence for finish in finishes]),
        "results": Bytes([finish.result for finish in finishes]),
    }
    return [("finish_runs", ends), ("release_hold", lane), ("release_heard", lane)]


def counting(lane: dict[str, Any]) -> list[Named]:
    """The runs of what ended, was released and was handed out: last, and right before the commit."""
    return [("run_grip", lane), ("run_move", {**lane, "largest": LARGEST})]


def came_of(ends: Ends, answers: dict[str, Any]) -> bool:
    """What others ought to hear of. Returns whether runs had to do with it."""
    for _, id_, chain, flags in answers.get("finish_runs", ()):
        ends.announce(id_, chain, flags)
    ends.ready.update((id_, type_) for id_, type_, state in answers.get("release_heard", ()) if state == "pending")
    counted = [row for row in answers["run_move"] if row[0] is not None]
    ends.counted(counted)
    return bool(counted)
