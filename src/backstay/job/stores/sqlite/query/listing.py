"""List jobs in pages, newest first. An index orders the jobs of each state by id, so a query reads only the rows that
it returns.

A filter by queue or type selects kinds (a kind is a job type with its queue, labels and rate). The index contains the
kind of each job, so the query skips jobs of other kinds without reading their rows. The table of kinds counts the jobs
of each kind, and the query stops once it has found that many jobs.
"""

from __future__ import annotations

from backstay.job.model import Job, JobResult, State
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import COMPLETED, NUMBERS, RUNNING, STATES, json_text
from backstay.job.stores.sqlite.query.get import to_job
from backstay.job.stores.sqlite.statements import load

LIST = load("list_jobs")
#: A text that sorts after every id.
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
        found = _list_filtered(changes, state, queue, type_, before, limit)
    rows = db.execute(LIST["rows"], (space, json_text(found))).fetchall()
    return [to_job(changes, row) for row in rows]


def results(changes: Changes, run: str, before: str, limit: int) -> list[JobResult]:
    rows = changes.db.execute(LIST["results"], (changes.space, run, before or END, limit))
    return [
        JobResult(id_, type_, STATES[int(state)], chain or id_, follower, result if state == COMPLETED else None)
        for id_, type_, state, chain, follower, result in rows
    ]


def _list_filtered(changes: Changes, state: State | None, queue: str, type_: str, before: str, limit: int) -> list[str]:
    """Return the newest ids that match, in one state or, if `state` is None, in all. The LIMIT of each query is at most
    the number of matching jobs, which the table of kinds counts. So the query ends at its last match and does not scan
    the rest of the index.
    """
    db, space = changes.db, changes.space
    kinds = db.execute(LIST["kinds"], (space, queue, type_)).fetchall()
    every = json_text([kind[0] for kind in kinds])
    found: list[str] = []
    for number in range(len(STATES)) if state is None else NUMBERS[state]:
        bound = min(limit, sum(kind[number + 1] for kind in kinds))
        if not bound:
            continue
        if number == RUNNING:
            rows = db.execute(LIST["running"], (space, every, before, bound))
        elif queue or type_:
            rows = db.execute(LIST["newest_of"], (space, number, before, every, bound))
        else:
            rows = db.execute(LIST["newest"], (space, number, before, bound))
        found += [row[0] for row in rows]
    return sorted(found, reverse=True)[:limit]


def list_oldest(changes: Changes, number: int, queue: str, limit: int) -> list[str]:
    """Return the ids of the oldest jobs in a final state, except jobs of runs, which are deleted with their run."""
    db, space = changes.db, changes.space
    kinds = [kind for kind in db.execute(LIST["kinds_without_run"], (space, queue, number)) if kind[1]]
    bound = min(limit, sum(kind[1] for kind in kinds))
    if bound <= 0:
        return []
    rows = db.execute(LIST["oldest_of"], (space, number, json_text([kind[0] for kind in kinds]), bound))
    return [row[0] for row in rows]
