"""Reap expired leases and make due jobs pending. Any number of processes may do so concurrently: each job is
reaped by only one of them.
"""

from __future__ import annotations

from backstay.job.model import Failure
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    CANCEL_REQUESTED,
    CANCELLED,
    FAILED,
    PENDING,
    SCHEDULED,
    JobRecord,
    decode_failure,
    encode,
)
from backstay.job.stores.sqlite.finish import Finisher
from backstay.job.stores.sqlite.statements import load

REAP = load("reap")


def reap(changes: Changes, limit: int) -> None:
    """Retry, fail or cancel jobs whose lease expired. A retried job keeps its due time and with it its rank, so it is
    claimed before newer jobs.
    """
    records = [JobRecord._make(row) for row in changes.db.execute(REAP["expired"], (changes.space, changes.now, limit))]
    if not records:
        return
    finisher = Finisher(changes)
    for record in records:
        changes.announce_lease_lost(record.id)
        why = f"worker {record.worker} did not renew its lease"
        changes.record_lease_expiry(record.run, record.id, record.attempt, record.worker, why)
        error = encode(Failure(kind="LeaseExpired", message=why, attempt=record.attempt, at=changes.now))
        if record.flags & CANCEL_REQUESTED:
            wanted = decode_failure(record.error).message if record.error is not None else ""
            finisher.end(record, CANCELLED, record.error, wanted)
        elif record.attempt > record.retries:
            finisher.end(record, FAILED, error, why)
        else:
            finisher.retry(record, min(record.due, changes.now), record.attempt, record.snoozes, error, why)
    finisher.write()


def make_due(changes: Changes, limit: int) -> None:
    """Make scheduled jobs pending whose due time has come."""
    rows = changes.db.execute(REAP["due"], (changes.space, changes.now, limit)).fetchall()
    if not rows:
        return
    for num, kind, id_, run, attempt in rows:
        changes.record_transition(num, id_, kind, run, SCHEDULED, PENDING, attempt)
    changes.db.executemany(REAP["make_pending"], [(row[0],) for row in rows])
