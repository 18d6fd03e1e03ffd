"""What follows when a job has ended for good, or has left its lease: keys are freed, chains end, dependents go on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    ALL_DONE,
    ANY_FAILURE,
    AWAITED,
    BADLY,
    BLAMED,
    BLOCKED,
    CHAIN_WATCHED,
    COMPLETED,
    FAILED,
    FAILING,
    IN_RUN,
    JOB_WATCHED,
    PARKED,
    PENDING,
    SKIPPED,
    SOFT,
    THERE,
    WELL,
    Entry,
    decode_unique,
    text_of,
)
from backstay.job.stores.sqlite.statements import load

FINISH = load("finish")
DELIVER = load("deliver")


class End(NamedTuple):
    """A chain's last job is final. Whoever waits for it is told how, and what came of it."""

    entry: Entry
    how: int
    result: bytes | None = None


def how_it_ended(state: int, flags: int) -> int:
    """What a job's final state means to those who wait for it."""
    if state == COMPLETED or (state == FAILED and flags & SOFT):
        return WELL
    return FAILING if state == FAILED or (state == SKIPPED and flags & BLAMED) else BADLY


def stays(changes: Changes, entry: Entry, state: int) -> int:
    """Until when the record of a job stays that ends now. 0: as long as its run."""
    if entry.flags & IN_RUN:
        return 0
    return changes.now + (entry.keep_failed if state == FAILED else entry.keep)


def unpark(changes: Changes, ckey: str) -> None:
    """A job of this concurrency key runs no more: the first that is parked in each lane goes back there.

    In each, since nobody knows which lane's worker comes first; those that are met too late are parked again.
    """
    db, space = changes.db, changes.space
    lane = -1
    while (lane := db.execute(FINISH["parked_lane"], (space, ckey, lane)).fetchone()[0]) is not None:
        num, kind = db.execute(FINISH["parked"], (space, ckey, lane)).fetchone()
        db.execute(FINISH["unpark"], (num,))
        changes.moved(kind, PARKED, PENDING)
        changes.ready[num] = kind


def free_unique(changes: Changes, uniq: bytes, job: str, *, started: bool) -> None:
    """The scope of a unique key has ended, if it is one that ends here. A window ends by the clock alone."""
    unique = decode_unique(uniq)
    if unique.scope == "until_start" or (unique.scope == "until_done" and not started):
        changes.db.execute(FINISH["free"], (changes.space, unique.key, job))


def ended(changes: Changes, ends: Iterable[End]) -> None:
    """Chains have ended, in this order. Whoever waits for them is told, and goes on; one that is skipped because of
    that ends its own chain in turn. The rows of the jobs themselves have been written.

    Those that went well are told together: in which order makes no difference. Of those that did not, the first
    decides why somebody is skipped.
    """
    well: list[End] = []
    for end in ends:
        _announce(changes, end.entry)
        if not end.entry.flags & AWAITED:
            continue
        if end.how == WELL:
            well.append(end)
            continue
        _cascade(changes, well)
        well = []
        _cascade(changes, [end])
    _cascade(changes, well)


def ended_together(changes: Changes, ends: Sequence[End]) -> None:
    """The same, of chains that ended alike and at once: none of them before another."""
    for end in ends:
        _announce(changes, end.entry)
    _cascade(changes, [end for end in ends if end.entry.flags & AWAITED])


def goes_on(changes: Changes, entry: Entry) -> None:
    """A job has completed, and another follows it in its chain."""
    if entry.uniq is not None:
        free_unique(changes, entry.uniq, entry.id, started=False)
    if entry.flags & JOB_WATCHED:
        changes.job_ended(entry.id)


def _announce(changes: Changes, entry: Entry) -> None:
    if entry.uniq is not None:
        free_unique(changes, entry.uniq, entry.id, started=False)
    if entry.flags & (CHAIN_WATCHED | JOB_WATCHED):
        chain = entry.chain or entry.id
        changes.chain_ended(chain)
        if entry.flags & JOB_WATCHED and chain != entry.id:
            changes.job_ended(entry.id)


