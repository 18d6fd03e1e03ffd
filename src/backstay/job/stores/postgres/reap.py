"""Leases that ran out, and what is due, where something hangs on it."""

from __future__ import annotations

from typing import Any

from backstay.job.model import Failure
from backstay.job.stores.postgres.ending import Ending, Ends
from backstay.job.stores.postgres.rows import CARE, SOFT, Part, ask, encode_failure, inside
from backstay.job.stores.postgres.statements import Bytes, Numbers, Texts, readable

#: A step looks at no more than this many leases that ran out.
REAPED = 100

KIND, MESSAGE = "LeaseExpired", "the lease ran out: its worker died, hung, or could not reach the engine"


#: The cause as msgpack, but for attempt and time, which the statement puts in: before the first of them, and between.
_BEFORE = encode_failure(Failure(KIND, MESSAGE, attempt=1, at=1)).partition(b"\xa7attempt")[0] + b"\xa7attempt\xd2"
_BETWEEN = b"\xa2at\xcf"


#: What reap.sql wants besides where and when.
CAUSE: dict[str, Any] = {"care": CARE, "cause_before": _BEFORE, "cause_between": _BETWEEN}


def reap_late(ends: Ends, limit: int) -> Part:
    """Those that reap.sql left alone, so many: held, then ended or put back, with what hangs on them. They come first
    now: whatever stood before them is no longer late.
    """
    if not limit:
        return
    rows = yield from ask("reap_hold", {"space": ends.space, "limit": limit, "now": ends.now})
    endings: list[Ending] = []
    again: list[tuple[str, int, int, int, bytes]] = []
    said: dict[str, tuple[str, str]] = {}
    for id_, attempt, retries, snoozes, cancel, flags, run, worker, now in rows:
        error = encode_failure(Failure(KIND, MESSAGE, attempt=attempt, at=now))
        ends.lost(id_)
        ends.moved(flags, run, id_, "", "", attempt, worker, MESSAGE, "lease_expired")
        own: dict[str, Any] = {"worker": worker, "why": MESSAGE}
        if cancel is not None:
            asked = encode_failure(Failure("Cancelled", readable(cancel), attempt=attempt, at=now))
            endings.append(Ending(id_, "cancelled", error=asked, **own))
        elif attempt > retries:
            endings.append(Ending(id_, "failed", error=error, blame=not flags & SOFT, **own))
        else:
            again.append((id_, -1, attempt, snoozes, error))
            said[id_] = worker, MESSAGE
    if again:
        ids, delays, attempts, snoozes, errors = zip(*again, strict=True)
        values = {
            "space": ends.space,
            "now": ends.now,
            "ageing": 0,
            "ids": Texts(ids),
            "delays": Numbers(delays),
            "attempts": Numbers(attempts),
            "snoozes": Numbers(snoozes),
            "errors": Bytes(errors),
        }
        (rows,) = yield inside(("again", values))
        ends.released([(row[0], row[1], *row[4:]) for row in rows], "running", said)
        yield from ends.free({row[2]: row[3] for row in rows if row[2]})
    yield from ends.end(endings)


def due_late(ends: Ends, limit: int) -> Part:
    """Jobs of runs that are due, so many: those that due.sql left alone."""
    if limit:
        rows = yield from ask("due_runs", {"space": ends.space, "limit": limit, "now": ends.now})
        ends.released(rows, "scheduled")
