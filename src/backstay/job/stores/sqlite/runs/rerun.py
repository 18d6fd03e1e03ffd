"""Re-run the failed and cancelled jobs of a finished run, and the dependents that were skipped because of them."""

from __future__ import annotations

from collections import defaultdict

from backstay.job.run_model import Run
from backstay.job.stores.sqlite.admin import TRIGGER, reset
from backstay.job.stores.sqlite.blockers import ENQUEUE
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    ALL_DONE,
    ANY_FAILURE,
    BLOCKED,
    OUTCOME_BAD,
    OUTCOME_FAILED,
    PENDING,
    SCHEDULED,
    SKIPPED,
    JobRecord,
    json_text,
)
from backstay.job.stores.sqlite.finish_effects import FINISH
from backstay.job.stores.sqlite.runs import runs
from backstay.job.stores.sqlite.statements import load

RERUN = load("rerun_failed")


def rerun_failed(changes: Changes, id_: str) -> Run | None:
    run = changes.find_run(id_)
    if run is None:
        return None
    if run.is_finished:
        failed = [JobRecord._make(row) for row in changes.db.execute(RERUN["failed"], (changes.space, id_))]
        if failed:
            _restart(changes, failed)
            changes.write()
    return runs.get(changes, id_)


def _restart(changes: Changes, failed: list[JobRecord]) -> None:
    restarted, dependents = _select_restarted(changes, failed)
    chains = {record.chain or record.id: record.num for record in restarted.values()}
    waits: list[tuple[int, str]] = [
        (num, chain)
        for num, chain, _ in changes.db.execute(RERUN["waits"], (json_text(list(restarted)),)).fetchall()
        if chain in chains
    ]
    # In `backstay_job_wait`, set the outcome of every restarted blocker back to "has not ended": its old outcome no
    # longer counts. This concerns the restarted jobs that wait for it, and also dependents that are not restarted,
    # because these may be retried later.
    changes.db.executemany(TRIGGER["wait_again"], [*waits, *dependents])
    for record in restarted.values():
        due = record.due if record.state == SKIPPED else changes.now
        if changes.db.execute(FINISH["has_open_blocker"], (record.num,)).fetchone() is not None:
            state = BLOCKED
        else:
            state = SCHEDULED if due > changes.now else PENDING
        reset(changes, record, state, due)
    # When a job ends, it releases the dependents of its chain only if it has the flag AWAITED. A dependent that was
    # enqueued after the chain had ended did not set this flag on the chain's last job, so set it now.
    changes.db.executemany(
        ENQUEUE["mark_awaited"], [(chains[chain],) for chain in {chain for _, chain in [*waits, *dependents]}]
    )


def _select_restarted(changes: Changes, failed: list[JobRecord]) -> tuple[dict[int, JobRecord], list[tuple[int, str]]]:
    """Return the jobs to restart, by row number: the failed and cancelled jobs, and the dependents that were skipped
    only because of them. Also return which rows of `backstay_job_wait` must be set back to "the blocker has not ended",
    as pairs (row number of a dependent, id of a restarted chain).
    """
    db, space = changes.db, changes.space
    restarted = {record.num: record for record in failed}
    chains = {record.chain or record.id for record in failed}
    bad_blockers: defaultdict[int, set[str]] = defaultdict(set)
    dependents: list[tuple[int, str]] = []
    todo = list(failed)
    while todo:
        record = todo.pop()
        ended_chain = record.chain or record.id
        rows = db.execute(TRIGGER["dependents"], (space, ended_chain)).fetchall()
        found = [other for other in map(JobRecord._make, rows) if other.num not in restarted]
        dependents += [(other.num, ended_chain) for other in found]
        unknown = json_text([other.num for other in found if other.num not in bad_blockers])
        for num, chain, outcome in db.execute(RERUN["waits"], (unknown,)):
            if outcome in (OUTCOME_BAD, OUTCOME_FAILED):
                bad_blockers[num].add(chain)
        for other in found:
            if other.state != SKIPPED:  # it failed or was cancelled itself, and belongs to another run or to none
                continue
            if other.flags & (ALL_DONE | ANY_FAILURE) or bad_blockers[other.num] <= chains:
                restarted[other.num] = other
                chains.add(other.chain or other.id)
                todo.append(other)
    return restarted, dependents