def _cascade(changes: Changes, ends: Sequence[End]) -> None:
    """Ends that are alike, and all that follows from them: whatever is skipped because of them is alike again."""
    while ends:
        skipped = _tell(changes, ends)
        for end in skipped:
            _announce(changes, end.entry)
        ends = [end for end in skipped if end.entry.flags & AWAITED]


def _tell(changes: Changes, ends: Sequence[End]) -> list[End]:
    """Tell those who wait for chains that ended alike. Answers the ones that are skipped because of it."""
    db, space, how = changes.db, changes.space, ends[0].how
    chains = [end.entry.chain or end.entry.id for end in ends]
    wanted = text_of(chains)
    waiting: list[tuple[int, str, int]] = db.execute(FINISH["waiting"], (wanted, space)).fetchall()
    if not waiting:
        return []
    run = ends[0].entry.run
    if how != WELL:
        db.execute(FINISH["told"], (how, wanted, space))
    elif (
        run
        and all(end.entry.flags & IN_RUN and end.entry.run == run and end.result is not None for end in ends)
        and all(waiter_run == run for _, waiter_run, _ in waiting)
    ):
        # As many copies of a result as there are jobs that wait for it could fill the disk.
        db.execute(FINISH["told"], (THERE, wanted, space))
    else:
        db.executemany(
            FINISH["told_result"],
            [(WELL, end.result, space, chain) for end, chain in zip(ends, chains, strict=True)],
        )
    if how == WELL:
        # Nearly always all of them: those need no second look.
        unblock(changes, [num for num, _, flags in waiting if not flags & ANY_FAILURE])
        waiting = [waiter for waiter in waiting if waiter[2] & ANY_FAILURE]
        if not waiting:
            return []
    return release(changes, text_of([num for num, _, _ in waiting]), how)


def unblock(changes: Changes, nums: Sequence[int]) -> None:
    """Those of these jobs that are blocked and wait for nothing any more go on."""
    for num, id_, kind, run, attempt, state in changes.db.execute(
        FINISH["unblock"], (changes.now, text_of(nums))
    ).fetchall():
        changes.entered(num, id_, kind, run, BLOCKED, state, attempt)


def release(changes: Changes, nums: str, how: int) -> list[End]:
    """Jobs have lost a blocker that ended so. Those that are blocked go on, if they wait for nothing any more. Answers
    those that are skipped because of it.
    """
    skipped: list[End] = []
    unblocked: list[int] = []
    for waits, *row in changes.db.execute(FINISH["blocked"], (nums,)).fetchall():
        entry = Entry._make(row)
        flags = entry.flags
        if how != WELL and not flags & (ALL_DONE | ANY_FAILURE):
            skipped.append(_skip(changes, entry, how))
        elif waits:
            continue
        elif flags & ANY_FAILURE and changes.db.execute(FINISH["failing"], (entry.num,)).fetchone() is None:
            skipped.append(_skip(changes, entry, BADLY))
        else:
            unblocked.append(entry.num)
    if unblocked:
        unblock(changes, unblocked)
    return skipped


def _skip(changes: Changes, entry: Entry, how: int) -> End:
    if how == FAILING:
        changes.db.execute(FINISH["blame"], (entry.num,))
    changes.db.execute(FINISH["end"], (SKIPPED, changes.now, stays(changes, entry, SKIPPED), None, entry.num))
    changes.entered(entry.num, entry.id, entry.kind, entry.run, BLOCKED, SKIPPED, entry.attempt)
    return End(entry, how)


def deliver(changes: Changes, entry: Entry, chain: str, result: bytes | None) -> None:
    """A chain of another shard has ended. Told twice, it is told once: a blocker leaves a set."""
    how = FAILING if result is None else WELL
    told = changes.db.execute(DELIVER["told"], (how, result, entry.num, chain)).rowcount
    if told and entry.state == BLOCKED:
        ended(changes, release(changes, text_of([entry.num]), how))
