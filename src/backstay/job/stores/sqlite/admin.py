"""Cancel or retry jobs on an operator's request."""

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
    BLOCKED,
    CANCEL_REQUESTED,
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
    UPSTREAM_FAILED,
    JobRecord,
    decode_unique,
    encode_cancellation,
    json_text,
)
from backstay.job.stores.sqlite.finish_effects import (
    FINISH,
    ChainEnd,
    finish_chains_together,
    retention_deadline,
    unpark,
)
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
    """Cancel jobs that have not ended; running ones only get a cancellation request. A job of `records` may depend on
    another one. So all of them are written as cancelled first, and only then are dependents unblocked or skipped: no
    job of `records` is changed as a dependent.
    """
    now = changes.now
    requested: list[tuple[bytes, int]] = []
    cancelled: list[tuple[Any, ...]] = []
    ends: list[ChainEnd] = []
    for record in records:
        error = encode_cancellation(reason, record.attempt, now)
        if record.state == RUNNING:
            requested.append((error, record.num))
            changes.announce_lease_lost(record.id)
            continue
        cancelled.append((CANCELLED, now, retention_deadline(changes, record, CANCELLED), error, record.num))
        changes.record_transition(
            record.num, record.id, record.kind, record.run, record.state, CANCELLED, record.attempt, "", reason
        )
        ends.append(ChainEnd(record, OUTCOME_BAD))
    changes.db.executemany(CANCEL["request"], requested)
    changes.db.executemany(FINISH["end_job"], cancelled)
    finish_chains_together(changes, ends)
    for end in ends:
        # A job whose concurrency key is full is parked: it waits outside its lane. `unpark` may have moved this job
        # back into its lane as the next one of its key. It is cancelled now, so another job of the key takes its turn.
        if end.record.ckey is not None:
            unpark(changes, end.record.ckey)


def trigger(changes: Changes, job: str) -> State | None:
    """Retry a job now, with its attempts counted from zero. Dependents that were skipped because of it wait for it
    again.
    """
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
    """Move a job to `state`, which is not final, with its attempts counted from zero. It takes its unique key again if
    that is free.
    """
    flags = record.flags & ~(CANCEL_REQUESTED | UPSTREAM_FAILED)
    alarm = due if state == SCHEDULED else 0
    changes.db.execute(TRIGGER["reset"], (state, due - record.priority * AGEING, due, flags, alarm, record.num))
    soft = bool(record.flags & SOFT)
    changes.record_transition(record.num, record.id, record.kind, record.run, record.state, state, soft=soft)
    if record.uniq is not None and record.state != SCHEDULED:
        unique = decode_unique(record.uniq)
        if unique.scope != "window":
            changes.db.execute(TRIGGER["hold_unique"], (changes.space, unique.key, record.id))


def _would_skip_again(changes: Changes, record: JobRecord) -> bool:
    """Whether a retried job would be skipped at once because of the outcomes of its blockers. False for a failed job:
    it has run before, so it may run again.
    """
    if record.state == FAILED or record.flags & ALL_DONE:
        return False
    retried = {chain for chain, _ in changes.db.execute(TRIGGER["reopened"], (record.num,))}
    outcomes = {
        outcome for chain, outcome in changes.db.execute(TRIGGER["blockers"], (record.num,)) if chain not in retried
    }
    if record.flags & ANY_FAILURE:
        return not retried and outcomes.isdisjoint((OUTCOME_OPEN, OUTCOME_FAILED))
    return not outcomes.isdisjoint((OUTCOME_BAD, OUTCOME_FAILED))


def _reopen_blockers(changes: Changes, record: JobRecord) -> bool:
    """Make a job wait again for those of its blockers that are being retried. Returns whether the job then has a
    blocker that has not ended.
    """
    db = changes.db
    if not record.flags & HAS_BLOCKERS:
        return False
    reopened = db.execute(TRIGGER["reopened"], (record.num,)).fetchall()
    db.executemany(TRIGGER["wait_again"], [(record.num, chain) for chain, _ in reopened])
    db.executemany(ENQUEUE["mark_awaited"], [(num,) for _, num in reopened])
    return db.execute(FINISH["has_open_blocker"], (record.num,)).fetchone() is not None


def _reblock_dependents(changes: Changes, record: JobRecord) -> None:
    """Block again the jobs that were skipped only because of this one, and in turn the jobs that were skipped because
    of those. A dependent that failed or was cancelled itself keeps its state, but it is stored that it waits for the
    retried chain again, so that a later retry of the dependent sees the new outcome.
    """
    reset_later: dict[int, JobRecord] = {}
    awaited: list[tuple[int]] = []
    todo = [record]
    while todo:
        record = todo.pop()
        chain = record.chain or record.id
        dependents = [JobRecord._make(row) for row in changes.db.execute(TRIGGER["dependents"], (changes.space, chain))]
        for dependent in dependents:
            changes.db.execute(TRIGGER["wait_again"], (dependent.num, chain))
            if dependent.state != SKIPPED or dependent.num in reset_later:
                continue
            if dependent.flags & (ALL_DONE | ANY_FAILURE) or not has_bad_blocker(changes, dependent):
                reset_later[dependent.num] = dependent
                todo.append(dependent)
        if dependents:
            awaited.append((record.num,))
    # Reset only now: the search above finds dependents by their skipped state, and may find one through several
    # blockers.
    for dependent in reset_later.values():
        reset(changes, dependent, BLOCKED, dependent.due)
    changes.db.executemany(ENQUEUE["mark_awaited"], awaited)


def has_bad_blocker(changes: Changes, record: JobRecord) -> bool:
    """Whether a blocker of the job ended without success."""
    return changes.db.execute(FINISH["has_bad_blocker"], (record.num,)).fetchone() is not None
