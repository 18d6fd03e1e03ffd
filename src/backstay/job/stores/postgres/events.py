"""What happened in runs as rows: the events of one moment lie together, those of one kind and worker as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from backstay.engine.base import Micros
from backstay.job.run_model import EventKind, EventPage, RunEvent
from backstay.job.stores.postgres.statements import Bytes, Numbers, Texts

#: Events of one row at most: they fit into a page of the server's.
LARGEST = 80

#: What is told of a job: kind, worker, job, attempt, why.
EventFields = tuple[EventKind, str, str, int, str]
_kind_and_worker = itemgetter(0, 1)


class EventBatch(NamedTuple):
    """What happened in a run in one moment; the first of it has the number `first`."""

    run: str
    first: int
    at: Micros
    said: Sequence[EventFields]


class EventRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Events of one kind and worker in a row. What is the same for all of them is said once."""

    kind: EventKind
    worker: str
    jobs: list[str]
    attempts: list[int]
    whys: list[str]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[EventRow]).decode
#: What the server has put together itself (run_move.sql).
_decode_text = msgspec.json.Decoder(list[EventRow]).decode


def columns(space: str, told: Sequence[EventBatch]) -> dict[str, Any]:
    """What run_tell.sql wants."""
    parts = [
        EventBatch(run, first + place, at, said[place : place + LARGEST])
        for run, first, at, said in told
        for place in range(0, len(said), LARGEST)
    ]
    return {
        "space": space,
        "runs": Texts([part.run for part in parts]),
        "firsts": Numbers([part.first for part in parts]),
        "lasts": Numbers([part.first + len(part.said) - 1 for part in parts]),
        "ats": Numbers([part.at for part in parts]),
        "docs": Bytes(
            [_encode([_event_row(*alike) for alike in groupby(part.said, _kind_and_worker)]) for part in parts]
        ),
    }


def _event_row(kind_and_worker: tuple[EventKind, str], said: Iterator[EventFields]) -> EventRow:
    _, _, jobs, attempts, whys = zip(*said, strict=True)
    return EventRow(*kind_and_worker, list(jobs), _once(attempts), _once(whys))


def _once(values: Sequence[Any]) -> list[Any]:
    return [values[0]] if len(set(values)) == 1 else list(values)


def events_of(row: Sequence[Any]) -> Iterator[RunEvent]:
    """Of a row of run_events.sql."""
    run, seq, at, doc, *_ = row
    for kind, worker, jobs, attempts, whys in map(
        msgspec.structs.astuple, (_decode_text if doc[:1] == b"[" else _decode)(doc)
    ):
        count = len(jobs)
        for job, attempt, why in zip(jobs, _each(attempts, count), _each(whys, count), strict=True):
            yield RunEvent(run, seq, at, kind, job, attempt, worker, why)
            seq += 1


def _each(values: list[Any], count: int) -> list[Any]:
    return values * count if len(values) == 1 else values


class Cursor(NamedTuple):
    """Behind all of a row, or behind the first so many events of it."""

    mark: str
    number: int
    shown: int = 0

    def __str__(self) -> str:
        return f"{self.mark}.{self.number}.{self.shown}" if self.shown else f"{self.mark}.{self.number}"


def page_of(rows: Sequence[Any], after: Cursor, limit: int) -> EventPage:
    """Rows of events.sql, from the one of the cursor on if it was not shown whole. That may be gone meanwhile."""
    events: list[RunEvent] = []
    for row in rows:
        mark, number = row[4:6]
        some = list(events_of(row))
        first = after.shown if (mark, number) == after[:2] else 0
        end = first + limit - len(events)
        events += some[first:end]
        after = Cursor(mark, number, end if end < len(some) else 0)
        if len(events) >= limit:
            break
    return EventPage(tuple(events), str(after))
