"""Cancel or retry single jobs on an operator's request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstay.engine.base import Micros
from backstay.job.model import AGEING, State
from backstay.job.stores.sqlite.blockers import ENQUEUE
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    ALL_DONE,
    ANY_FAILURE,
    BLAMED,
    BLOCKED,
    CANCEL_WANTED,
    CANCELLED,
    FAILED,
    FINALS,
    HAS_BLOCKERS,
    OUTCOME_BAD,
    OUTCOME_FAILED,
    OUTCOME_OPEN,
    PENDING,
    RUNNING,
    SCHEDULED,
    SKIPPED,
    SOFT,
    STATES,
    JobRecord,
    cancellation,
    decode_unique,
    json_text,
)
from backstay.job.stores.sqlite.ending import FINISH, ChainEnd, finish_chains_together, retention_deadline, unpark
from backstay.job.stores.sqlite.statements import load

CANCEL = load("cancel")
TRIGGER = load("trigger")


def find_record(changes: Changes, job: str) -> JobRecord | None:
    row = changes.db.execute(FINISH["records"], (changes.space, json_text([job]))).fetchone()
    return None if row is None else JobRecord._make(row)


def cancel(changes: Changes, job: str, reason: str) -> State | None:
    """Cancel a job at once; a running job only gets a cancellation request."""
    record = find_record(changes, job)
    if record is None:
        return None
    if record.state in FINALS:
        return STATES[record.state]
    cancel_all(changes, [record], reason)
    changes.write()
    return "running" if record.state == RUNNING else "cancelled"


def cancel_all(changes: Changes, records: Sequence[JobRecord], reason: str) -> None:
    """Cancel jobs that have not ended. All rows are written before any effect is applied, so that the end of one job
    neither skips nor releases another.
    """
    now = changes.now
    wanted: list[tuple[bytes, int]] = []
    over: list[tuple[Any, ...]] = []
    ends: list[ChainEnd] = []
    for record in records:
        error = cancellation(reason, record.attempt, now)
        if record.state == RUNNING:
            wanted.append((error, record.num))
            changes.announce_lease_lost(record.id)
            continue
        over.append((CANCELLED, now, retention_deadline(changes, record, CANCELLED), error, record.num))
        changes.record_transition(
            record.num, record.id, record.kind, record.run, record.state, CANCELLED, record.attempt, "", reason
        )
        ends.append(ChainEnd(record, OUTCOME_BAD))
    changes.db.executemany(CANCEL["request"], wanted)
    changes.db.executemany(FINISH["end"], over)
    finish_chains_together(changes, ends)
    for end in ends:
        if end.record.ckey is not None:  # it may have been the job that `unpark` returned to its lane
            unpark(changes, end.record.ckey)


def trigger(changes: Changes, job: str) -> State | None:
    """Retry a job now, with all its attempts. Dependents that were skipped because of it wait for it again."""
    record = find_record(changes, job)
    if record is None:
        return None
    if record.state not in (SCHEDULED, FAILED, CANCELLED, SKIPPED):
        return STATES[record.state]
    run = changes.find_run(record.run) if record.run else None
    if run is not None and run.is_cancelling:
        return STATES[record.state]
    if run is not None and record.state != SCHEDULED and _would_skip_again(changes, record):
        return STATES[record.state]
    state = BLOCKED if _reopen_blockers(changes, record) else PENDING
    reset(changes, record, state, changes.now)
    if record.state != SCHEDULED:
        _reblock_dependents(changes, record)
    changes.write()
    return STATES[state]


def reset(changes: Changes, record: JobRecord, state: int, due: Micros) -> None:
    """Reset a job to a live state, with all its attempts and its unique key if that is free."""
    flags = record.flags & ~(CANCEL_WANTED | BLAMED)
    alarm = due if state == SCHEDULED else 0
    changes.db.execute(TRIGGER["reset"], (state, due - record.priority * AGEING, due, flags, alarm, record.num))
    soft = bool(record.flags & SOFT)
    changes.record_transition(record.num, record.id, record.kind, record.run, record.state, state, soft=soft)
    if record.uniq is not None and record.state != SCHEDULED:
        unique = decode_unique(record.uniq)
        if unique.scope != "window":
            changes.db.execute(TRIGGER["hold"], (changes.space, unique.key, record.id))


def _would_skip_again(changes: Changes, record: JobRecord) -> bool:
    """Whether a retried job would be skipped again at once. A failed job has run before, so it may run again."""
    if record.state == FAILED or record.flags & ALL_DONE:
        return False
    open_again = {chain for chain, _ in changes.db.execute(TRIGGER["reopened"], (record.num,))}
    outcomes = {
        outcome for chain, outcome in changes.db.execute(TRIGGER["blockers"], (record.num,)) if chain not in open_again
    }
    if record.flags & ANY_FAILURE:
        return not open_again and outcomes.isdisjoint((OUTCOME_OPEN, OUTCOME_FAILED))
    return not outcomes.isdisjoint((OUTCOME_BAD, OUTCOME_FAILED))


def _reopen_blockers(changes: Changes, record: JobRecord) -> bool:
    """Wait again for blockers that are being retried. Returns whether any blocker is open."""
    db = changes.db
    if not record.flags & HAS_BLOCKERS:
        return False
    reopened = db.execute(TRIGGER["reopened"], (record.num,)).fetchall()
    db.executemany(TRIGGER["wait_again"], [(record.num, chain) for chain, _ in reopened])
    db.executemany(ENQUEUE["mark_awaited"], [(num,) for _, num in reopened])
    return db.execute(FINISH["has_open_blocker"], (record.num,)).fetchone() is not None


def _reblock_dependents(changes: Changes, record: JobRecord) -> None:
    """Block again the jobs that were skipped only because of this one, and in turn the jobs skipped because of them.
    A dependent that failed or was cancelled itself keeps its state but waits again too, so that a later retry of it
    sees the new outcome.
    """
    reset_later: dict[int, JobRecord] = {}
    awaited: list[tuple[int]] = []
    todo = [record]
    while todo:
        record = todo.pop()
        chain = record.chain or record.id
        behind = [JobRecord._make(row) for row in changes.db.execute(TRIGGER["dependents"], (changes.space, chain))]
        for dependent in behind:
            changes.db.execute(TRIGGER["wait_again"], (dependent.num, chain))
            if dependent.state != SKIPPED or dependent.num in reset_later:
                continue
            if dependent.flags & (ALL_DONE | ANY_FAILURE) or not has_bad_blocker(changes, dependent):
                reset_later[dependent.num] = dependent
                todo.append(dependent)
        if behind:
            awaited.append((record.num,))
    # Reset only now: the search above finds a dependent by its skipped state, once for each blocker that is reset.
    for dependent in reset_later.values():
        reset(changes, dependent, BLOCKED, dependent.due)
    changes.db.executemany(ENQUEUE["mark_awaited"], awaited)


def has_bad_blocker(changes: Changes, record: JobRecord) -> bool:
    """Whether a blocker ended without success."""
    return changes.db.execute(FINISH["has_bad_blocker"], (record.num,)).fetchone() is not None
