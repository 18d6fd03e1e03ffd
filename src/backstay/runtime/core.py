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

from backstay.engine.base import Engine, OperationRunner, WakesAfterCommit, steady
from backstay.engine.capabilities import ThreadSubscribers
from backstay.errors import Closed, EngineError, EngineRefused
from backstay.hub.base import Hub, Subscription
from backstay.hub.relay import Relay
from backstay.policy import Policy
from backstay.runtime.flows import Latch, Port
from backstay.runtime.lease import BaseLease
from backstay.runtime.lease_keeper import Keeper
from backstay.runtime.services import Services
from backstay.telemetry import Telemetry

#: The first caller of this process that waits for a lock subscribes to the process's inbox, the channel that carries
#: hints to it, and waits this many seconds for the subscription to become active. After that it polls.
INBOX_WAIT = 1.0
FOREVER = float("inf")
#: How many seconds `close` waits for waiters to leave their queues.
WITHDRAW_WAIT = 1.0
#: How many hints are kept for tickets whose waiter is not registered yet. A dropped hint only delays its waiter until
#: the next recheck.
EARLY_HINTS = 1000


class SignallingPort(Port, Protocol):
    """A port with two more methods. `signal`: run a callback, in the async API on the port's event loop. `after_fork`:
    make the port usable in a forked child.
    """

    def signal(self, callback: Callable[[], None]) -> None: ...

    def after_fork(self) -> None: ...


