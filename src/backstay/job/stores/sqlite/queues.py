"""Queue settings (paused, rate limit) and job counts by queue."""

from __future__ import annotations

from typing import Any

from backstay.job.model import Queue, StartRate
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.statements import load

QUEUES = load("queues")
#: How many jobs of each lane the search for a queue's oldest pending job reads.
SCANNED_PER_LANE = 100


def pause(changes: Changes, queue: str, *, paused: bool) -> None:
    changes.db.execute(QUEUES["pause"], (changes.space, queue, int(paused)))
    changes.db.execute(QUEUES["delete_default"], (changes.space, queue))


def limit(changes: Changes, queue: str, rate: StartRate | None) -> None:
    shape = (rate.bucket, rate.interval, rate.burst) if rate is not None else ("", 0, 0)
    changes.db.execute(QUEUES["limit"], (changes.space, queue, *shape))
    changes.db.execute(QUEUES["delete_default"], (changes.space, queue))


def queues(changes: Changes) -> list[Queue]:
    db, space = changes.db, changes.space
    counts: dict[str, tuple[int, ...]] = {row[0]: row[1:] for row in db.execute(QUEUES["counts"], (space,))}
    settings: dict[str, tuple[Any, ...]] = {row[0]: row[1:] for row in db.execute(QUEUES["settings"], (space,))}
    oldest: dict[str, int] = {}
    rows = [*db.execute(QUEUES["oldest"], (space, SCANNED_PER_LANE)), *db.execute(QUEUES["oldest_parked"], (space,))]
    for name, due in rows:
        if due is not None:
            oldest[name] = min(oldest.get(name, due), due)
    return [
        _queue(name, counts.get(name), settings.get(name), oldest.get(name, 0)) for name in sorted({*counts, *settings})
    ]


def _queue(name: str, counts: tuple[int, ...] | None, settings: tuple[Any, ...] | None, oldest: int) -> Queue:
    scheduled, blocked, pending, running, completed, failed, cancelled, skipped = counts or (0,) * 8
    paused, bucket, period, burst = settings or (0, "", 0, 0)
    return Queue(
        name=name,
        paused=bool(paused),
        rate=StartRate(bucket, period, burst) if burst else None,
        scheduled=scheduled,
        blocked=blocked,
        pending=pending,
        running=running,
        completed=completed,
        failed=failed,
        cancelled=cancelled,
        skipped=skipped,
        oldest_due=oldest,
    )
