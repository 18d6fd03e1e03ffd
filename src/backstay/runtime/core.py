"""The core of one Backstay: engine, hub, keeper, port, identity and services. Every operation takes it as argument."""

from __future__ import annotations

import os
import random
import secrets
import socket
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from backstay.engine.base import Engine, OperationRunner, ThreadSubscribers, WakesAfterCommit, steady
from backstay.errors import Closed, EngineError, EngineRefused
from backstay.hub.base import Hub, Subscription
from backstay.hub.relay import Relay
from backstay.policy import Policy
from backstay.runtime.flows import Latch, Port
from backstay.runtime.keeper import Keeper
from backstay.runtime.lease import BaseLease
from backstay.runtime.services import Services
from backstay.telemetry import Telemetry

#: Seconds that the first waiter waits for its subscription before it continues without; it polls as a fallback.
INBOX_WAIT = 1.0
FOREVER = float("inf")
#: Seconds that closing waits for waiters to leave their queues.
WITHDRAW_WAIT = 1.0
#: The number of early hints that are kept. A lost hint only delays its waiter until the next recheck.
EARLY_HINTS = 1000


class SignallingPort(Port, Protocol):
    """A port that can also run a callback on its caller's event loop, and that survives a fork."""

    def signal(self, callback: Callable[[], None]) -> None: ...

    def after_fork(self) -> None: ...


class Wakeable(Protocol):
    """A waiter that must be woken when the Backstay closes."""

    def wake(self) -> None: ...


class Identity:
    """The names of this process: in tickets, in `inspect`, and of its inbox channel. A forked child gets a new one."""

    __slots__ = ("_random", "inbox", "process", "program")

    def __init__(self, namespace: str) -> None:
        host = socket.gethostname().split(".")[0] or "host"
        self.process = f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
        self.program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
        self.inbox = f"{namespace}:inbox:{self.process}"
        self._random = random.Random(os.urandom(32))

    def new_id(self) -> str:
        """Return 128 random bits as hex, for a ticket or a lock_id. Not a secret: `inspect` shows it."""
        return f"{self._random.getrandbits(128):032x}"


