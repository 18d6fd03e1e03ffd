"""What people do to a job by hand: cancel it, or try it again."""

from __future__ import annotations

from holdfast.engine.base import Micros
from holdfast.job.model import AGEING, Failure, State
from holdfast.job.sqlite.changes import Changes
from holdfast.job.sqlite.ending import FINISH, ended, unpark
from holdfast.job.sqlite.enqueue import ENQUEUE
from holdfast.job.sqlite.shape import (
    BLOCKED,
    CANCEL_WANTED,
    CANCELLED,
    FAILED,
    FINALS,
    PENDING,
    RUNNING,
    SCHEDULED,
    SKIPPED,
    STATES,
    Entry,
    decode_unique,
    encode,
    text_of,
)
from holdfast.job.sqlite.texts import load

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
    now = changes.now
    error = encode(Failure(kind="Cancelled", message=reason, attempt=entry.attempt, at=now))
    if entry.state == RUNNING:
        changes.db.execute(CANCEL["want"], (error, entry.num))
        changes.lost(entry.id)
        return "running"
    changes.db.execute(FINISH["end"], (CANCELLED, now, now + entry.keep, error, entry.num))
    changes.entered(entry.num, entry.id, entry.kind, entry.run, entry.state, CANCELLED)
    ended(changes, entry, None)
    if entry.ckey is not None:  # it may have been the one that was put back for the others
        unpark(changes, entry.ckey)
    changes.write()
    return "cancelled"


def trigger(changes: Changes, job: str) -> State | None:
    """Again, now, with all its attempts. Those that were skipped because of it wait for it again."""
    entry = find(changes, job)
    if entry is None:
        return None
    if entry.state not in (SCHEDULED, FAILED, CANCELLED, SKIPPED):
        return STATES[entry.state]
    changes.db.execute(TRIGGER["forgive"], (entry.num,))
    waits = changes.db.execute(FINISH["waits"], (entry.num,)).fetchone() is not None
    state = BLOCKED if waits else PENDING
    _again(changes, entry, state, changes.now)
    if entry.state != SCHEDULED:
        _wait_again(changes, entry)
    changes.write()
    return STATES[state]


def _again(changes: Changes, entry: Entry, state: int, due: Micros) -> None:
    flags = entry.flags & ~CANCEL_WANTED
    changes.db.execute(TRIGGER["again"], (state, due - entry.priority * AGEING, due, flags, entry.num))
    changes.entered(entry.num, entry.id, entry.kind, entry.run, entry.state, state)
    if entry.uniq is not None and entry.state != SCHEDULED:
        unique = decode_unique(entry.uniq)
        if unique.scope != "window":
            changes.db.execute(TRIGGER["hold"], (changes.space, unique.key, entry.id))


def _wait_again(changes: Changes, entry: Entry) -> None:
    """Jobs that were skipped because of this one and of no other are blocked as before; and those because of them."""
    todo = [entry]
    while todo:
        entry = todo.pop()
        chain = entry.chain or entry.id
        skipped = [Entry._make(row) for row in changes.db.execute(TRIGGER["skipped"], (changes.space, chain))]
        for dependent in skipped:
            changes.db.execute(TRIGGER["wait_again"], (dependent.num, chain))
            if changes.db.execute(FINISH["bad"], (dependent.num,)).fetchone() is None:
                _again(changes, dependent, BLOCKED, dependent.due)
                todo.append(dependent)
        if skipped:
            changes.db.execute(ENQUEUE["await"], (entry.num,))
