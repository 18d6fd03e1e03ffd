"""Delete expired rows of a SQLite file, some at a time. The deletion changes no reply: a missing row means the same as
an expired one.
"""

from __future__ import annotations

import sqlite3

from backstay.engine.base import Micros, steady
from backstay.engine.sweep_schedule import STEP_ROWS

#: The age (µs) at which hints are deleted. Every process polls much more often, so it has read them.
HINT_LIFE = 60_000_000
#: A step ends after this many seconds, even if it has deleted fewer than STEP_ROWS rows: rows with a large body take
#: longer.
STEP_SECONDS = 0.01
#: How many rows one statement deletes; between two statements the step looks at the time.
CHUNK_ROWS = 100
#: The tables whose rows end at `keep_until`, and their primary keys.
SWEPT = {
    "backstay_state": "space, room, name",
    "backstay_tag": "space, room, tag, name",
    "backstay_hint_counter": "hint",
}
FIND = [f"SELECT EXISTS (SELECT 1 FROM {table} WHERE keep_until < ?)" for table in SWEPT]  # noqa: S608 - constants
#: Hints have ids in the order of their age, and no index by age: only the oldest ids are looked at.
FIND_HINT = "SELECT coalesce((SELECT at FROM backstay_hint ORDER BY id LIMIT 1) < ?, 0)"
DELETE = [
    f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE keep_until < ? LIMIT ?)"  # noqa: S608 - constants
    for table, key in SWEPT.items()
]
DELETE_HINTS = (
    "DELETE FROM backstay_hint WHERE id IN"
    " (SELECT id FROM (SELECT id, at FROM backstay_hint ORDER BY id LIMIT ?2) WHERE at < ?1)"
)


def has_expired(db: sqlite3.Connection, now: Micros) -> bool:
    """Return whether a table has expired rows. Takes no write lock."""
    looks = [(statement, now) for statement in FIND] + [(FIND_HINT, now - HINT_LIFE)]
    return any(db.execute(statement, (before,)).fetchone()[0] for statement, before in looks)


def sweep(db: sqlite3.Connection, now: Micros) -> bool:
    """Delete expired rows of all tables: one step (see `sweep_schedule`). Returns whether there may be more."""
    until = steady() + STEP_SECONDS
    open_tables = [(statement, now) for statement in DELETE] + [(DELETE_HINTS, now - HINT_LIFE)]
    for _ in range(STEP_ROWS // CHUNK_ROWS):
        open_tables = [
            (statement, before)
            for statement, before in open_tables
            if db.execute(statement, (before, CHUNK_ROWS)).rowcount == CHUNK_ROWS
        ]
        if not open_tables or steady() > until:
            break
    return bool(open_tables)
