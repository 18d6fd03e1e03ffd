"""Re-run the failed and cancelled jobs of a run, and the dependents they skipped, in one transaction."""

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
from backstay.job.stores.sqlite.ending import FINISH
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
    # A restarted job waits for those of its blockers that restart too. A dependent that stays final for another reason
    # no longer counts their old outcome.
    changes.db.executemany(TRIGGER["wait_again"], [*waits, *dependents])
    for record in restarted.values():
        due = record.due if record.state == SKIPPED else changes.now
        if changes.db.execute(FINISH["has_open_blocker"], (record.num,)).fetchone() is not None:
            state = BLOCKED
        else:
            state = SCHEDULED if due > changes.now else PENDING
        reset(changes, record, state, due)
    # A waiter may have been added after the chain ended, so the chain's last job may lack the AWAITED flag.
    changes.db.executemany(
        ENQUEUE["mark_awaited"], [(chains[chain],) for chain in {chain for _, chain in [*waits, *dependents]}]
    )


def _select_restarted(changes: Changes, failed: list[JobRecord]) -> tuple[dict[int, JobRecord], list[tuple[int, str]]]:
    """Return the failed jobs and the dependents that were skipped only because of them, by number; and the number and
    chain of every dependent that waited for one of them without success.
    """
    db, space = changes.db, changes.space
    restarted = {record.num: record for record in failed}
    chains = {record.chain or record.id for record in failed}
    spoilt: defaultdict[int, set[str]] = defaultdict(set)
    dependents: list[tuple[int, str]] = []
    todo = list(failed)
    while todo:
        record = todo.pop()
        ended_chain = record.chain or record.id
        rows = db.execute(TRIGGER["dependents"], (space, ended_chain)).fetchall()
        found = [other for other in map(JobRecord._make, rows) if other.num not in restarted]
        dependents += [(other.num, ended_chain) for other in found]
        unknown = json_text([other.num for other in found if other.num not in spoilt])
        for num, chain, ended in db.execute(RERUN["waits"], (unknown,)):
            if ended in (OUTCOME_BAD, OUTCOME_FAILED):
                spoilt[num].add(chain)
        for other in found:
            if other.state != SKIPPED:  # failed or cancelled, in another run or in none
                continue
            if other.flags & (ALL_DONE | ANY_FAILURE) or spoilt[other.num] <= chains:
                restarted[other.num] = other
                chains.add(other.chain or other.id)
                todo.append(other)
    return restarted, dependents
