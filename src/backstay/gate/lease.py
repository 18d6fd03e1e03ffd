"""A held place at a gate: the lease behind lock, permit, read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from backstay.engine.base import Apply, Expired, Micros
from backstay.errors import HolderInfo
from backstay.gate.machine import GATE, Absent, Foreign, Granted, Lost, Release, Released, Renew, Renewed, Who
from backstay.gate.n8n import machine as n8n
from backstay.gate.n8n import wire
from backstay.gate.view import first
from backstay.runtime.core import Core
from backstay.runtime.lease import BaseLease
from backstay.runtime.validation import micros

if TYPE_CHECKING:
    from backstay.gate.flows import Spec


class Verdict(NamedTuple):
    """What became of a release, and who holds it instead."""

    kind: Literal["released", "absent", "foreign"]
    holder: HolderInfo | None = None


RELEASED_NOW = Verdict("released")
ABSENT_NOW = Verdict("absent")


class Held(BaseLease):
    """What both APIs' leases share."""

    __slots__ = ("confirmed", "core", "depth", "doubt_until", "exclusive", "ticket", "who", "wired")

    def __init__(
        self,
        core: Core,
        spec: Spec,
        ticket: str,
        lock_id: str,
        grant: Granted,
        sent_at: float,
        owner: object,
        who: Who,
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
        self.who = who
        #: Set where it lives in n8n's keys: without a fence, and released by lock_id.
        self.wired: wire.Wired | None = None
        #: How often a reentrant holder has entered on top of the first time.
        self.depth = 0
        #: Copies of the Acquire may still be under way until then.
        self.doubt_until = doubt_until
        #: True once the engine has said what became of the release.
        self.confirmed = False

    def renewal(self, not_after: Micros, ttl: float) -> Apply:
        if self.wired is not None:
            return wire.renewal(self, not_after, ttl)
        return Apply(GATE, self.name, Renew(not_after, self.ticket, self.fence, micros(ttl)))

    def giving_back(self, not_after: Micros) -> Apply:
        """The operation that ends this lease."""
        if self.wired is not None:
            return wire.giving_back(self, not_after)
        return Apply(GATE, self.name, Release(not_after, self.ticket, self.id, self.fence, self.doubt_until))

    def verdict(self, reply: Any) -> Verdict:
        """What the engine said to that."""
        match reply:
            case Released() | n8n.Released():
                return RELEASED_NOW
            case Absent() | n8n.Absent():
                return ABSENT_NOW
            case Foreign(holders):
                return Verdict("foreign", first(holders))
            case n8n.Foreign(owner):
                return Verdict("foreign", wire.holder(1, owner, self.core.engine.now()))
            case _:
                raise TypeError(f"not a reply to a release: {reply!r}")

    def judge(self, reply: Any) -> tuple[Micros, str]:
        match reply:
            case Renewed(until) | n8n.Renewed(until):
                return until, ""
            case Expired(now):
                self.core.engine.correct(now)
                return 0, ""
            case Lost(holders):
                holder = first(holders)
                return 0, f"it is held by {holder} now" if holder else "the engine no longer knows it"
            case n8n.Lost(count, owner):
                holder = wire.holder(count, owner, self.core.engine.now())
                if holder is not None and count and owner.lock_id != self.id:
                    return 0, f"it is held by {holder} now"
                return 0, "its keys are gone"
            case _:
                raise TypeError(f"not a reply to a renewal: {reply!r}")

    def as_dict(self) -> dict[str, Any]:
        """The ten fields of the reference's acquire reply."""
        if self.wired is not None:
            return wire.fields(self, self.wired)
        key = self.core.engine.key(GATE.name, self.name)
        return {
            "acquired": True,
            "count": 1,
            "scope": self.name,
            "lock_id": self.id,
            "key": key,
            "meta_key": key,
            "workflow_id": self.who.workflow_id,
            "workflow_name": self.who.workflow_name,
            "execution_id": self.who.execution_id,
            "locked_at": self.acquired_at.isoformat(),
        }
