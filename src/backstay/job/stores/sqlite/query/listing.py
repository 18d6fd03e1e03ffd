"""List jobs in pages. An index orders the jobs of each state by id, so a page reads only the rows that it returns, for
one state or for all states.

A queue or type filter selects kinds (a kind is a job type with its queue and options). The query skips jobs of other
kinds in the index without reading their rows, and stops when it has found as many jobs as the kinds' counters hold.
"""

from __future__ import annotations

from backstay.job.model import Job, JobResult, State
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import COMPLETED, NUMBERS, RUNNING, STATES, json_text
from backstay.job.stores.sqlite.query.get import to_job
from backstay.job.stores.sqlite.statements import load

LIST = load("list_jobs")
#: Sorts after every id.
END = "\U0010ffff"


def list_jobs(
    changes: Changes, state: State | None, queue: str, type_: str, run: str, before: str, limit: int
) -> list[Job]:
    db, space = changes.db, changes.space
    before = before or END
    if run:
        number = -1 if state is None else NUMBERS[state][0]
        found = [row[0] for row in db.execute(LIST["run"], (space, run, before, number, queue, type_, limit))]
    elif state is None and not queue and not type_:
        found = [row[0] for row in db.execute(LIST["all"], (space, before, limit))]
    else:
        found = _filtered(changes, state, queue, type_, before, limit)
    rows = db.execute(LIST["shown"], (space, json_text(found))).fetchall()
    return [to_job(changes, row) for row in rows]


def results(changes: Changes, run: str, before: str, limit: int) -> list[JobResult]:
    rows = changes.db.execute(LIST["results"], (changes.space, run, before or END, limit))
    return [
        JobResult(id_, type_, STATES[int(state)], chain or id_, follower, result if state == COMPLETED else None)
        for id_, type_, state, chain, follower, result in rows
    ]


def _filtered(changes: Changes, state: State | None, queue: str, type_: str, before: str, limit: int) -> list[str]:
    """Return the newest ids over all states. The counts bound each query, so none scans the index for a match that
    does not exist.
    """
    db, space = changes.db, changes.space
    kinds = db.execute(LIST["kinds"], (space, queue, type_)).fetchall()
    every = json_text([kind[0] for kind in kinds])
    found: list[str] = []
    for number in range(len(STATES)) if state is None else NUMBERS[state]:
        most = min(limit, sum(kind[number + 1] for kind in kinds))
        if not most:
            continue
        if number == RUNNING:
            rows = db.execute(LIST["running"], (space, every, before, most))
        elif queue or type_:
            rows = db.execute(LIST["newest_of"], (space, number, before, every, most))
        else:
            rows = db.execute(LIST["newest"], (space, number, before, most))
        found += [row[0] for row in rows]
    return sorted(found, reverse=True)[:limit]


def oldest(changes: Changes, number: int, queue: str, limit: int) -> list[str]:
    """Return the oldest jobs in a final state that belong to no run. Jobs of a run are deleted with the run."""
    db, space = changes.db, changes.space
    kinds = [kind for kind in db.execute(LIST["loose_kinds"], (space, queue, number)) if kind[1]]
    most = min(limit, sum(kind[1] for kind in kinds))
    if most <= 0:
        return []
    rows = db.execute(LIST["oldest_of"], (space, number, json_text([kind[0] for kind in kinds]), most))
    return [row[0] for row in rows]
