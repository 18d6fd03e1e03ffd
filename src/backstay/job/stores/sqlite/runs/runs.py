"""Runs: begun with all of their jobs, ended by hand, tried again, compared with their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from backstay.errors import ConfigError
from backstay.job.run_model import LARGEST_RUN, NewRun, Run, RunStatus
from backstay.job.stores.sqlite.admin import cancel_all
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import FAILED, PARKED, PENDING, STATES, Entry
from backstay.job.stores.sqlite.enqueue import Enqueuing
from backstay.job.stores.sqlite.prepared import LARGEST, Encoded, in_run, prepare, storable
from backstay.job.stores.sqlite.query.listing import END
from backstay.job.stores.sqlite.runs.run import CREATED, RUN, STATUSES, RunCourse
from backstay.job.stores.sqlite.statements import load

START = load("start_run")
LIST = load("list_runs")
CANCEL = load("cancel_run")
CHECK = load("check_runs")
#: One check compares at most about this many jobs with their runs, then leaves the rest to the next.
COMPARED = LARGEST_RUN
TOO_LATE = "it has not ended in time"


class Prepared(NamedTuple):
    """A run to be, checked and encoded before its transaction begins."""

    run: NewRun
    jobs: list[Encoded]


def prepare_run(run: NewRun) -> Prepared:
    if len(run.jobs) > LARGEST_RUN:
        raise ConfigError(f"run {run.id} has {len(run.jobs)} jobs: at most {LARGEST_RUN}; split it into several runs")
    if any(not 0 <= number < LARGEST for number in (run.version, run.timeout, run.keep)):
        raise ConfigError(f"a number of run {run.id} is negative or too large: times are µs, below {LARGEST}")
    storable("a name of a run", run.id, run.workflow)
    known: set[str] = set()
    for job in run.jobs:
        if job.run != run.id:
            raise ConfigError(f"job {job.id} is of run {job.run!r}, not of {run.id}: give it the run's id")
        if job.unique is not None:
            raise ConfigError(f"job {job.id} of run {run.id} has a unique key, but a run needs all of its jobs")
        if job.id in known:
            raise ConfigError(f"job {job.id} is twice in run {run.id}")
        for chain in job.after:
            if chain not in known:
                raise ConfigError(
                    f"job {job.id} of run {run.id} waits for {chain!r}, which is not among the jobs before it"
                )
        known.add(job.id)
    return Prepared(run, [in_run(prepare(job)) for job in run.jobs])


def start(changes: Changes, prepared: Prepared) -> Run:
    run = prepared.run
    found = get(changes, run.id)
    if found is not None:
        return found
    enqueuing = Enqueuing(changes, prepared.jobs)
    enqueuing.look()
    if enqueuing.known:
        raise ConfigError(f"job {enqueuing.known[0]} of run {run.id} is stored already: make a new id for each job")
    db, now = changes.db, changes.now
    if db.execute(START["taken"], (changes.space, run.id)).fetchone() is not None:
        # Its counts would never be right: they begin with the run.
        raise ConfigError(f"jobs were enqueued with run {run.id} before there was one: make a new id for the run")
    deadline = now + run.timeout if run.timeout else 0
    (num,) = db.execute(
        START["run"],
        (changes.space, run.id, run.workflow, run.version, now, run.timeout, deadline, run.keep),
    ).fetchone()
    db.execute(START["doc"], (num, run.doc))
    course = RunCourse(run.id, db.execute(RUN["find"], (changes.space, run.id)).fetchone(), now)
    course.tell(CREATED)
    changes.began(course)
    enqueuing.write()
    changes.write()
    return _shown(db.execute(LIST["get"], (changes.space, run.id)).fetchone())


def get(changes: Changes, id_: str, *, doc: bool = True) -> Run | None:
    row = changes.db.execute(LIST["get" if doc else "get_bare"], (changes.space, id_)).fetchone()
    return None if row is None else _shown(row)


def list_runs(changes: Changes, workflow: str, status: RunStatus | None, before: str, limit: int) -> list[Run]:
    space, before = changes.space, before or END
    params: tuple[Any, ...]
    if status is None:
        name, params = ("of_workflow", (workflow,)) if workflow else ("all", ())
    else:
        number = STATUSES.index(status)
        name, params = ("of_workflow_in_status", (workflow, number)) if workflow else ("in_status", (number,))
    return [_shown(row) for row in changes.db.execute(LIST[name], (space, *params, before, limit))]


def _shown(row: Sequence[Any]) -> Run:
    (
        id_, workflow, version, status, created, started, finished, deadline, cancel, reason, events, *counts, doc,
    ) = row  # fmt: skip
    status_name: RunStatus = STATUSES[int(status)]
    return Run(
        id=id_,
        workflow=workflow,
        version=version,
        status=status_name,
        doc=doc,
        created=created,
        started=started,
        finished=finished,
        deadline=deadline,
        cancel_requested=bool(cancel),
        reason=reason,
        counts={STATES[number]: count for number, count in enumerate(counts) if count},
        events=events,
    )


def cancel(changes: Changes, id_: str, reason: str) -> Run | None:
    """What does not run ends at once; what runs is only asked to."""
    storable("the reason", reason)
    run = changes.run(id_)
    if run is None:
        return None
    if not run.is_over and not run.cancel:
        _call_off(changes, run, reason)
        changes.write()
    return get(changes, id_)


def _call_off(changes: Changes, run: RunCourse, reason: str) -> None:
    rows = changes.db.execute(CANCEL["open"], (changes.space, run.id)).fetchall()
    run.call_off(reason)
    cancel_all(changes, [Entry._make(row) for row in rows], reason)


def check(changes: Changes, limit: int) -> list[str]:
    """Counts that differ from the jobs are set right. They change in the transaction that moves a job, so none does."""
    db, space = changes.db, changes.space
    wrong: list[str] = []
    seen = 0
    for id_, num in db.execute(CHECK["oldest"], (space, limit)).fetchall():
        if seen >= COMPARED:
            break
        counts, broken = _counted(changes, id_)
        seen += sum(counts)
        run = changes.run(id_)
        if run is not None and run.set_right(counts, broken):
            wrong.append(id_)
        db.execute(CHECK["checked"], (changes.now, num))
    changes.write()
    for (id_,) in db.execute(CHECK["late"], (space, changes.now, limit)).fetchall():
        run = changes.run(id_)
        if run is not None:
            _call_off(changes, run, TOO_LATE)
    changes.write()
    return wrong


def _counted(changes: Changes, id_: str) -> tuple[list[int], int]:
    """How many jobs of a run are in which state, and how many failed that are not soft."""
    counts = [0] * PARKED
    broken = 0
    for state, count, hard in changes.db.execute(CHECK["counts"], (changes.space, id_)):
        counts[PENDING if state == PARKED else state] += count
        if state == FAILED:
            broken = hard
    return counts, broken
