"""Apply the effects of a job's end: free its keys, finish its chain, release or skip its dependents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    ALL_DONE,
    ANY_FAILURE,
    AWAITED,
    BLAMED,
    BLOCKED,
    CHAIN_WATCHED,
    COMPLETED,
    FAILED,
    IN_RUN,
    JOB_WATCHED,
    OUTCOME_BAD,
    OUTCOME_FAILED,
    OUTCOME_OK,
    OUTCOME_OK_SHARED,
    PARKED,
    PENDING,
    SKIPPED,
    SOFT,
    JobRecord,
    decode_unique,
    json_text,
)
from backstay.job.stores.sqlite.statements import load

FINISH = load("finish")
DELIVER = load("deliver")


class ChainEnd(NamedTuple):
    """The end of a chain: its last job, the outcome and the result that its dependents receive."""

    record: JobRecord
    outcome: int
    result: bytes | None = None


def outcome_of(state: int, flags: int) -> int:
    """Return the outcome that the dependents of a job in this final state see."""
    if state == COMPLETED or (state == FAILED and flags & SOFT):
        return OUTCOME_OK
    return OUTCOME_FAILED if state == FAILED or (state == SKIPPED and flags & BLAMED) else OUTCOME_BAD


def retention_deadline(changes: Changes, record: JobRecord, state: int) -> int:
    """Return until when the record of a job that ends now is kept. 0: as long as its run."""
    if record.flags & IN_RUN:
        return 0
    return changes.now + (record.keep_failed if state == FAILED else record.keep)


def unpark(changes: Changes, ckey: str) -> None:
    """Return parked jobs to their lanes after a job with this concurrency key ended: the first one of each lane.

    Every lane gets one, because the next claim may come from a worker of any lane; a claim parks the surplus again.
    """
    db, space = changes.db, changes.space
    lane = -1
    while (lane := db.execute(FINISH["parked_lane"], (space, ckey, lane)).fetchone()[0]) is not None:
        num, kind = db.execute(FINISH["parked"], (space, ckey, lane)).fetchone()
        db.execute(FINISH["unpark"], (num,))
        changes.count_transition(kind, PARKED, PENDING)
        changes.ready[num] = kind


def free_unique(changes: Changes, uniq: bytes, job: str, *, started: bool) -> None:
    """Free a unique key if its scope ends with the job's start or end. A window ends by the clock alone."""
    unique = decode_unique(uniq)
    if unique.scope == "until_start" or (unique.scope == "until_done" and not started):
        changes.db.execute(FINISH["free"], (changes.space, unique.key, job))


def finish_chains(changes: Changes, ends: Iterable[ChainEnd]) -> None:
    """Apply the ends of chains in this order: announce them and release or skip their dependents. A skipped dependent
    ends its own chain in turn. The rows of the ended jobs must already be written.

    Successful ends are applied together, since their order makes no difference. Of the others, the first one decides
    why a dependent is skipped.
    """
    well: list[ChainEnd] = []
    for end in ends:
        _close_job(changes, end.record)
        if not end.record.flags & AWAITED:
            continue
        if end.outcome == OUTCOME_OK:
            well.append(end)
            continue
        _finish_with_dependents(changes, well)
        well = []
        _finish_with_dependents(changes, [end])
    _finish_with_dependents(changes, well)


def finish_chains_together(changes: Changes, ends: Sequence[ChainEnd]) -> None:
    """Apply the ends of chains that end at once and with one outcome, with no order among them."""
    for end in ends:
        _close_job(changes, end.record)
    _finish_with_dependents(changes, [end for end in ends if end.record.flags & AWAITED])


def continue_chain(changes: Changes, record: JobRecord) -> None:
    """Free the unique key of a completed job whose chain another job continues, and announce the job's end."""
    if record.uniq is not None:
        free_unique(changes, record.uniq, record.id, started=False)
    if record.flags & JOB_WATCHED:
        changes.announce_job_end(record.id)


def _close_job(changes: Changes, record: JobRecord) -> None:
    if record.uniq is not None:
        free_unique(changes, record.uniq, record.id, started=False)
    if record.flags & (CHAIN_WATCHED | JOB_WATCHED):
        chain = record.chain or record.id
        changes.announce_chain_end(chain)
        if record.flags & JOB_WATCHED and chain != record.id:
            changes.announce_job_end(record.id)


