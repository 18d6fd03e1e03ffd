"""Read the events of runs.

Events get their numbers in write transactions, of which SQLite runs only one at a time. So the numbers are in the
order of commits, and no event with a smaller number appears later: a reader that has read up to a number misses none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from backstay.job.run_model import EventPage, RunEvent, bad_cursor_error
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.runs.run import EVENT_BITS, KINDS, EventFields
from backstay.job.stores.sqlite.statements import load

EVENTS = load("events")
_decode = msgspec.msgpack.Decoder(list[EventFields]).decode


def read_run(changes: Changes, run: str, after: int, limit: int) -> list[RunEvent]:
    rows = changes.db.execute(EVENTS["of_run"], (changes.space, run, after, limit)).fetchall()
    events = (event for row in rows for _, event in _unpack(row) if event.seq > after)
    return list(islice(events, limit))


def read_all(changes: Changes, after: str, limit: int) -> EventPage:
    base, last = changes.space << EVENT_BITS, changes.last_event
    first = last if after == "$" else parse_cursor(after)
    rows = changes.db.execute(EVENTS["of_all"], (base + first, base + last, limit)).fetchall()
    events = ((number, event) for row in rows for number, event in _unpack(row) if number > base + first)
    page = list(islice(events, limit))
    # A page that is not full reaches the namespace's last event, so the next page starts after that.
    cursor = page[-1][0] - base if page and len(page) == limit else max(first, last)
    return EventPage(tuple(event for _, event in page), str(cursor if limit else first))


def _unpack(row: tuple[Any, ...]) -> Iterator[tuple[int, RunEvent]]:
    """Yield the events of a row, each with its number. A row holds the events of one run that one command
    caused, and the number of the last of them.
    """
    num, run, seq, at, encoded = row
    events = _decode(encoded)
    for back, (kind, job, attempt, worker, why) in zip(range(len(events) - 1, -1, -1), events, strict=True):
        yield num - back, RunEvent(run, seq - back, at, KINDS[kind], job, attempt, worker, why)


def parse_cursor(cursor: str) -> int:
    """Return the number of the last event that a cursor covers. Raises ConfigError for a cursor of another store."""
    if cursor in ("", "$"):
        return 0
    if not (cursor.isascii() and cursor.isdigit()) or int(cursor) >= 1 << EVENT_BITS:
        raise bad_cursor_error(cursor)
    return int(cursor)
