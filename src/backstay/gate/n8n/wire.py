"""What a lease over n8n's keys says to Redis, and how its answers read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from backstay.engine.base import Apply, Micros
from backstay.errors import HolderInfo
from backstay.gate.n8n.machine import WIRE, Owner, Release, Renew
from backstay.interop.n8n_wire import keys
from backstay.runtime.lease import instant

if TYPE_CHECKING:
    from backstay.gate.lease import Held


class Wired(Struct, frozen=True):
    """What a lease over n8n's keys knows beyond others: the counter as it was, and the words of its `locked_at`."""

    count: int
    locked_at: str


def identity(lock_id: str, workflow_id: str, workflow_name: str, execution_id: str) -> str:
    """The JSON beside the counter, up to where the server adds when: the fields of `n8n_keys.IDENTITY`, in order."""
    said = dict(zip(keys.IDENTITY[:-1], (lock_id, workflow_id, workflow_name, execution_id), strict=True))
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))[:-1]


def millis(seconds: float) -> int:
    """Never rounded down to nothing."""
    return int(seconds * 1000 + 0.5) or 1


def moment(locked_at: str) -> Micros:
    """0: nobody can tell."""
    try:
        found = datetime.fromisoformat(locked_at)
    except ValueError:
        return 0
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1_000_000)


def nobody(owner: Owner) -> str:
    """Whoever is not known, in words."""
    return (
        "somebody whose identity cannot be read" if owner.written else "somebody who has written no identity beside it"
    )


def holder(count: int, owner: Owner, now: Micros) -> HolderInfo | None:
    """Who has it, as far as the keys tell; None: nobody."""
    if count == 0 and not owner.written:
        return None
    return HolderInfo(
        lock_id=owner.lock_id or "?",
        fence=0,
        execution_id=owner.execution_id,
        workflow_id=owner.workflow_id,
        workflow_name=owner.workflow_name or ("" if owner.known else nobody(owner)),
        locked_at=owner.locked_at or "?",
        expires_at=instant(now + owner.left * 1000).isoformat() if owner.left >= 0 else "",
    )


def renewal(lease: Held, not_after: Micros, ttl: float) -> Apply:
    return Apply(WIRE, lease.name, Renew(not_after, lease.id, millis(ttl)))


def giving_back(lease: Held, not_after: Micros) -> Apply:
    return Apply(WIRE, lease.name, Release(not_after, lease.id, lease.ticket, lease.doubt_until))


def fields(lease: Held, wired: Wired) -> dict[str, Any]:
    """The ten fields of the reference's acquire reply."""
    return {
        "acquired": True,
        "count": wired.count,
        "scope": lease.name,
        "lock_id": lease.id,
        "key": keys.lock_key(lease.name),
        "meta_key": keys.meta_key(lease.name),
        "workflow_id": lease.who.workflow_id,
        "workflow_name": lease.who.workflow_name,
        "execution_id": lease.who.execution_id,
        "locked_at": wired.locked_at,
    }