def _finish_with_dependents(changes: Changes, ends: Sequence[ChainEnd]) -> None:
    """Apply ends with one outcome, then the ends of the dependents that they skip, which have one outcome again."""
    while ends:
        skipped = _resolve_waiters(changes, ends)
        for end in skipped:
            _close_job(changes, end.record)
        ends = [end for end in skipped if end.record.flags & AWAITED]


def _resolve_waiters(changes: Changes, ends: Sequence[ChainEnd]) -> list[ChainEnd]:
    """Store one outcome of several chains for their dependents and release them. Returns the dependents that are
    skipped.
    """
    db, space, outcome = changes.db, changes.space, ends[0].outcome
    chains = [end.record.chain or end.record.id for end in ends]
    wanted = json_text(chains)
    waiting: list[tuple[int, str, int]] = db.execute(FINISH["waiting"], (wanted, space)).fetchall()
    if not waiting:
        return []
    run = ends[0].record.run
    if outcome != OUTCOME_OK:
        db.execute(FINISH["resolve_waits"], (outcome, wanted, space))
    elif (
        run
        and all(end.record.flags & IN_RUN and end.record.run == run and end.result is not None for end in ends)
        and all(waiter_run == run for _, waiter_run, _ in waiting)
    ):
        # Dependents read the result from the blocker: a copy per dependent could fill the disk.
        db.execute(FINISH["resolve_waits"], (OUTCOME_OK_SHARED, wanted, space))
    else:
        db.executemany(
            FINISH["resolve_wait_with_result"],
            [(OUTCOME_OK, end.result, space, chain) for end, chain in zip(ends, chains, strict=True)],
        )
    if outcome == OUTCOME_OK:
        # Only dependents with `any_failure` depend on the outcomes of their other blockers.
        unblock(changes, [num for num, _, flags in waiting if not flags & ANY_FAILURE])
        waiting = [waiter for waiter in waiting if waiter[2] & ANY_FAILURE]
        if not waiting:
            return []
    return release(changes, json_text([num for num, _, _ in waiting]), outcome)


def unblock(changes: Changes, nums: Sequence[int]) -> None:
    """Make those of these jobs pending or scheduled that are blocked and have no open blocker."""
    for num, id_, kind, run, attempt, state in changes.db.execute(
        FINISH["unblock"], (changes.now, json_text(nums))
    ).fetchall():
        changes.record_transition(num, id_, kind, run, BLOCKED, state, attempt)


def release(changes: Changes, nums: str, outcome: int) -> list[ChainEnd]:
    """Re-examine blocked jobs after one of their blockers ended with this outcome: unblock those without an open
    blocker. Returns those that are skipped.
    """
    skipped: list[ChainEnd] = []
    unblocked: list[int] = []
    for waits, *row in changes.db.execute(FINISH["blocked"], (nums,)).fetchall():
        record = JobRecord._make(row)
        flags = record.flags
        if outcome != OUTCOME_OK and not flags & (ALL_DONE | ANY_FAILURE):
            skipped.append(_skip(changes, record, outcome))
        elif waits:
            continue
        elif flags & ANY_FAILURE and changes.db.execute(FINISH["has_failed_blocker"], (record.num,)).fetchone() is None:
            skipped.append(_skip(changes, record, OUTCOME_BAD))
        else:
            unblocked.append(record.num)
    if unblocked:
        unblock(changes, unblocked)
    return skipped


def _skip(changes: Changes, record: JobRecord, outcome: int) -> ChainEnd:
    if outcome == OUTCOME_FAILED:
        changes.db.execute(FINISH["blame"], (record.num,))
    changes.db.execute(
        FINISH["end"], (SKIPPED, changes.now, retention_deadline(changes, record, SKIPPED), None, record.num)
    )
    changes.record_transition(record.num, record.id, record.kind, record.run, BLOCKED, SKIPPED, record.attempt)
    return ChainEnd(record, outcome)


def deliver(changes: Changes, record: JobRecord, chain: str, result: bytes | None) -> None:
    """Apply the end of a chain of another shard. Idempotent: only an open blocker changes."""
    outcome = OUTCOME_FAILED if result is None else OUTCOME_OK
    changed = changes.db.execute(DELIVER["resolve_wait"], (outcome, result, record.num, chain)).rowcount
    if changed and record.state == BLOCKED:
        finish_chains(changes, release(changes, json_text([record.num]), outcome))
