"""Cron entries: each tick enqueues its job once, however many schedulers request it."""

from __future__ import annotations

from collections.abc import Sequence

from backstay.engine.base import Micros
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.enqueue import Enqueuer
from backstay.job.stores.sqlite.prepared import PreparedJob
from backstay.job.stores.sqlite.statements import load

TICK = load("tick")


def ticks(changes: Changes, names: Sequence[str]) -> dict[str, Micros]:
    """Return the last tick of each known entry. A new entry is stored as ticked now, so it never catches up on the
    past.
    """
    known = {name: at for name in dict.fromkeys(names) if (at := _last(changes, name)) is not None}
    new = [name for name in dict.fromkeys(names) if name not in known]
    changes.db.executemany(TICK["tick"], [(changes.space, name, changes.now) for name in new])
    return known


def tick(changes: Changes, name: str, at: Micros, prepared: PreparedJob) -> bool:
    last = _last(changes, name)
    if last is not None and last >= at:
        return False
    enqueuer = Enqueuer(changes, [prepared])
    enqueuer.check()
    enqueuer.write()
    changes.db.execute(TICK["tick"], (changes.space, name, at))
    changes.write()
    return True


def _last(changes: Changes, name: str) -> Micros | None:
    row: tuple[Micros] | None = changes.db.execute(TICK["last"], (changes.space, name)).fetchone()
    return None if row is None else row[0]
