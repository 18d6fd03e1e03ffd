"""Leases that ran out."""

from __future__ import annotations

from typing import Any

from holdfast.job.model import Failure
from holdfast.job.postgres.ending import Ending, Ends
from holdfast.job.postgres.rows import CARE, Part, ask, encode_failure, inside
from holdfast.job.postgres.texts import Bytes, Numbers, Texts

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
    for id_, attempt, retries, snoozes, cancel, now in rows:
        error = encode_failure(Failure(KIND, MESSAGE, attempt=attempt, at=now))
        ends.lost(id_)
        if cancel is not None:
            asked = encode_failure(Failure("Cancelled", cancel, attempt=attempt, at=now))
            endings.append(Ending(id_, "cancelled", error=asked))
        elif attempt > retries:
            endings.append(Ending(id_, "failed", error=error))
        else:
            again.append((id_, -1, attempt, snoozes, error))
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
        ends.ready.update((id_, type_) for id_, type_, *_ in rows)
        yield from ends.free({key: key_limit for _, _, key, key_limit, _ in rows if key})
    yield from ends.end(endings)
