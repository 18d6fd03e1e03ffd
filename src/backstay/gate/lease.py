"""The lease of a gate, shared by both APIs: how it renews, releases and reads the engine's replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from backstay.engine.base import Apply, Expired, Micros
from backstay.errors import HolderInfo
from backstay.gate.commands import Absent, CallerIdentity, Foreign, Granted, Lost, Release, Released, Renew, Renewed
from backstay.gate.machine import GATE
from backstay.gate.view import first_holder
from backstay.gate.wire import LeaseWire
from backstay.runtime.core import Core
from backstay.runtime.lease import BaseLease
from backstay.runtime.validation import to_micros

if TYPE_CHECKING:
    from backstay.gate.flows import Spec


class ReleaseOutcome(NamedTuple):
    """The outcome of a release. `holder`: the caller that holds the lock instead, when `kind` is foreign."""

    kind: Literal["released", "absent", "foreign"]
    holder: HolderInfo | None = None


RELEASED_NOW = ReleaseOutcome("released")
ABSENT_NOW = ReleaseOutcome("absent")


class GateLease(BaseLease):
    """The lease of a lock, of a semaphore's permit, or of a side of a read-write lock; base of both APIs' leases."""

    __slots__ = ("caller", "confirmed", "core", "depth", "doubt_until", "exclusive", "ticket", "wire")

    def __init__(
        self,
        core: Core,
        spec: Spec,
        ticket: str,
        lock_id: str,
        grant: Granted,
        sent_at: float,
        owner: object,
        caller: CallerIdentity,
        doubt_until: Micros,
    ) -> None:
        super().__init__(
            spec.name,
            lock_id,
            grant.fence,
            spec.ttl,
            grant.since,
            grant.until,
            sent_at,
            spec.renew,
            spec.max_hold,
            owner,
        )
        self.core = core
        self.ticket = ticket
        self.exclusive = spec.exclusive
        self.caller = caller
        #: Set when the lock is in another program's keys: it has no fence and is released by lock_id.
        self.wire: LeaseWire | None = None
        #: How many times a reentrant holder has acquired it beyond the first time.
        self.depth = 0
        #: Until then a delayed copy of the Acquire may still reach the engine.
        self.doubt_until = doubt_until
        #: True once the engine has replied to the release.
        self.confirmed = False

    def renewal(self, not_after: Micros, ttl: float) -> Apply:
        if self.wire is not None:
            return self.wire.renewal(self, not_after, ttl)
        return Apply(GATE, self.name, Renew(not_after, self.ticket, self.fence, to_micros(ttl)))

    def release_op(self, not_after: Micros) -> Apply:
        """Return the operation that releases this lease."""
        if self.wire is not None:
            return self.wire.release_op(self, not_after)
        return Apply(GATE, self.name, Release(not_after, self.ticket, self.id, self.fence, self.doubt_until))

    def decode_release(self, reply: Any) -> ReleaseOutcome:
        """Decode the engine's reply to `release_op`."""
        match reply:
            case Released():
                return RELEASED_NOW
            case Absent():
                return ABSENT_NOW
            case Foreign(holders):
                return ReleaseOutcome("foreign", first_holder(holders))
            case _ if self.wire is not None:
                return self.wire.decode_release(self, reply)
            case _:
                raise TypeError(f"not a reply to a release: {reply!r}")

    def judge(self, reply: Any) -> tuple[Micros, str]:
        match reply:
            case Renewed(until):
                return until, ""
            case Expired(now):
                self.core.engine.correct_clock(now)
                return 0, ""
            case Lost(holders):
                holder = first_holder(holders)
                return 0, f"it is held by {holder} now" if holder else "the engine no longer knows it"
            case _ if self.wire is not None:
                return self.wire.judge(self, reply)
            case _:
                raise TypeError(f"not a reply to a renewal: {reply!r}")

    def as_dict(self) -> dict[str, Any]:
        """Return the ten fields of the acquire reply in the n8n reference."""
        if self.wire is not None:
            return self.wire.fields(self)
        key = self.core.engine.key(GATE.name, self.name)
        return {
            "acquired": True,
            "count": 1,
            "scope": self.name,
            "lock_id": self.id,
            "key": key,
            "meta_key": key,
            "workflow_id": self.caller.workflow_id,
            "workflow_name": self.caller.workflow_name,
            "execution_id": self.caller.execution_id,
            "locked_at": self.acquired_at.isoformat(),
        }
