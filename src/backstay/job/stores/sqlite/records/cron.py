"""Cron entries. Each tick of an entry enqueues one job, however many schedulers request it."""

from __future__ import annotations

from collections.abc import Sequence

from backstay.engine.base import Micros
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.enqueue import Enqueuer
from backstay.job.stores.sqlite.prepared import PreparedJob
from backstay.job.stores.sqlite.statements import load

TICK = load("tick")


def ticks(changes: Changes, names: Sequence[str]) -> dict[str, Micros]:
    """Return the time of the last tick of each known entry. An unknown entry is stored as ticked now, so that it does
    not run for past times.
    """
    known = {name: at for name in dict.fromkeys(names) if (at := _last_tick(changes, name)) is not None}
    new = [name for name in dict.fromkeys(names) if name not in known]
    changes.db.executemany(TICK["tick"], [(changes.space, name, changes.now) for name in new])
    return known


def tick(changes: Changes, name: str, at: Micros, prepared: PreparedJob) -> bool:
    last = _last_tick(changes, name)
    if last is not None and last >= at:
        return False
    enqueuer = Enqueuer(changes, [prepared])
    enqueuer.check()
    enqueuer.write()
    changes.db.execute(TICK["tick"], (changes.space, name, at))
    changes.write()
    return True


def _last_tick(changes: Changes, name: str) -> Micros | None:
    row: tuple[Micros] | None = changes.db.execute(TICK["last_tick"], (changes.space, name)).fetchone()
    return None if row is None else row[0]
