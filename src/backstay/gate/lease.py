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
from backstay.runtime.lease import RECORDING, BaseLease, RenewalResult
from backstay.runtime.validation import to_micros

if TYPE_CHECKING:
    from backstay.gate.flows import GateSpec


class ReleaseOutcome(NamedTuple):
    """The outcome of a release. `holder`: the other caller that holds the lock, if `kind` is "foreign"."""

    kind: Literal["released", "absent", "foreign"]
    holder: HolderInfo | None = None


RELEASED_NOW = ReleaseOutcome("released")
ABSENT_NOW = ReleaseOutcome("absent")


class GateLease(BaseLease):
    """The lease of a lock, of a semaphore's permit, or of a side of a read-write lock; base of both APIs' leases."""

    __slots__ = (
        "_issued",
        "_ttls",
        "caller",
        "confirmed",
        "core",
        "deferred",
        "doubt_until",
        "exclusive",
        "holds",
        "ticket",
        "ttl_number",
        "wire",
    )

    def __init__(
        self,
        core: Core,
        spec: GateSpec,
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
        #: Set if the lock is in another program's keys (`wire="n8n"`). Then it has no fence and is released by lock_id.
        self.wire: LeaseWire | None = None
        #: One key for each acquire that has not been undone: a reentrant holder may acquire a held lock again. The
        #: lease is released with the last of them.
        self.holds: dict[object, None] = {}
        #: Until this time (engine clock, µs) a delayed copy of this lease's Acquire may still reach the engine and must
        #: be refused after the release; 0: no copy is in flight.
        self.doubt_until = doubt_until
        #: True once the engine has replied to the release.
        self.confirmed = False
        #: True once the keeper has the release, which the holder could not send.
        self.deferred = False
        #: The number of the TTL that the engine applies, according to its latest reply.
        self.ttl_number: int = 0
        #: The last number that `number_ttl` returned.
        self._issued: int = 0
        #: The TTLs that the engine has not confirmed yet, by number.
        self._ttls: dict[int, float] = {}

    @property
    def depth(self) -> int:
        """How many further times a reentrant holder has acquired the held lock and not yet released it."""
        return max(0, len(self.holds) - 1)

    def number_ttl(self, ttl: float) -> int:
        """Give a new TTL its number. The engine applies the TTL with the highest number, so renewals that overtake one
        another never restore an earlier TTL.
        """
        with RECORDING:
            self._issued += 1
            self._ttls[self._issued] = ttl
            return self._issued

    def renewal(self, not_after: Micros, ttl: float, ttl_number: int | None = None) -> Apply:
        if self.wire is not None:
            return self.wire.renewal(self, not_after, ttl)
        if ttl_number is None:
            ttl_number = self.ttl_number  # read before the TTL, which `_record` sets first: the two belong together
            ttl = min(ttl, self.ttl)
        return Apply(GATE, self.name, Renew(not_after, self.ticket, self.fence, to_micros(ttl), ttl_number))

    def _record(self, result: RenewalResult, sent_at: float, ttl: float) -> None:
        number = result.ttl_number
        if number == self.ttl_number:
            super()._record(result, sent_at, ttl)
        elif number > self.ttl_number:
            self.ttl = self._ttls.get(number, self.ttl)
            self.ttl_number = number
            self._ttls = {other: each for other, each in self._ttls.items() if other > number}
            self.extend(result.until, sent_at, result.left)

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

    def judge(self, reply: Any) -> RenewalResult:
        match reply:
            case Renewed(until, now, ttl_number):
                return RenewalResult(until, left=(until - now) / 1_000_000, ttl_number=ttl_number)
            case Expired(now):
                self.core.engine.correct_clock(now)
                return RenewalResult()
            case Lost(holders):
                holder = first_holder(holders)
                lost = f"it is held by {holder} now" if holder else "the engine no longer knows it"
                return RenewalResult(lost=lost)
            case _ if self.wire is not None:
                return self.wire.judge(self, reply)
            case _:
                raise TypeError(f"not a reply to a renewal: {reply!r}")

    def as_dict(self) -> dict[str, Any]:
        """Return the lease as a dict with the ten fields that Backstay's n8n workflow for acquiring a lock returns."""
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
