"""The common way through a run, in few rounds: attempts end well, those who waited for them start, some of these are
handed out, and their runs count it. Everything here is a statement for one transaction; `step.py` says when.

Whatever is not common (a failure, limits, a lease that ran out) makes these statements leave alone what it concerns,
and all that comes behind it, so that nothing is held in another order than ever (`ending.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.job.model import Finish
from holdfast.job.postgres.ending import Ending, Ends, Outcome, outcome_of
from holdfast.job.postgres.finish import is_plain
from holdfast.job.postgres.moves import Held
from holdfast.job.postgres.rows import AWAITED, IN_RUN, KEYED, UNIQUE_DONE, Part
from holdfast.job.postgres.texts import Bytes, Numbers, Texts

Named = tuple[str, dict[str, Any]]

#: Jobs with one of these end with more care.
MORE_CARE = UNIQUE_DONE | KEYED


def end_well(finishes: Iterable[Finish]) -> bool:
    """Whether all of them are successes that make nothing."""
    return all(finish.kind == "complete" and is_plain(finish) for finish in finishes)


def finishing(lane: dict[str, Any], finishes: Sequence[Finish], *, reaped: bool) -> Named:
    return "finish_runs", {
        **lane,
        "care": MORE_CARE,
        "reaped": reaped,
        "count": len(finishes),
        "ids": Texts([finish.job for finish in finishes]),
        "fences": Numbers([finish.fence for finish in finishes]),
        "results": Bytes([finish.result for finish in finishes]),
    }


def finished(ends: Ends, rows: Sequence[Any], finishes: Sequence[Finish]) -> dict[str, Outcome]:
    """What finish_runs.sql ended is counted. Returns the chains that others may wait for."""
    over: dict[str, Outcome] = {}
    place: int
    for place, id_, chain, flags, attempt, run, worker in rows:
        ends.announce(id_, chain, flags)
        ends.moved(flags, run, id_, "running", "completed", attempt, worker=worker)
        if flags & AWAITED:
            finish = finishes[place - 1]
            over[chain] = outcome_of("completed", flags, False, finish.result)
    return over


def following(ends: Ends, over: dict[str, Outcome]) -> list[Named]:
    """Those who waited for these chains hear of it, and start."""
    if not over:
        return []
    chains = {"space": ends.space, "chains": Texts(list(over))}
    results = Bytes([outcome.result for outcome in over.values()])
    return [
        ("after_reach", {**chains, "bad": Numbers([0] * len(over))}),
        ("release_heard", {**chains, "results": results, "now": ends.now}),
    ]


def holding(ends: Ends, rows: Sequence[Any]) -> Named:
    """The runs of what ended (rows of finish_runs.sql), was released and was handed out."""
    runs = {row[5] for row in rows if row[3] & IN_RUN}
    return "run_hold_more", {"space": ends.space, "now": ends.now, "ids": Texts(sorted(runs))}


def released(ends: Ends, rows: Sequence[Any]) -> list[Any]:
    """What release_heard.sql released is counted. Returns the rows of those that it left alone."""
    ends.released([row[:6] for row in rows if row[2] != "blocked"], "blocked")
    return [row for row in rows if row[2] == "blocked"]


def after_failures(ends: Ends, rows: Sequence[Any]) -> Part:
    """Jobs that start because of a failure, and wait for nobody any more: some do, and some are skipped."""
    yield from ends.release(sorted(row[0] for row in rows if row[6]))
    yield from ends.end([Ending(id_, "skipped") for id_ in sorted(row[0] for row in rows if not row[6])])


def held(ends: Ends, rows: Sequence[Any]) -> None:
    ends.moves.held.update((row[0], Held.of(row)) for row in rows)
