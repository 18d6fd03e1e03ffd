"""What follows when a job has ended for good, or has left its lease: keys are freed, chains end, dependents go on."""

from __future__ import annotations

from holdfast.job.sqlite.changes import Changes
from holdfast.job.sqlite.shape import (
    ALL_DONE,
    AWAITED,
    BADLY,
    BLOCKED,
    CHAIN_WATCHED,
    JOB_WATCHED,
    PARKED,
    PENDING,
    SCHEDULED,
    SKIPPED,
    WELL,
    Entry,
    decode_unique,
)
from holdfast.job.sqlite.texts import load

FINISH = load("finish")
DELIVER = load("deliver")


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


def ended(changes: Changes, entry: Entry, result: bytes | None) -> None:
    """A chain's last job is final: `result` unless it completed. Whoever waits for it is told, and goes on.

    The job's own row has been written. A dependent that is skipped ends its own chain in turn.
    """
    todo = [(entry, result)]
    while todo:
        entry, result = todo.pop()
        if entry.uniq is not None:
            free_unique(changes, entry.uniq, entry.id, started=False)
        chain = entry.chain or entry.id
        if entry.flags & (CHAIN_WATCHED | JOB_WATCHED):
            changes.chain_ended(chain)
            if entry.flags & JOB_WATCHED and chain != entry.id:
                changes.job_ended(entry.id)
        if entry.flags & AWAITED:
            todo += _tell(changes, chain, result)


def goes_on(changes: Changes, entry: Entry) -> None:
    """A job has completed, and another follows it in its chain."""
    if entry.uniq is not None:
        free_unique(changes, entry.uniq, entry.id, started=False)
    if entry.flags & JOB_WATCHED:
        changes.job_ended(entry.id)


def _tell(changes: Changes, chain: str, result: bytes | None) -> list[tuple[Entry, None]]:
    """Tell those who wait for a chain. Answers the ones that are skipped because of it."""
    db = changes.db
    waiting = [Entry._make(row) for row in db.execute(FINISH["dependents"], (changes.space, chain))]
    db.execute(FINISH["told"], (BADLY if result is None else WELL, result, changes.space, chain))
    return [
        (entry, None) for entry in waiting if entry.state == BLOCKED and release(changes, entry, result is not None)
    ]


def release(changes: Changes, entry: Entry, well: bool) -> bool:
    """A blocked job has lost a blocker. True: it is skipped because of that."""
    db, now = changes.db, changes.now
    if not entry.flags & ALL_DONE and (not well or db.execute(FINISH["bad"], (entry.num,)).fetchone() is not None):
        db.execute(FINISH["end"], (SKIPPED, now, now + entry.keep, None, entry.num))
        changes.entered(entry.num, entry.id, entry.kind, entry.run, BLOCKED, SKIPPED)
        return True
    if db.execute(FINISH["waits"], (entry.num,)).fetchone() is None:
        state = SCHEDULED if entry.due > now else PENDING
        db.execute(FINISH["unblock"], (state, entry.due if state == SCHEDULED else 0, entry.num))
        changes.entered(entry.num, entry.id, entry.kind, entry.run, BLOCKED, state)
    return False


def deliver(changes: Changes, entry: Entry, chain: str, result: bytes | None) -> None:
    """A chain of another shard has ended. Told twice, it is told once: a blocker leaves a set."""
    how = BADLY if result is None else WELL
    told = changes.db.execute(DELIVER["told"], (how, result, entry.num, chain)).rowcount
    if told and entry.state == BLOCKED and release(changes, entry, result is not None):
        ended(changes, entry, None)
