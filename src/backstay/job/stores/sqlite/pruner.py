"""Purge and prune: delete final jobs and finished runs, with all rows that belong to them, up to a number per call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import (
    COMPLETED,
    FINALS,
    HAS_BLOCKERS,
    HAS_BODY,
    HAS_FILES,
    HAS_LOG,
    HAS_OUTPUTS,
    json_text,
)
from backstay.job.stores.sqlite.query.listing import list_oldest
from backstay.job.stores.sqlite.statements import load

PURGE = load("purge")
PRUNE = load("prune")
#: Pairs of a job's flag and a statement of purge.sql. The flag says that the job has rows in another table; the
#: statement deletes these rows, and is run only for jobs with the flag.
DEPENDENT_ROWS = (
    (HAS_BODY, "body"),
    (HAS_BLOCKERS, "waits"),
    (HAS_LOG, "log"),
    (HAS_OUTPUTS, "outputs"),
    (HAS_FILES, "parts"),
    (HAS_FILES, "files"),
)
#: How long (µs) a worker stays registered after its last heartbeat.
WORKER_LIFE = 86_400_000_000


def purge(changes: Changes, state: int, queue: str, limit: int) -> int:
    return _delete_ids(changes, list_oldest(changes, state, queue, limit))


def prune(changes: Changes, keep: int, limit: int) -> int:
    """Delete jobs and runs past their retention. If more than `keep` completed jobs are left, delete the oldest of
    them. Also delete what has expired: unique keys with a time window, rate buckets, stored replies to exchanges,
    workers and tokens. Returns the number of deleted jobs and runs, or at least `limit` if that many of another kind
    were deleted.
    """
    db, space, now = changes.db, changes.space, changes.now
    deleted = 0
    for state in FINALS:
        rows = db.execute(PRUNE["jobs"], (space, state, now, limit - deleted)).fetchall()
        if rows and state == COMPLETED:
            first = json_text([row[0] for row in rows])
            rows += db.execute(PRUNE["completed_together"], (first, limit - deleted - len(rows))).fetchall()
        deleted += _delete(changes, rows)
    (completed,) = db.execute(PRUNE["completed"], (space,)).fetchone()
    excess = min(completed - keep, limit - deleted)
    if excess > 0:
        deleted += _delete_ids(changes, list_oldest(changes, COMPLETED, "", excess))
    deleted += _prune_runs(changes, limit - deleted)
    others = max(db.execute(PRUNE[what], (space, now, limit)).rowcount for what in ("windows", "rates"))
    db.execute(PRUNE["exchanges"], (space, now))
    db.execute(PRUNE["workers"], (space, now - WORKER_LIFE))
    db.execute(PRUNE["tokens"], (space, now))
    return max(deleted, limit) if others >= limit else deleted


def _prune_runs(changes: Changes, limit: int) -> int:
    """Delete expired runs, each with all its jobs and events even if that exceeds `limit`. Returns the number of
    deleted jobs and runs.
    """
    db = changes.db
    deleted = 0
    for num, id_ in db.execute(PRUNE["runs"], (changes.space, changes.now, max(0, limit))).fetchall():
        if deleted >= limit:
            break
        jobs = db.execute(PRUNE["jobs_of_run"], (changes.space, id_)).fetchall()
        deleted += 1 + _delete(changes, jobs)
        for what in ("events", "doc", "run"):
            db.execute(PRUNE[what], (num,))
    return deleted


def _delete_ids(changes: Changes, ids: list[str]) -> int:
    if not ids:
        return 0
    return _delete(changes, changes.db.execute(PURGE["rows"], (json_text(ids), changes.space)).fetchall())


def _delete(changes: Changes, rows: Sequence[tuple[Any, ...]]) -> int:
    """Delete jobs, given as rows of (num, id, kind, state, chain, flags). Returns their number."""
    if not rows:
        return 0
    db = changes.db
    db.executemany(PURGE["job"], [(row[0],) for row in rows])
    completed = [row[0] for row in rows if row[3] == COMPLETED]
    if completed:
        db.execute(PURGE["pass_on_alarm"], (json_text(completed),))
    for flag, statement in DEPENDENT_ROWS:
        db.executemany(PURGE[statement], [(row[0],) for row in rows if row[5] & flag])
    db.executemany(PURGE["chain"], [(changes.space, row[4], row[1]) for row in rows if row[4]])
    for row in rows:
        changes.count_transition(row[2], row[3], None)
    changes.write()
    db.execute(PURGE["kinds"], (json_text(sorted({row[2] for row in rows})),))
    return len(rows)