class Core:
    """The shared parts of one Backstay, and the bookkeeping of its waiters and leases. One per Backstay."""

    def __init__(
        self,
        *,
        engine: Engine,
        hub: Callable[[Identity], Hub],
        port: SignallingPort,
        policy: Policy,
        telemetry: Telemetry,
        hub_prefix: str = "",
        hub_port: SignallingPort | None = None,
        owns_hub: bool = True,
    ) -> None:
        self.engine = engine
        self.port = port
        #: The port of the hub's operations: the engine's, or one of the hub's own runner (`hub=`).
        self.hub_port = hub_port if hub_port is not None else port
        self.hub_prefix = hub_prefix or engine.namespace
        self.policy = policy
        self.telemetry = telemetry
        self.identity = Identity(engine.namespace)
        self.keeper = Keeper(engine, telemetry, self.untrack)
        self._make_hub = hub
        self.owns_hub = owns_hub
        self.hub = hub(self.identity)
        self._relay = self._new_relay()
        self.wakeables: weakref.WeakSet[Wakeable] = weakref.WeakSet()
        #: The latches of all waiters, by ticket: a hint for a ticket sets its latch.
        self.latches: dict[str, Latch] = {}
        #: When a waiter must recheck at the latest because of a hint, by ticket. The latch wakes it to read this.
        self.recheck_at: dict[str, float] = {}
        #: Hints for tickets without a waiter: a hint may arrive before the reply that names the ticket.
        self._early: dict[str, None] = {}
        #: Live leases by name and by the task or thread that acquired them, to detect a caller that would deadlock.
        self.held_leases: dict[tuple[str, object], list[BaseLease]] = {}
        #: The objects that each room keeps for this Backstay: stores, registries, announcers.
        self.services = Services(self)
        self.closed = False
        self._inbox: Subscription | None = None
        #: When (steady clock) hints may last have been missed.
        self._missed_at = 0.0
        _CORES.add(self)

    def _new_relay(self) -> Relay | None:
        """Relay the engine's wake-ups if the hub belongs to another runner; the engine's own hub needs no relay."""
        runner = self.hub.runner
        if runner is None or runner is self.engine or not isinstance(self.engine, WakesAfterCommit):
            return None
        return Relay(self.engine, self.hub, runner, self.identity.inbox, self.hub.observe)

    @property
    def foreign_runner(self) -> OperationRunner | None:
        """The engine that was opened for the hub alone (`hub=`) and must be closed with it."""
        runner = self.hub.runner
        return runner if self.owns_hub and runner is not self.engine else None

    def inbox_channel(self, subscribers: ThreadSubscribers | None) -> str:
        """Return the channel on which the caller receives hints about its turn."""
        return subscribers.channel(self.identity.inbox) if subscribers else self.identity.inbox

    async def subscribe_inbox(self, subscribers: ThreadSubscribers | None, since: float) -> bool:
        """Subscribe to the caller's inbox. Returns True if a hint may have been missed after `since`: the caller then
        checks its state once more before it parks.
        """
        if subscribers:
            try:
                return subscribers.for_this_thread().listen(self.inbox_channel(subscribers), self._on_hint)
            except EngineRefused:
                return False  # subscribing is not permitted: the waiter polls at the engine's recheck interval
            except EngineError:
                return True  # the next command reports the failure
        if self._inbox is not None and self._inbox.is_ready:
            return self._missed_at >= since
        if self._inbox is not None and self._inbox.error is None:
            return False  # another caller is subscribing; all waiters recheck once the subscription is ready
        latch = self.port.latch()
        inbox = self._inbox = self.hub.subscribe(
            self.identity.inbox, self._on_hint, lambda: self._on_inbox_ready(latch), prompt=True
        )
        if inbox.is_ready:  # it may have been ready before `_inbox` was set, when the callback ignored it
            self._on_hint(None)
        await self.port.park(latch, INBOX_WAIT)
        return inbox.is_ready  # if it is not, the waiter polls at the engine's recheck interval

    def _on_inbox_ready(self, latch: Latch) -> None:
        """The subscription is ready or has failed. Waiters that came meanwhile may have missed a hint: they recheck."""
        latch.set()
        if self._inbox is None or self._inbox.error is None:
            self._on_hint(None)

    def _on_hint(self, hint: str | None) -> None:
        """Wake a waiter. A hint is a ticket (recheck now), or a ticket and milliseconds (recheck then). None: hints
        may have been missed, so all waiters recheck.
        """
        if hint is None:
            self._missed_at = steady()
            for ticket in list(self.latches):
                self._schedule_recheck(ticket, 0.0)
            return
        if latch := self.latches.get(hint):
            self.recheck_at[hint] = 0.0
            latch.set()
            return
        ticket, _, pause = hint.partition(" ")
        if pause:
            if pause.isdecimal():
                self._schedule_recheck(ticket, steady() + int(pause) / 1000)
            return
        # Both this method and `register_waiter` write first and read second, so no hint is lost between them.
        if len(self._early) > EARLY_HINTS:
            self._early.clear()
        self._early[ticket] = None
        if ticket in self.latches:
            self._early.pop(ticket, None)
            self._schedule_recheck(ticket, 0.0)

    def _schedule_recheck(self, ticket: str, at: float) -> None:
        if latch := self.latches.get(ticket):
            self.recheck_at[ticket] = min(self.recheck_at.get(ticket, FOREVER), at)
            latch.set()

    def register_waiter(self, subscribers: ThreadSubscribers | None, ticket: str) -> Latch:
        """Return the latch that hints for the ticket set. If a hint came before the reply, the recheck is due now."""
        latch = self.latches[ticket] = subscribers.for_this_thread() if subscribers else self.port.latch()
        if ticket in self._early:
            self._early.pop(ticket, None)
            self.recheck_at[ticket] = 0.0
        return latch

    def unregister_waiter(self, ticket: str) -> None:
        self.latches.pop(ticket, None)
        self.recheck_at.pop(ticket, None)

    async def wait_for_turn(
        self, ticket: str, latch: Latch, recheck: float, started: float, wait: float | None
    ) -> bool:
        """Sleep until a hint for the ticket arrives or `recheck` seconds have passed. Returns False if the caller's
        `wait` is over.
        """
        until = steady() + recheck
        ends = None if wait is None else started + wait
        while True:
            now = steady()
            if ends is not None and now >= ends:
                return False
            recheck_at = min(until, self.recheck_at.get(ticket, until))
            if now >= recheck_at:
                self.recheck_at.pop(ticket, None)
                return True
            await self.port.park(latch, recheck_at - now if ends is None else min(recheck_at, ends) - now)
            if self.closed:
                self.check_open()
            latch.clear()

    def track(self, lease: BaseLease) -> None:
        """Record a granted lease and have the keeper renew it."""
        key = (lease.name, lease.owner)
        if key in self.held_leases:
            self.held_leases[key].append(lease)
        else:
            self.held_leases[key] = [lease]
        self.keeper.add(lease)

    def untrack(self, lease: BaseLease) -> None:
        """Undo `track`: stop renewing the lease and remove its record. Safe to call twice."""
        self.keeper.discard(lease)
        key = (lease.name, lease.owner)
        leases = self.held_leases.get(key)
        if leases and lease in leases:
            if len(leases) == 1:
                del self.held_leases[key]
            else:
                leases.remove(lease)

    def check_open(self) -> None:
        if self.closed:
            raise Closed("this Backstay is closed; create a new one")

    async def release_waiters(self) -> None:
        """Accept no more callers, wake all waiters, and give them `WITHDRAW_WAIT` seconds to leave their queues."""
        self.closed = True
        for wakeable in list(self.wakeables):
            wakeable.wake()
        until = steady() + WITHDRAW_WAIT
        while self.latches and steady() < until:
            self._on_hint(None)
            await self.port.pause(0.005)

    def close_parts(self) -> None:
        """Close everything but the engine. Safe to call twice."""
        self.closed = True
        if self.owns_hub:
            self.hub.close()
        elif self._inbox is not None:
            self._inbox.close()
        try:
            with suppress(EngineError):  # a lease whose release could not be sent expires by itself
                self.keeper.close()
        finally:
            if self._relay is not None:  # last: it wakes the waiters of the leases that the keeper has just released
                self._relay.close()

    def after_fork(self) -> None:
        """In a forked child: take a new identity and drop the parent's leases, waiters and subscriptions."""
        self.identity = Identity(self.engine.namespace)
        self.port.after_fork()
        if self.hub_port is not self.port:
            self.hub_port.after_fork()
        self.keeper.after_fork()
        self.hub.after_fork()
        self.hub = self._make_hub(self.identity)
        self._relay = self._new_relay()
        self.wakeables = weakref.WeakSet()
        self.latches = {}
        self.recheck_at = {}
        self._early = {}
        self.held_leases = {}
        self.services.after_fork()
        self._inbox = None


_CORES: weakref.WeakSet[Core] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    cores = list(_CORES)
    runners = [core.hub.runner for core in cores if core.hub.runner is not None]
    for engine in {id(engine): engine for engine in (*(core.engine for core in cores), *runners)}.values():
        engine.after_fork()  # once per engine: several cores may share one
    for core in cores:
        core.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