class ProcessIdentity:
    """The names of this process. `process` (host, pid and a random part) and `program` identify it where holders of
    locks are shown. `inbox` is the hub channel on which the process receives the hints for its waiters. A forked child
    gets a new identity.
    """

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
        hub: Callable[[ProcessIdentity], Hub],
        port: SignallingPort,
        policy: Policy,
        telemetry: Telemetry,
        hub_prefix: str = "",
        hub_port: SignallingPort | None = None,
        owns_hub: bool = True,
    ) -> None:
        self.engine = engine
        self.port = port
        #: The port that the hub's operations run on: the engine's port or, with `hub=`, a port of the hub's own engine.
        self.hub_port = hub_port if hub_port is not None else port
        self.hub_prefix = hub_prefix or engine.namespace
        self.policy = policy
        self.telemetry = telemetry
        self.identity = ProcessIdentity(engine.namespace)
        self.keeper = Keeper(engine, telemetry, self.untrack)
        self._make_hub = hub
        self.owns_hub = owns_hub
        self.hub = hub(self.identity)
        self._relay = self._new_relay()
        #: The latches on which callers sleep (`park`). `release_waiters` sets them all.
        self._parked: set[Latch] = set()
        #: The callers that `release_waiters` waits for, by ticket: from before their first command until they have the
        #: lease, or have given up and withdrawn the ticket.
        self.callers: set[str] = set()
        #: The latches of all waiters, by ticket. A hint for a ticket sets its latch, which wakes the waiter.
        self.latches: dict[str, Latch] = {}
        #: For each ticket with an unread hint: the time (steady clock) at which its waiter must recheck. A hint sets
        #: the time and then the latch, so that the waiter wakes up and reads the time.
        self.recheck_at: dict[str, float] = {}
        #: Hints for tickets whose waiter is not registered yet: a hint may arrive before the reply that says "queued".
        self._early: dict[str, None] = {}
        #: Live leases by name and by the task or thread that acquired them, to detect a caller that would wait for its
        #: own lease.
        self.held_leases: dict[tuple[str, object], list[BaseLease]] = {}
        #: The objects that rooms keep once per Backstay, such as the job store.
        self.services = Services(self)
        self.closed = False
        self._inbox: Subscription | None = None
        #: The last time (steady clock) at which this process may have missed hints.
        self._missed_at = 0.0
        _CORES.add(self)

    def _new_relay(self) -> Relay | None:
        """Return a relay, which publishes the engine's wake-ups (hints for waiters) on the hub. It is needed only if
        the hub runs on another engine (option `hub=`) and this engine does not send its wake-ups itself. Otherwise
        return None.
        """
        runner = self.hub.runner
        if runner is None or runner is self.engine or not isinstance(self.engine, WakesAfterCommit):
            return None
        return Relay(self.engine, self.hub, runner, self.identity.inbox, self.hub.observe)

    @property
    def foreign_runner(self) -> OperationRunner | None:
        """The engine that was opened only for the hub (option `hub=`) and must be closed with the hub; None if the hub
        has no engine of its own.
        """
        runner = self.hub.runner
        return runner if self.owns_hub and runner is not self.engine else None

    def inbox_channel(self, subscribers: ThreadSubscribers | None) -> str:
        """Return the hub channel on which the caller receives the hints that its turn may have come."""
        return subscribers.channel(self.identity.inbox) if subscribers else self.identity.inbox

    async def subscribe_inbox(self, subscribers: ThreadSubscribers | None, since: float) -> bool:
        """Subscribe to the channel on which the caller receives hints. Returns True if a hint may have been missed
        since `since` (steady clock): the caller then asks the engine once more before it sleeps.
        """
        if subscribers:
            try:
                return subscribers.for_this_thread().listen(self.inbox_channel(subscribers), self._on_hint)
            except EngineRefused:
                return False  # subscribing is not permitted: the waiter polls at the engine's recheck interval
            except EngineError:
                return True  # the caller asks the engine again; if the engine is down, that call raises
        if self._inbox is not None and self._inbox.is_ready:
            return self._missed_at >= since
        if self._inbox is not None and self._inbox.error is None:
            return False  # another caller has begun to subscribe; `_on_inbox_ready` wakes all waiters
        latch = self.port.latch()
        inbox = self._inbox = self.hub.subscribe(
            self.identity.inbox, self._on_hint, lambda: self._on_inbox_ready(latch), prompt=True
        )
        # `_on_inbox_ready` may have run before `self._inbox` was assigned. It then saw the previous subscription, which
        # had failed, and woke no waiter. So wake all waiters here.
        if inbox.is_ready:
            self._on_hint(None)
        await self.park(latch, INBOX_WAIT)
        return inbox.is_ready  # if False, the waiter polls at the engine's recheck interval

    def _on_inbox_ready(self, latch: Latch) -> None:
        """Called when the subscription is ready or has failed. If it is ready, all waiters recheck, because hints that
        were published earlier did not reach them.
        """
        latch.set()
        if self._inbox is None or self._inbox.error is None:
            self._on_hint(None)

    def _on_hint(self, hint: str | None) -> None:
        """Wake a waiter. A hint is a ticket (recheck now), or a ticket and a number (recheck after that many
        milliseconds). None: hints may have been missed, so all waiters recheck.
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
        # No hint is lost to a race: this method first stores the hint and then looks for a waiter, and
        # `register_waiter` first stores the waiter and then looks for a hint.
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
        """Register a waiter and return its latch. Each hint for the ticket sets the latch. If a hint has arrived before
        this call, the waiter asks the engine at once instead of sleeping.
        """
        latch = self.latches[ticket] = subscribers.for_this_thread() if subscribers else self.port.latch()
        if ticket in self._early:
            self._early.pop(ticket, None)
            self.recheck_at[ticket] = 0.0
        return latch

    def unregister_waiter(self, ticket: str) -> None:
        self.latches.pop(ticket, None)
        self.recheck_at.pop(ticket, None)

    def forget_caller(self, ticket: str) -> None:
        """Remove a caller from `callers`, and its latch, if it has one: it has the lease, or has given up. Safe to call
        twice.
        """
        self.callers.discard(ticket)
        self.latches.pop(ticket, None)
        self.recheck_at.pop(ticket, None)

    async def wait_for_turn(
        self, ticket: str, latch: Latch, recheck: float, started: float, wait: float | None
    ) -> bool:
        """Sleep until a hint for the ticket arrives or `recheck` seconds have passed. Returns False if the caller has
        waited for `wait` seconds since `started`, so that it must give up.
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
            await self.park(latch, recheck_at - now if ends is None else min(recheck_at, ends) - now)
            latch.clear()

    async def park(self, latch: Latch, timeout: float | None) -> None:
        """Sleep until the latch is set or `timeout` seconds have passed. Raises Closed as soon as the Backstay closes.

        A caller registers its latch and then reads `closed`; `release_waiters` sets `closed` and then reads the
        latches. So no caller falls asleep unnoticed.
        """
        self._parked.add(latch)
        try:
            if not self.closed:
                await self.port.park(latch, timeout)
        finally:
            self._parked.discard(latch)
        if self.closed:
            self.check_open()

    def track(self, lease: BaseLease) -> None:
        """Add a granted lease to `held_leases` and have the keeper renew it."""
        key = (lease.name, lease.owner)
        if key in self.held_leases:
            self.held_leases[key].append(lease)
        else:
            self.held_leases[key] = [lease]
        self.keeper.add(lease)

    def untrack(self, lease: BaseLease) -> None:
        """Undo `track`: stop renewing the lease and remove it from `held_leases`. Safe to call twice."""
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
        """Accept no more callers, wake all waiters, and give them `WITHDRAW_WAIT` seconds to leave their queues. This
        includes the callers that have sent their first command and do not wait yet.
        """
        self.closed = True
        for latch in list(self._parked):
            latch.set()
        until = steady() + WITHDRAW_WAIT
        while self.callers and steady() < until:
            await self.port.pause(0.005)

    def close_parts(self) -> None:
        """Close the hub or the subscription to it, the keeper and the relay, but not the engine. Safe to call twice."""
        self.closed = True
        if self.owns_hub:
            self.hub.close()
        elif self._inbox is not None:
            self._inbox.close()
        try:
            with suppress(EngineError):  # a lease whose release could not be sent expires by itself
                self.keeper.close()
        finally:
            # Close the relay last: closing the keeper may release leases, and the relay publishes the hints for the
            # callers that wait for them.
            if self._relay is not None:
                self._relay.close()

    def after_fork(self) -> None:
        """In a forked child: take a new identity and drop the parent's leases, waiters and subscriptions."""
        self.identity = ProcessIdentity(self.engine.namespace)
        self.port.after_fork()
        if self.hub_port is not self.port:
            self.hub_port.after_fork()
        self.keeper.after_fork()
        self.hub.after_fork()
        self.hub = self._make_hub(self.identity)
        self._relay = self._new_relay()
        self._parked = set()
        self.callers = set()
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
