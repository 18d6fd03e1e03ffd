"""The effects of a job's end: free its keys, announce the end of its chain, release or skip its dependents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    ALL_DONE,
    ANY_FAILURE,
    AWAITED,
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
    UPSTREAM_FAILED,
    JobRecord,
    decode_unique,
    json_text,
)
from backstay.job.stores.sqlite.statements import load

FINISH = load("finish")
DELIVER = load("deliver")


class ChainEnd(NamedTuple):
    """An ended chain: its last job, the outcome that its dependents see, and its result."""

    record: JobRecord
    outcome: int
    result: bytes | None = None


def outcome_of(state: int, flags: int) -> int:
    """Return the outcome (OUTCOME_*) that the dependents of a job in this final state see."""
    if state == COMPLETED or (state == FAILED and flags & SOFT):
        return OUTCOME_OK
    return OUTCOME_FAILED if state == FAILED or (state == SKIPPED and flags & UPSTREAM_FAILED) else OUTCOME_BAD


def retention_deadline(changes: Changes, record: JobRecord, state: int) -> int:
    """Return the time until which the record of a job that ends now is kept; 0 if it is kept as long as its run."""
    if record.flags & IN_RUN:
        return 0
    return changes.now + (record.keep_failed if state == FAILED else record.keep)


def unpark(changes: Changes, ckey: str) -> None:
    """A job with the concurrency key `ckey` has ended: move the first parked job of this key back into its lane, in
    each lane. A parked job is in no lane, because as many jobs of its key were running as the key allows.

    Only one of the moved jobs can start. But it is unknown which lanes have workers, so every lane gets a job back. A
    claim that reaches one of the others parks it again.
    """
    db, space = changes.db, changes.space
    lane = -1
    while (lane := db.execute(FINISH["next_parked_lane"], (space, ckey, lane)).fetchone()[0]) is not None:
        num, kind = db.execute(FINISH["first_parked"], (space, ckey, lane)).fetchone()
        db.execute(FINISH["unpark"], (num,))
        changes.count_transition(kind, PARKED, PENDING)
        changes.ready[num] = kind


def free_unique(changes: Changes, uniq: bytes, job: str, *, started: bool) -> None:
    """Free a job's unique key if the key's scope ends now: with `started`, the job has just started, otherwise it has
    ended. A key with the scope "window" is never freed here: it expires by the clock.
    """
    unique = decode_unique(uniq)
    if unique.scope == "until_start" or (unique.scope == "until_done" and not started):
        changes.db.execute(FINISH["free_unique"], (changes.space, unique.key, job))


def finish_chains(changes: Changes, ends: Iterable[ChainEnd]) -> None:
    """Announce the ends of chains, in the order of `ends`, and release or skip the jobs that wait for these chains. A
    skipped job ends its own chain, to which the same applies. The rows of the ended jobs must already be written.

    Successive successful ends are applied together, since their order makes no difference. Unsuccessful ends are
    applied one by one, since the first of them decides why a dependent is skipped.
    """
    successful: list[ChainEnd] = []
    for end in ends:
        _close_job(changes, end.record)
        if not end.record.flags & AWAITED:
            continue
        if end.outcome == OUTCOME_OK:
            successful.append(end)
            continue
        _finish_with_dependents(changes, successful)
        successful = []
        _finish_with_dependents(changes, [end])
    _finish_with_dependents(changes, successful)


def finish_chains_together(changes: Changes, ends: Sequence[ChainEnd]) -> None:
    """Like `finish_chains`, but for chains that end at the same time with the same outcome. Their order does not
    matter, so all ends are applied in one step, also unsuccessful ones.
    """
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
    """Free the unique key of the last job of an ended chain, and announce the end to its watchers."""
    if record.uniq is not None:
        free_unique(changes, record.uniq, record.id, started=False)
    if record.flags & (CHAIN_WATCHED | JOB_WATCHED):
        chain = record.chain or record.id
        changes.announce_chain_end(chain)
        if record.flags & JOB_WATCHED and chain != record.id:
            changes.announce_job_end(record.id)


def _finish_with_dependents(changes: Changes, ends: Sequence[ChainEnd]) -> None:
    """Apply the ends of chains that all have the same outcome. This may skip dependents, and a skipped job ends its own
    chain: apply the ends of these chains in the next round, until no more jobs are skipped. All jobs that are skipped
    in one round have the same outcome.
    """
    while ends:
        skipped = _resolve_waiters(changes, ends)
        for end in skipped:
            _close_job(changes, end.record)
        ends = [end for end in skipped if end.record.flags & AWAITED]


def _resolve_waiters(changes: Changes, ends: Sequence[ChainEnd]) -> list[ChainEnd]:
    """Store the outcome of these chains, which is the same for all, in the rows of `backstay_job_wait`, one for each
    dependent and blocker. Release or skip the dependents, and return those that are skipped.
    """
    db, space, outcome = changes.db, changes.space, ends[0].outcome
    chains = [end.record.chain or end.record.id for end in ends]
    wanted = json_text(chains)
    waiting: list[tuple[int, str, int]] = db.execute(FINISH["dependents"], (wanted, space)).fetchall()
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
        # Blockers and dependents belong to one run and are deleted together. So the result stays in the blocker's row
        # only, and the dependents read it there. Copies of a large result for many dependents could fill the disk.
        db.execute(FINISH["resolve_waits"], (OUTCOME_OK_SHARED, wanted, space))
    else:
        db.executemany(
            FINISH["resolve_wait_with_result"],
            [(OUTCOME_OK, end.result, space, chain) for end, chain in zip(ends, chains, strict=True)],
        )
    if outcome == OUTCOME_OK:
        # After a success, only dependents with `any_failure` depend on the outcomes of their other blockers.
        unblock(changes, [num for num, _, flags in waiting if not flags & ANY_FAILURE])
        waiting = [waiter for waiter in waiting if waiter[2] & ANY_FAILURE]
        if not waiting:
            return []
    return release(changes, json_text([num for num, _, _ in waiting]), outcome)


def unblock(changes: Changes, nums: Sequence[int]) -> None:
    """Release those of these jobs (`nums`: their row numbers) that are blocked and whose blockers have all ended: make
    them pending, or scheduled if they are not due yet.
    """
    for num, id_, kind, run, attempt, state in changes.db.execute(
        FINISH["unblock"], (changes.now, json_text(nums))
    ).fetchall():
        changes.record_transition(num, id_, kind, run, BLOCKED, state, attempt)


def release(changes: Changes, nums: str, outcome: int) -> list[ChainEnd]:
    """Release or skip blocked jobs (`nums`: their row numbers as JSON) after one of their blockers ended with this
    outcome. An unsuccessful outcome skips a job at once, unless the job has the flag ALL_DONE or ANY_FAILURE. Any other
    job stays blocked until all its blockers have ended. Returns the skipped jobs.
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
        changes.db.execute(FINISH["mark_upstream_failed"], (record.num,))
    changes.db.execute(
        FINISH["end_job"], (SKIPPED, changes.now, retention_deadline(changes, record, SKIPPED), None, record.num)
    )
    changes.record_transition(record.num, record.id, record.kind, record.run, BLOCKED, SKIPPED, record.attempt)
    return ChainEnd(record, outcome)


def deliver(changes: Changes, record: JobRecord, chain: str, result: bytes | None) -> None:
    """Store the outcome of the blocker `chain` for a job that waits for it: the part of `Store.deliver` for one job. It
    exists for the store contract, since a SQLite store has only one shard. Idempotent: a blocker whose outcome is
    already stored is left unchanged.
    """
    outcome = OUTCOME_FAILED if result is None else OUTCOME_OK
    changed = changes.db.execute(DELIVER["resolve_wait"], (outcome, result, record.num, chain)).rowcount
    if changed and record.state == BLOCKED:
        finish_chains(changes, release(changes, json_text([record.num]), outcome))
