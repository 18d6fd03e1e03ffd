"""Leases: time-bounded ownership with a fence. Locks and idempotent calls are leases; the keeper renews them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

from backstay.engine.base import Apply, Micros, steady
from backstay.errors import LeaseLost

#: Clocks of client and server drift apart, so a client considers a lease valid for only 98 % of its TTL.
MARGIN = 0.02
#: A lease is renewed when this fraction of its TTL has passed, so two renewals may fail before the lease ends.
RENEW_AT = 1 / 3

LIVE, RELEASED, LOST = "live", "released", "lost"

#: Held while a renewal is recorded: the keeper and the lease's holder may both do so at the same time.
RECORDING = threading.Lock()


class RenewalResult(NamedTuple):
    """The engine's answer to a renewal. If neither `until` nor `lost` is set, the command arrived after its expiry and
    had no effect: send it again.
    """

    #: When the lease ends now, by the engine's clock; 0: it was not renewed.
    until: Micros = 0
    #: Why the lease is lost; empty: it is not.
    lost: str = ""
    #: Seconds from the engine's answer to `until`. 0 means that this is the TTL which the renewal asked for.
    left: float = 0.0
    #: A lock's holder may change the TTL, and numbers each new TTL (`GateLease.number_ttl`). This is the number of the
    #: TTL that the engine now applies.
    ttl_number: int = 0


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
        #: The task or thread that acquired the lease.
        self.owner = owner
        self.state = LIVE
        self.reason = ""
        #: Renewal stops at this time (steady clock), so a hung holder cannot hold the lease forever.
        self.hold_until = sent_at + max_hold
        self._acquired = acquired
        self._on_end: list[Callable[[], None]] = []
        #: Called when the lease is lost. `lease_scope` sets it to a function that cancels the task that runs under the
        #: lease.
        self.watcher: Callable[[], None] | None = None
        self._expires: Micros = 0
        self.deadline = 0.0
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

    # The next three properties are aliases with the names that the n8n primitives use.
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
        """Build the engine operation that renews this lease for `ttl` seconds."""
        raise NotImplementedError

    def judge(self, reply: Any) -> RenewalResult:
        """Interpret a renewal's reply."""
        raise NotImplementedError

    def record_renewal(self, result: RenewalResult, sent_at: float, ttl: float) -> None:
        """Record a renewal that the engine confirmed. Replies may be processed in another order than the engine sent
        them. The engine never shortens a lease whose TTL did not change, so the latest end that any reply has confirmed
        is certain.
        """
        with RECORDING:
            self._record(result, sent_at, ttl)

    def _record(self, result: RenewalResult, sent_at: float, ttl: float) -> None:
        expires, deadline = self._expires, self.deadline
        self.extend(max(expires, result.until), sent_at, min(ttl, result.left or ttl))
        self.deadline = max(self.deadline, min(deadline, self.hold_until))

    def next_ttl(self, now: float) -> float:
        """Return the TTL of the next renewal: the lease's TTL or, if it is shorter, the time left until `hold_until`. 0
        if `hold_until` has passed.
        """
        return max(0.0, min(self.ttl, self.hold_until - now))

    def extend(self, expires: Micros, sent_at: float, ttl: float) -> None:
        """Record that the lease was granted or renewed. Its TTL counts from `sent_at`, when the request was sent. The
        engine counts from the later arrival of the request, so this process never considers the lease valid for longer
        than the engine does.
        """
        self._expires = expires
        self.deadline = sent_at + ttl * (1 - MARGIN)
        self.due = sent_at + ttl * RENEW_AT if self.renews else float("inf")

    def lose(self, reason: str) -> bool:
        """Mark the lease as lost, and call `watcher` and the callbacks of `on_end`. Returns False, and does nothing, if
        the lease had already been lost or released.
        """
        if self.state is not LIVE:
            return False
        self.state = LOST
        self.reason = reason
        if self.watcher is not None:
            self.watcher()
        self._end()
        return True

    def finish(self) -> None:
        """Mark the lease as released and call the `on_end` callbacks. Does nothing if it has ended already."""
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


L = TypeVar("L", bound=BaseLease)


class Handover(Generic[L]):
    """Where an operation stores the lease that it was granted, before the keeper renews it. A signal handler may raise
    an exception (KeyboardInterrupt) at any moment until the operation has returned the lease. The caller that catches
    it finds the lease here and gives it back.
    """

    __slots__ = ("__weakref__", "lease", "ticket", "withdraw")

    def __init__(self) -> None:
        self.lease: L | None = None
        #: While there is no lease: passes the withdrawal of the ticket to the keeper. None: the engine does not know
        #: the ticket, or its withdrawal was sent.
        self.withdraw: Callable[[], None] | None = None
        #: The ticket under which the operation has entered the core's lists of callers and waiters.
        self.ticket = ""
