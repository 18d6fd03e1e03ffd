"""Leases: time-bounded ownership with a fence. Locks and idempotent calls are leases; the keeper renews them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from backstay.engine.base import Apply, Micros, steady
from backstay.errors import LeaseLost

#: Clocks drift: a lease counts as valid for 98 % of its TTL only.
MARGIN = 0.02
#: A third of the TTL: two renewals may fail before the lease ends.
RENEW_AT = 1 / 3

LIVE, RELEASED, LOST = "live", "released", "lost"


def instant(micros: Micros) -> datetime:
    """Convert engine time to an aware datetime."""
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


class BaseLease:
    """A lease that the keeper renews. Work after it is lost is unsafe: call check() before a step that must not be
    done twice.
    """

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
        #: The task or thread that acquired it.
        self.owner = owner
        self.state = LIVE
        self.reason = ""
        #: Renewal stops at this time (steady clock), so a hung holder cannot hold the lease forever.
        self.hold_until = sent_at + max_hold
        self._acquired = acquired
        self._on_end: list[Callable[[], None]] = []
        #: Called when the lease is lost: it cancels the task that runs under the lease (see `lease_scope`).
        self.watcher: Callable[[], None] | None = None
        self.extend(expires, sent_at, ttl)

    @property
    def acquired_at(self) -> datetime:
        """When the lease was granted, by the engine's clock."""
        return instant(self._acquired)

    @property
    def expires_at(self) -> datetime:
        """When the lease ends unless it is renewed, by the engine's clock."""
        return instant(self._expires)

    @property
    def is_lost(self) -> bool:
        """True once the lease has ended, or may have ended as far as this process can tell."""
        return self.state is LOST or (self.state is LIVE and steady() >= self.deadline)

    def remaining(self) -> float:
        """Seconds for which the lease is certainly held; 0 once it is lost or released."""
        return max(0.0, self.deadline - steady()) if self.state is LIVE else 0.0

    def check(self) -> None:
        """Raise LeaseLost unless the lease is certainly held."""
        if self.state is not LIVE or steady() >= self.deadline:
            raise self.loss()

    def loss(self) -> LeaseLost:
        """Build the error that describes why the lease is no longer held."""
        reason = self.reason or ("it was released" if self.state is RELEASED else "it expired before it was renewed")
        return LeaseLost(name=self.name, lock_id=self.id, fence=self.fence, reason=reason)

    # Aliases with the names that the n8n primitives use.
    @property
    def scope(self) -> str:
        return self.name

    @property
    def lock_id(self) -> str:
        return self.id

    @property
    def locked_at(self) -> datetime:
        return self.acquired_at

    def renewal(self, not_after: Micros, ttl: float) -> Apply:
        """Build the operation that renews this lease for `ttl` seconds."""
        raise NotImplementedError

    def judge(self, reply: Any) -> tuple[Micros, str]:
        """Interpret a renewal's reply: (new end, ""), or (0, reason) if the lease is lost; (0, "") if the command had
        expired and is to be sent again.
        """
        raise NotImplementedError

    def next_ttl(self, now: float) -> float:
        """Return the TTL of the next renewal: the lease's own, or the rest of `max_hold`; 0 if none is left."""
        return max(0.0, min(self.ttl, self.hold_until - now))

    def extend(self, expires: Micros, sent_at: float, ttl: float) -> None:
        """Record a grant or a renewal. The TTL counts from before the request was sent, so it never overestimates."""
        self._expires = expires
        self.deadline = sent_at + ttl * (1 - MARGIN)
        self.due = sent_at + ttl * RENEW_AT if self.renews else float("inf")

    def lose(self, reason: str) -> bool:
        """Mark the lease as lost and call the callbacks. Returns False if it had ended already."""
        if self.state is not LIVE:
            return False
        self.state = LOST
        self.reason = reason
        if self.watcher is not None:
            self.watcher()
        self._end()
        return True

    def finish(self) -> None:
        """Mark the lease as released and call the callbacks."""
        if self.state is LIVE:
            self.state = RELEASED
            if self._on_end:
                self._end()

    def _end(self) -> None:
        callbacks, self._on_end = self._on_end, []
        for callback in callbacks:
            callback()

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the lease is lost or released, at once if it has ended. It may run on any thread."""
        self._on_end.append(callback)
        if self.state is not LIVE and callback in self._on_end:
            self._end()

    def off_end(self, callback: Callable[[], None]) -> None:
        """Remove a callback of `on_end`. Does nothing if it was called already."""
        with contextlib.suppress(ValueError):
            self._on_end.remove(callback)

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} {self.state} fence={self.fence} id={self.id}>"
