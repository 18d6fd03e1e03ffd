"""A held place at a gate: the lease behind lock, permit, read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core import Core
from holdfast.engine.base import Apply, Expired, Micros
from holdfast.gate.machine import GATE, Granted, Lost, Renew, Renewed, Who
from holdfast.gate.view import first
from holdfast.inputs import micros
from holdfast.lease import BaseLease

if TYPE_CHECKING:
    from holdfast.gate.flows import Spec


class Held(BaseLease):
    """What both APIs' leases share."""

    __slots__ = ("confirmed", "core", "depth", "doubt_until", "exclusive", "ticket", "who")

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
        #: How often a reentrant holder has entered on top of the first time.
        self.depth = 0
        #: Copies of the Acquire may still be under way until then.
        self.doubt_until = doubt_until
        #: True once the engine has said what became of the release.
        self.confirmed = False

    def renewal(self, not_after: Micros, ttl: float) -> Apply:
        return Apply(GATE, self.name, Renew(not_after, self.ticket, self.fence, micros(ttl)))

    def judge(self, reply: Any) -> tuple[Micros, str]:
        match reply:
            case Renewed(until):
                return until, ""
            case Expired(now):
                self.core.engine.correct(now)
                return 0, ""
            case Lost(holders):
                holder = first(holders)
                return 0, f"it is held by {holder} now" if holder else "the engine no longer knows it"
            case _:
                raise TypeError(f"not a reply to a renewal: {reply!r}")

    def as_dict(self) -> dict[str, Any]:
        """The ten fields of the reference's acquire reply."""
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
