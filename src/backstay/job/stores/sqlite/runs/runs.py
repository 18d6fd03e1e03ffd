"""Start, read, list, cancel and check workflow runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from backstay.errors import ConfigError
from backstay.job.run_model import LARGEST_RUN, NewRun, Run, RunStatus
from backstay.job.stores.sqlite.admin import cancel_all
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import FAILED, PARKED, PENDING, STATES, JobRecord
from backstay.job.stores.sqlite.enqueue import Enqueuer
from backstay.job.stores.sqlite.prepared import LARGEST, PreparedJob, mark_in_run, prepare, require_storable
from backstay.job.stores.sqlite.query.listing import END
from backstay.job.stores.sqlite.runs.run import CREATED, RUN, STATUSES, RunUpdate
from backstay.job.stores.sqlite.statements import load

START = load("start_run")
LIST = load("list_runs")
CANCEL = load("cancel_run")
CHECK = load("check_runs")
#: `check` counts the jobs of one run after another. It stops once it has counted this many jobs, and the next call
#: continues with other runs.
MAX_COUNTED = LARGEST_RUN
TIMED_OUT = "the run did not end before its deadline"


class PreparedRun(NamedTuple):
    """A new run whose jobs are checked and encoded before the transaction begins."""

    run: NewRun
    jobs: list[PreparedJob]


def prepare_run(run: NewRun) -> PreparedRun:
    if len(run.jobs) > LARGEST_RUN:
        raise ConfigError(
            f"run {run.id} has {len(run.jobs)} jobs, at most {LARGEST_RUN} are allowed: add jobs from a running job, or"
            " split it into several runs"
        )
    if any(not 0 <= number < LARGEST for number in (run.version, run.timeout, run.keep)):
        raise ConfigError(f"a number of run {run.id} is negative or too large: times are µs, below {LARGEST}")
    require_storable("a name of a run", run.id, run.workflow)
    known: set[str] = set()
    for job in run.jobs:
        if job.run != run.id:
            raise ConfigError(f"job {job.id} belongs to run {job.run!r}, not to {run.id}: set its run to {run.id}")
        if job.unique is not None:
            raise ConfigError(f"job {job.id} of run {run.id} has a unique key: a run must create all of its jobs")
        if job.id in known:
            raise ConfigError(f"run {run.id} contains job {job.id} twice")
        for chain in job.after:
            if chain not in known:
                raise ConfigError(
                    f"job {job.id} of run {run.id} waits for {chain!r}, which is not among the run's earlier jobs"
                )
        known.add(job.id)
    return PreparedRun(run, [mark_in_run(prepare(job)) for job in run.jobs])


def start(changes: Changes, prepared: PreparedRun) -> Run:
    run = prepared.run
    found = get(changes, run.id)
    if found is not None:
        return found
    enqueuer = Enqueuer(changes, prepared.jobs)
    enqueuer.check()
    if enqueuer.known:
        raise ConfigError(f"job {enqueuer.known[0]} of run {run.id} is already stored: create a new id for each job")
    db, now = changes.db, changes.now
    if db.execute(START["has_jobs"], (changes.space, run.id)).fetchone() is not None:
        # Jobs with this run id are already stored. The job counts of a new run start at zero, so they would not include
        # these jobs.
        raise ConfigError(f"jobs with run id {run.id} are already stored without a run: create a new id for the run")
    deadline = now + run.timeout if run.timeout else 0
    (num,) = db.execute(
        START["run"],
        (changes.space, run.id, run.workflow, run.version, now, run.timeout, deadline, run.keep),
    ).fetchone()
    db.execute(START["doc"], (num, run.doc))
    update = RunUpdate(run.id, db.execute(RUN["find"], (changes.space, run.id)).fetchone(), now)
    update.add_event(CREATED)
    changes.add_run(update)
    enqueuer.write()
    changes.write()
    return _to_run(db.execute(LIST["get"], (changes.space, run.id)).fetchone())


def get(changes: Changes, id_: str, *, doc: bool = True) -> Run | None:
    row = changes.db.execute(LIST["get" if doc else "get_bare"], (changes.space, id_)).fetchone()
    return None if row is None else _to_run(row)


def list_runs(changes: Changes, workflow: str, status: RunStatus | None, before: str, limit: int) -> list[Run]:
    space, before = changes.space, before or END
    params: tuple[Any, ...]
    if status is None:
        name, params = ("of_workflow", (workflow,)) if workflow else ("all", ())
    else:
        number = STATUSES.index(status)
        name, params = ("of_workflow_in_status", (workflow, number)) if workflow else ("in_status", (number,))
    return [_to_run(row) for row in changes.db.execute(LIST[name], (space, *params, before, limit))]


def _to_run(row: Sequence[Any]) -> Run:
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
    """Cancel a run: its running jobs get a cancellation request, its other open jobs are cancelled at once."""
    require_storable("the reason", reason)
    run = changes.find_run(id_)
    if run is None:
        return None
    if not run.is_finished and not run.cancel:
        _request_cancel(changes, run, reason)
        changes.write()
    return get(changes, id_)


def _request_cancel(changes: Changes, run: RunUpdate, reason: str) -> None:
    rows = changes.db.execute(CANCEL["open_jobs"], (changes.space, run.id)).fetchall()
    run.request_cancel(reason)
    cancel_all(changes, [JobRecord._make(row) for row in rows], reason)


def check(changes: Changes, limit: int) -> list[str]:
    """Correct run counts that differ from the jobs, and cancel runs past their deadline. Returns the ids of the
    corrected runs. A difference is a bug: the transaction that changes a job also changes the counts.
    """
    db, space = changes.db, changes.space
    wrong: list[str] = []
    counted = 0
    for id_, num in db.execute(CHECK["oldest"], (space, limit)).fetchall():
        if counted >= MAX_COUNTED:
            break
        counts, hard_failures = _count_jobs(changes, id_)
        counted += sum(counts)
        run = changes.find_run(id_)
        if run is not None and run.correct_counts(counts, hard_failures):
            wrong.append(id_)
        db.execute(CHECK["mark_checked"], (changes.now, num))
    changes.write()
    for (id_,) in db.execute(CHECK["past_deadline"], (space, changes.now, limit)).fetchall():
        run = changes.find_run(id_)
        if run is not None:
            _request_cancel(changes, run, TIMED_OUT)
    changes.write()
    return wrong


def _count_jobs(changes: Changes, id_: str) -> tuple[list[int], int]:
    """Count the jobs of a run: a list by state, and the number of failed jobs that are not soft."""
    counts = [0] * PARKED
    hard_failures = 0
    for state, count, hard in changes.db.execute(CHECK["counts"], (changes.space, id_)):
        counts[PENDING if state == PARKED else state] += count
        if state == FAILED:
            hard_failures = hard
    return counts, hard_failures
