"""The read-only view of an idempotency key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from backstay.engine.base import Micros
from backstay.idempotency.machine import DAY, IDLE, RUNNING, KeyState
from backstay.runtime.lease import instant


@dataclass(frozen=True, slots=True)
class KeyInspection:
    """A snapshot of one idempotency key."""

    name: str
    #: idle, running, lapsed (the call's lease has ended, so the next caller takes over), completed or failed.
    state: str
    fence: int = 0
    #: The process that runs the call, or ran it.
    by: str = ""
    since: datetime | None = None
    #: When the lease ends, or when the outcome expires.
    until: datetime | None = None
    fingerprint: str = ""
    waiters: int = 0


def inspection(name: str, entry: KeyState | None, now: Micros) -> KeyInspection:
    """Build the public view of a key's record at time `now`. `entry` is None if the key has no record."""
    if entry is None:
        return KeyInspection(name, IDLE)
    now = max(now, entry.seen)
    waiters = sum(w.alive > now for w in entry.waiters)
    ended = now >= (entry.until + DAY if entry.phase == RUNNING else entry.until)
    if entry.phase == IDLE or ended:
        return KeyInspection(name, IDLE, waiters=waiters)
    lapsed = entry.phase == RUNNING and entry.until <= now
    return KeyInspection(
        name,
        "lapsed" if lapsed else entry.phase,
        entry.fence,
        entry.by,
        instant(entry.since),
        instant(entry.until),
        entry.fingerprint,
        waiters,
    )
