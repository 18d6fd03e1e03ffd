"""What people do to a job by hand: cancel it, or try it again."""

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
    BADLY,
    BLAMED,
    BLOCKED,
    CANCEL_WANTED,
    CANCELLED,
    FAILED,
    FAILING,
    FINALS,
    HAS_BLOCKERS,
    NOT_YET,
    PENDING,
    RUNNING,
    SCHEDULED,
    SKIPPED,
    SOFT,
    STATES,
    Entry,
    cancellation,
    decode_unique,
    text_of,
)
from backstay.job.stores.sqlite.ending import FINISH, End, ended_together, stays, unpark
from backstay.job.stores.sqlite.statements import load

CANCEL = load("cancel")
TRIGGER = load("trigger")


def find(changes: Changes, job: str) -> Entry | None:
    row = changes.db.execute(FINISH["entries"], (changes.space, text_of([job]))).fetchone()
    return None if row is None else Entry._make(row)


def cancel(changes: Changes, job: str, reason: str) -> State | None:
    """What does not run ends at once; what runs is only asked to."""
    entry = find(changes, job)
    if entry is None:
        return None
    if entry.state in FINALS:
        return STATES[entry.state]
    cancel_all(changes, [entry], reason)
    changes.write()
    return "running" if entry.state == RUNNING else "cancelled"


def cancel_all(changes: Changes, entries: Sequence[Entry], reason: str) -> None:
    """Jobs that have not ended. All of them are cancelled before anybody hears of it, so that none is skipped or
    released because of another.
    """
    now = changes.now
    wanted: list[tuple[bytes, int]] = []
    over: list[tuple[Any, ...]] = []
    ends: list[End] = []
    for entry in entries:
        error = cancellation(reason, entry.attempt, now)
        if entry.state == RUNNING:
            wanted.append((error, entry.num))
            changes.lost(entry.id)
            continue
        over.append((CANCELLED, now, stays(changes, entry, CANCELLED), error, entry.num))
        changes.entered(entry.num, entry.id, entry.kind, entry.run, entry.state, CANCELLED, entry.attempt, "", reason)
        ends.append(End(entry, BADLY))
    changes.db.executemany(CANCEL["want"], wanted)
    changes.db.executemany(FINISH["end"], over)
    ended_together(changes, ends)
    for end in ends:
        if end.entry.ckey is not None:  # it may have been the one that was put back for the others
            unpark(changes, end.entry.ckey)


def trigger(changes: Changes, job: str) -> State | None:
    """Again, now, with all its attempts. Those that were skipped because of it wait for it again."""
    entry = find(changes, job)
    if entry is None:
        return None
    if entry.state not in (SCHEDULED, FAILED, CANCELLED, SKIPPED):
        return STATES[entry.state]
    run = changes.run(entry.run) if entry.run else None
    if run is not None and run.is_cancelling:
        return STATES[entry.state]
    if run is not None and entry.state != SCHEDULED and _is_held_back(changes, entry):
        return STATES[entry.state]
    state = BLOCKED if _waits_again(changes, entry) else PENDING
    again(changes, entry, state, changes.now)
    if entry.state != SCHEDULED:
        _wait_again(changes, entry)
    changes.write()
    return STATES[state]


def again(changes: Changes, entry: Entry, state: int, due: Micros) -> None:
    """With all its attempts."""
    flags = entry.flags & ~(CANCEL_WANTED | BLAMED)
    alarm = due if state == SCHEDULED else 0
    changes.db.execute(TRIGGER["again"], (state, due - entry.priority * AGEING, due, flags, alarm, entry.num))
    soft = bool(entry.flags & SOFT)
    changes.entered(entry.num, entry.id, entry.kind, entry.run, entry.state, state, soft=soft)
    if entry.uniq is not None and entry.state != SCHEDULED:
        unique = decode_unique(entry.uniq)
        if unique.scope != "window":
            changes.db.execute(TRIGGER["hold"], (changes.space, unique.key, entry.id))


def _is_held_back(changes: Changes, entry: Entry) -> bool:
    """Whether it would be skipped again at once. One that failed had its turn, and may have it again."""
    if entry.state == FAILED or entry.flags & ALL_DONE:
        return False
    open_again = {chain for chain, _ in changes.db.execute(TRIGGER["reopened"], (entry.num,))}
    hows = {how for chain, how in changes.db.execute(TRIGGER["heard"], (entry.num,)) if chain not in open_again}
    if entry.flags & ANY_FAILURE:
        return not open_again and hows.isdisjoint((NOT_YET, FAILING))
    return not hows.isdisjoint((BADLY, FAILING))


def _waits_again(changes: Changes, entry: Entry) -> bool:
    """Whether a blocker has not ended, or has not any more: one that is tried again is waited for again."""
    db = changes.db
    if not entry.flags & HAS_BLOCKERS:
        return False
    reopened = db.execute(TRIGGER["reopened"], (entry.num,)).fetchall()
    db.executemany(TRIGGER["wait_again"], [(entry.num, chain) for chain, _ in reopened])
    db.executemany(ENQUEUE["await"], [(num,) for _, num in reopened])
    return db.execute(FINISH["waits"], (entry.num,)).fetchone() is not None


def _wait_again(changes: Changes, entry: Entry) -> None:
    """Jobs that were skipped because of this one and of no other are blocked as before; and those because of them. One
    that failed or was cancelled itself stays so, and hears anew what becomes of them: it may be tried again after them.
    """
    back: dict[int, Entry] = {}
    awaited: list[tuple[int]] = []
    todo = [entry]
    while todo:
        entry = todo.pop()
        chain = entry.chain or entry.id
        behind = [Entry._make(row) for row in changes.db.execute(TRIGGER["behind"], (changes.space, chain))]
        for dependent in behind:
            changes.db.execute(TRIGGER["wait_again"], (dependent.num, chain))
            if dependent.state != SKIPPED or dependent.num in back:
                continue
            if dependent.flags & (ALL_DONE | ANY_FAILURE) or not is_spoilt(changes, dependent):
                back[dependent.num] = dependent
                todo.append(dependent)
        if behind:
            awaited.append((entry.num,))
    # Only now: until then each is found, as skipped, behind every one of its blockers that comes back with it.
    for dependent in back.values():
        again(changes, dependent, BLOCKED, dependent.due)
    changes.db.executemany(ENQUEUE["await"], awaited)


def is_spoilt(changes: Changes, entry: Entry) -> bool:
    """Whether a blocker ended badly."""
    return changes.db.execute(FINISH["bad"], (entry.num,)).fetchone() is not None
