"""Renew and release one lease of a lock in n8n's Redis keys: encode the requests and decode the replies."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from backstay.engine.base import Apply, Micros
from backstay.errors import HolderInfo
from backstay.gate.lease import ABSENT_NOW, RELEASED_NOW, GateLease, ReleaseOutcome
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.gate.machine import (
    WIRE,
    Absent,
    Foreign,
    Lost,
    Release,
    Released,
    Renew,
    Renewed,
    StoredIdentity,
)
from backstay.runtime.lease import RenewalResult, instant


def identity(lock_id: str, workflow_id: str, workflow_name: str, execution_id: str, owner_tag: str = "") -> str:
    """Return the start of the identity's JSON: the fields of `keys.IDENTITY` in order, without the last one,
    `locked_at`, and without the closing brace. The script adds both. A server adds the owner tag of the client to which
    it grants the lock.
    """
    values = (lock_id, workflow_id, workflow_name, execution_id)
    fields: dict[str, str] = dict(zip(keys.IDENTITY[:-1], values, strict=True))
    if owner_tag:
        fields[keys.OWNER] = owner_tag
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))[:-1]


def millis(seconds: float) -> int:
    """Round to whole milliseconds, at least 1."""
    return int(seconds * 1000 + 0.5) or 1


def parse_micros(locked_at: str) -> Micros:
    """Parse an ISO 8601 time into µs; 0 if it cannot be parsed."""
    try:
        found = datetime.fromisoformat(locked_at)
    except ValueError:
        return 0
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1_000_000)


def describe_unknown_holder(owner: StoredIdentity) -> str:
    """Describe a holder without a readable identity."""
    return "an unknown holder whose identity cannot be read" if owner.written else "an unknown holder with no identity"


def holder_info(count: int, owner: StoredIdentity, now: Micros) -> HolderInfo | None:
    """Return the holder, as far as the keys identify it; None if the lock is free."""
    if count == 0 and not owner.written:
        return None
    return HolderInfo(
        lock_id=owner.lock_id or "?",
        fence=0,
        execution_id=owner.execution_id,
        workflow_id=owner.workflow_id,
        workflow_name=owner.workflow_name or ("" if owner.known else describe_unknown_holder(owner)),
        locked_at=owner.locked_at or "?",
        expires_at=instant(now + owner.left * 1000).isoformat() if owner.left >= 0 else "",
    )


class N8nLease(Struct, frozen=True):
    """Implements LeaseWire for one lease of a lock that is shared with n8n.

    count: The value of the lock's counter when the lock was granted.
    locked_at: The time of the grant (ISO 8601), as the script wrote it into the identity.
    """

    count: int
    locked_at: str

    def renewal(self, lease: GateLease, not_after: Micros, ttl: float) -> Apply:
        return Apply(WIRE, lease.name, Renew(not_after, lease.id, millis(ttl)))

    def release_op(self, lease: GateLease, not_after: Micros) -> Apply:
        return Apply(WIRE, lease.name, Release(not_after, lease.id, lease.ticket, lease.doubt_until))

    def decode_release(self, lease: GateLease, reply: Any) -> ReleaseOutcome:
        match reply:
            case Released():
                return RELEASED_NOW
            case Absent():
                return ABSENT_NOW
            case Foreign(owner):
                return ReleaseOutcome("foreign", holder_info(1, owner, lease.core.engine.now()))
            case _:
                raise TypeError(f"not a reply to a release: {reply!r}")

    def judge(self, lease: GateLease, reply: Any) -> RenewalResult:
        match reply:
            case Renewed(until):
                return RenewalResult(until)
            case Lost(count, owner):
                found = holder_info(count, owner, lease.core.engine.now())
                if found is not None and count and owner.lock_id != lease.id:
                    return RenewalResult(lost=f"it is held by {found} now")
                return RenewalResult(lost="its keys are gone")
            case _:
                raise TypeError(f"not a reply to a renewal: {reply!r}")

    def fields(self, lease: GateLease) -> dict[str, Any]:
        return {
            "acquired": True,
            "count": self.count,
            "scope": lease.name,
            "lock_id": lease.id,
            "key": keys.lock_key(lease.name),
            "meta_key": keys.meta_key(lease.name),
            "workflow_id": lease.caller.workflow_id,
            "workflow_name": lease.caller.workflow_name,
            "execution_id": lease.caller.execution_id,
            "locked_at": self.locked_at,
        }
