"""Time-bounded ownership with a fence: what every room hands out and the keeper keeps alive."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from backstay.engine.base import Apply, Micros, steady
from backstay.errors import LeaseLost

#: Two clocks drift apart: trust a lease for 98 % of its life only.
MARGIN = 0.02
#: A third of the TTL: two renewals may fail before the lease ends.
RENEW_AT = 1 / 3

LIVE, RELEASED, LOST = "live", "released", "lost"


def instant(micros: Micros) -> datetime:
    """Engine time as an aware datetime."""
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


class BaseLease:
    """A kept-alive lease. Work after it is lost is unsafe; check() before what must not happen twice."""

    __slots__ = (
        "__weakref__",
        "_acquired",
        "_expires",
        "_on_end",
        "deadline",
        "due",
        "fence",
        "hold_until",
        "id",
        "name",
        "owner",
        "reason",
        "renews",
        "state",
        "ttl",
        "watcher",
    )

    def __init__(
        self,
        name: str,
        lease_id: str,
        fence: int,
        ttl: float,
        acquired: Micros,
        expires: Micros,
        sent_at: float,
        renews: bool,
        max_hold: float,
        owner: object = None,
    ) -> None:
        self.name = name
        self.id = lease_id
        self.fence = fence
        self.ttl = ttl
        self.renews = renews
        #: The task or thread that took it.
        self.owner = owner
        self.state = LIVE
        self.reason = ""
        #: Renewal stops here, so that a hung holder cannot hold for ever.
        self.hold_until = sent_at + max_hold
        self._acquired = acquired
        self._on_end: list[Callable[[], None]] = []
        #: Called at once when the lease is lost: it ends the body that runs under it.
        self.watcher: Callable[[], None] | None = None
        self.extend(expires, sent_at, ttl)

    # ── what callers read ──

    @property
    def acquired_at(self) -> datetime:
        """When it was granted, by the engine's clock."""
        return instant(self._acquired)

    @property
    def expires_at(self) -> datetime:
        """When it ends unless renewed, by the engine's clock."""
        return instant(self._expires)

    @property
    def is_lost(self) -> bool:
        """True once the lease has ended, or may have ended as far as this process can tell."""
        return self.state is LOST or (self.state is LIVE and steady() >= self.deadline)

    def remaining(self) -> float:
        """Seconds for which the lease is certainly ours."""
        return max(0.0, self.deadline - steady()) if self.state is LIVE else 0.0

    def check(self) -> None:
        """Raise LeaseLost unless the lease is certainly ours."""
        if self.state is not LIVE or steady() >= self.deadline:
            raise self.loss()

    def loss(self) -> LeaseLost:
        reason = self.reason or ("it was released" if self.state is RELEASED else "it ran out before it was renewed")
        return LeaseLost(name=self.name, lock_id=self.id, fence=self.fence, reason=reason)

    # The reference documents' names.
    @property
    def scope(self) -> str:
        return self.name

    @property
    def lock_id(self) -> str:
        return self.id

    @property
    def locked_at(self) -> datetime:
        return self.acquired_at

    # ── what the keeper and the flows do ──

    def renewal(self, not_after: Micros, ttl: float) -> Apply:
        """The operation that extends this lease."""
        raise NotImplementedError

    def judge(self, reply: Any) -> tuple[Micros, str]:
        """A renewal's reply as (new end, "") or (0, why it is lost)."""
        raise NotImplementedError

    def next_ttl(self, now: float) -> float:
        """What a renewal asks for: the TTL, or what is left of `max_hold`. 0: no more."""
        return max(0.0, min(self.ttl, self.hold_until - now))

    def extend(self, expires: Micros, sent_at: float, ttl: float) -> None:
        """Granted or renewed: ours for `ttl`, counted from before the request left."""
        self._expires = expires
        self.deadline = sent_at + ttl * (1 - MARGIN)
        self.due = sent_at + ttl * RENEW_AT if self.renews else float("inf")

    def lose(self, reason: str) -> bool:
        """It is over. Tells everybody who asked. False: it was over already."""
        if self.state is not LIVE:
            return False
        self.state = LOST
        self.reason = reason
        if self.watcher is not None:
            self.watcher()
        self._end()
        return True

    def finish(self) -> None:
        """It was given back."""
        if self.state is LIVE:
            self.state = RELEASED
            if self._on_end:
                self._end()

    def _end(self) -> None:
        callbacks, self._on_end = self._on_end, []
        for callback in callbacks:
            callback()

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call back, from whichever thread notices, when the lease is lost or given back."""
        self._on_end.append(callback)
        if self.state is not LIVE and callback in self._on_end:
            self._end()

    def off_end(self, callback: Callable[[], None]) -> None:
        """Whoever asked has gone. Nothing happens when the call was made already."""
        with contextlib.suppress(ValueError):
            self._on_end.remove(callback)

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} {self.state} fence={self.fence} id={self.id}>"
