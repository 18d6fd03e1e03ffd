"""Reap: jobs that nobody tends any more go back, and those whose time has come become pending. Any number of
processes may do it at once: each job is taken back by one of them.
"""

from __future__ import annotations

from backstay.job.model import Failure
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    CANCEL_WANTED,
    CANCELLED,
    FAILED,
    PENDING,
    SCHEDULED,
    Entry,
    decode_failure,
    encode,
)
from backstay.job.stores.sqlite.finish import Finishing
from backstay.job.stores.sqlite.statements import load

REAP = load("reap")


def reap(changes: Changes, limit: int) -> None:
    """Jobs whose lease has run out. Their due time stays, so they are among the first again."""
    entries = [Entry._make(row) for row in changes.db.execute(REAP["ended"], (changes.space, changes.now, limit))]
    if not entries:
        return
    finishing = Finishing(changes)
    for entry in entries:
        changes.lost(entry.id)
        why = f"worker {entry.worker} did not renew its lease"
        changes.lease_expired(entry.run, entry.id, entry.attempt, entry.worker, why)
        error = encode(Failure(kind="LeaseExpired", message=why, attempt=entry.attempt, at=changes.now))
        if entry.flags & CANCEL_WANTED:
            wanted = decode_failure(entry.error).message if entry.error is not None else ""
            finishing.end(entry, CANCELLED, entry.error, wanted)
        elif entry.attempt > entry.retries:
            finishing.end(entry, FAILED, error, why)
        else:
            finishing.again(entry, min(entry.due, changes.now), entry.attempt, entry.snoozes, error, why)
    finishing.write()


def make_due(changes: Changes, limit: int) -> None:
    """Scheduled jobs whose time has come."""
    rows = changes.db.execute(REAP["due"], (changes.space, changes.now, limit)).fetchall()
    if not rows:
        return
    for num, kind, id_, run, attempt in rows:
        changes.entered(num, id_, kind, run, SCHEDULED, PENDING, attempt)
    changes.db.executemany(REAP["ready"], [(row[0],) for row in rows])
