"""The lease of a running idempotent call: while it lives, no other call with the key runs."""

from __future__ import annotations

from typing import Any

from backstay.engine.base import Apply, Expired, Micros, Room
from backstay.idempotency.machine import Begun, KeyState, Lost, Renew, Renewed
from backstay.runtime.core import Core
from backstay.runtime.lease import BaseLease, RenewalResult
from backstay.runtime.validation import to_micros


class IdempotencyLease(BaseLease):
    """The lease of a running idempotent call. Once it is lost, another process may start a call with the same key, so
    the work may be done twice.
    """

    __slots__ = ("core", "doubt_until", "room", "settled")

    def __init__(
        self,
        core: Core,
        name: str,
        ticket: str,
        lease: float,
        begun: Begun,
        sent_at: float,
        owner: object,
        doubt_until: Micros,
        room: Room[KeyState],
    ) -> None:
        super().__init__(
            name,
            ticket,
            begun.fence,
            lease,
            begun.since,
            begun.until,
            sent_at,
            renews=True,
            max_hold=core.policy.lock_max_hold,
            owner=owner,
        )
        self.core = core
        #: Until this time (engine clock) a delayed copy of the Begin may still reach the engine.
        self.doubt_until = doubt_until
        self.room = room
        #: True once the engine has the end of the call (its outcome, or that there is none), or the keeper sends it.
        self.settled = False

    def renewal(self, not_after: Micros, ttl: float) -> Apply:
        return Apply(self.room, self.name, Renew(not_after, self.id, self.fence, to_micros(ttl)))

    def judge(self, reply: Any) -> RenewalResult:
        match reply:
            case Renewed(until):
                return RenewalResult(until)
            case Expired(now):
                self.core.engine.correct_clock(now)
                return RenewalResult()
            case Lost(by):
                return RenewalResult(lost=describe_loss(by))
            case _:
                raise TypeError(f"not a reply to a renewal: {reply!r}")


def describe_loss(by: str) -> str:
    return f"{by} has taken the call over" if by else "the engine no longer knows it"
