"""A running idempotent call: the lease that keeps others from running it too."""

from __future__ import annotations

from typing import Any

from backstay.engine.base import Apply, Expired, Micros
from backstay.idempotency.machine import IDEMPOTENCY, Begun, Lost, Renew, Renewed
from backstay.runtime.core import Core
from backstay.runtime.lease import BaseLease
from backstay.runtime.validation import micros


class Call(BaseLease):
    """Work after it is lost may be done twice: somebody else has taken over."""

    __slots__ = ("core", "doubt_until")

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
        #: Copies of the Begin may still be under way until then.
        self.doubt_until = doubt_until

    def renewal(self, not_after: Micros, ttl: float) -> Apply:
        return Apply(IDEMPOTENCY, self.name, Renew(not_after, self.id, self.fence, micros(ttl)))

    def judge(self, reply: Any) -> tuple[Micros, str]:
        match reply:
            case Renewed(until):
                return until, ""
            case Expired(now):
                self.core.engine.correct(now)
                return 0, ""
            case Lost(by):
                return 0, why_lost(by)
            case _:
                raise TypeError(f"not a reply to a renewal: {reply!r}")


def why_lost(by: str) -> str:
    return f"{by} has taken the call over" if by else "the engine no longer knows it"
