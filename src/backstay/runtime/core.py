"""What a room needs from its Backstay: the engine, the hub, the keeper, an identity, and a port to wait on."""

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
from typing import Any, Protocol

from backstay.engine.base import Carrier, Ears, Engine, WakesAfterCommit, steady
from backstay.errors import Closed, ConfigError, EngineError, EngineRefused
from backstay.hub.base import Hub, Subscription
from backstay.hub.relay import Relay
from backstay.policy import Policy
from backstay.runtime.flows import Latch, Port
from backstay.runtime.keeper import Keeper
from backstay.runtime.lease import BaseLease
from backstay.telemetry import Telemetry

#: How long a first waiter waits for its subscription before it goes on without; polling is the backstop.
INBOX_WAIT = 1.0
FOREVER = float("inf")
#: How long closing waits for waiters to withdraw.
DISMISS_WAIT = 1.0
#: Early hints kept; losing one costs a waiter its recheck time, nothing more.
EARLY = 1000


class SignallingPort(Port, Protocol):
    """A port that can also run something where its callers live, and survive a fork."""

    def signal(self, callback: Callable[[], None]) -> None: ...

    def after_fork(self) -> None: ...


class Sleeper(Protocol):
    """Somebody who waits on a channel, and is to be woken when the Backstay closes."""

    def wake(self) -> None: ...


class Identity:
    """Who this process is. New after a fork."""

    __slots__ = ("_random", "inbox", "process", "program")

    def __init__(self, namespace: str) -> None:
        host = socket.gethostname().split(".")[0] or "host"
        self.process = f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
        self.program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
        self.inbox = f"{namespace}:inbox:{self.process}"
        self._random = random.Random(os.urandom(32))

    def new_id(self) -> str:
        """128 random bits: a ticket, a lock_id. Not a secret: `inspect` shows it."""
        return f"{self._random.getrandbits(128):032x}"


class Core:
    """One per Backstay."""

    def __init__(
        self,
        *,
        engine: Engine,
        hub: Callable[[Identity], Hub],
        port: SignallingPort,
        policy: Policy,
        telemetry: Telemetry,
        hub_prefix: str = "",
        post: SignallingPort | None = None,
        owns_hub: bool = True,
        store: Callable[[], Any] | None = None,
    ) -> None:
        self.engine = engine
        self._make_store = store
        self._store: Any = None
        #: Job types by name, and who stands around them. Defined by the program, so a fork keeps them.
        self.jobs: dict[str, Any] = {}
        #: Workflows of the program's, by name.
        self.workflows: dict[str, Any] = {}
        #: Job types of Backstay's own, which every worker runs: those that decide what a workflow run does next.
        self.internals: dict[str, Any] = {}
        self.middleware: list[Any] = []
        self.port = port
        #: How the hub's operations go: the engine's own way, or that of the hub's carrier.
        self.post = post if post is not None else port
        self.hub_prefix = hub_prefix or engine.namespace
        self.policy = policy
        self.telemetry = telemetry
        self.identity = Identity(engine.namespace)
        self.keeper = Keeper(engine, telemetry, self.let_go)
        self._make_hub = hub
        self.owns_hub = owns_hub
        self.hub = hub(self.identity)
        self._relay = self._new_relay()
        self.sleepers: weakref.WeakSet[Sleeper] = weakref.WeakSet()
        #: Who waits, by ticket: a hint for a ticket sets its latch.
        self.latches: dict[str, Latch] = {}
        #: When a waiter shall look again at the latest, because a hint said so. A latch only wakes it to read this.
        self.look_at: dict[str, float] = {}
        #: Hints for tickets that nobody waits for, perhaps: not yet.
        self._early: dict[str, None] = {}
        #: Live leases by name and by the task or thread that took them: who would wait for itself?
        self.held: dict[tuple[str, object], list[BaseLease]] = {}
        #: What rooms remember beside their records, by room. A forked child begins without.
        self.notes: dict[str, Any] = {}
        self.closed = False
        self._inbox: Subscription | None = None
        #: When hints may last have passed unheard.
        self._missed_at = 0.0
        _CORES.add(self)

    def _new_relay(self) -> Relay | None:
        """The engine's wakes travel over its own hub, unless this is another's."""
        carrier = self.hub.carrier
        if carrier is None or carrier is self.engine or not isinstance(self.engine, WakesAfterCommit):
            return None
        return Relay(self.engine, self.hub, carrier, self.identity.inbox, self.hub.observe)

    @property
    def store(self) -> Any:
        """Where jobs live: a `backstay.job.store.Store`, made at first use."""
        if self._store is None:
            if self._make_store is None:
                raise ConfigError("this Backstay was made without a job store")
            self._store = self._make_store()
        return self._store

    @property
    def foreign_carrier(self) -> Carrier | None:
        """What was opened for the hub alone, and is to be closed with it."""
        carrier = self.hub.carrier
        return carrier if self.owns_hub and carrier is not self.engine else None

    def inbox(self, ears: Ears | None) -> str:
        """The channel on which a caller is told of its turn."""
        return ears.channel(self.identity.inbox) if ears else self.identity.inbox

    async def listen(self, ears: Ears | None, since: float) -> bool:
        """Hear a caller's inbox. True when a hint may have passed unheard after `since`: then it looks once more
        before it parks.
        """
        if ears:
            try:
                return ears.of_this_thread().listen(self.inbox(ears), self._woken)
            except EngineRefused:
                return False  # nobody may tell us: then we look by ourselves, as often as the engine says
            except EngineError:
                return True  # the next command finds out what is the matter
        if self._inbox is not None and self._inbox.is_ready:
            return self._missed_at >= since
        if self._inbox is not None and self._inbox.error is None:
            return False  # somebody is opening it; when it is heard, everybody looks
        latch = self.port.latch()
        inbox = self._inbox = self.hub.subscribe(
            self.identity.inbox, self._woken, lambda: self._listening(latch), prompt=True
        )
        if inbox.is_ready:  # perhaps before it was ours to ask, and nobody has been told
            self._woken(None)
        await self.port.park(latch, INBOX_WAIT)
        return inbox.is_ready  # if not, nobody can tell us: then we look by ourselves, as often as the engine says

    def _listening(self, latch: Latch) -> None:
        """The inbox is heard from now on, or never. Others may have begun to wait meanwhile: they look once more."""
        latch.set()
        if self._inbox is None or self._inbox.error is None:
            self._woken(None)

    def _woken(self, hint: str | None) -> None:
        """A hint is a ticket: look now; or a ticket and milliseconds: look then."""
        if hint is None:  # something may have been missed: everybody looks
            self._missed_at = steady()
            for ticket in list(self.latches):
                self._look(ticket, 0.0)
            return
        if latch := self.latches.get(hint):
            self.look_at[hint] = 0.0
            latch.set()
            return
        ticket, _, pause = hint.partition(" ")
        if pause:
            if pause.isdecimal():
                self._look(ticket, steady() + int(pause) / 1000)
            return
        # Written first, looked at second, here and in `await_hint`: one of the two sees the other.
        if len(self._early) > EARLY:
            self._early.clear()
        self._early[ticket] = None
        if ticket in self.latches:
            self._early.pop(ticket, None)
            self._look(ticket, 0.0)

    def _look(self, ticket: str, at: float) -> None:
        if latch := self.latches.get(ticket):
            self.look_at[ticket] = min(self.look_at.get(ticket, FOREVER), at)
            latch.set()

    def await_hint(self, ears: Ears | None, ticket: str) -> Latch:
        """A latch for a ticket; its time to look is now when its hint came before its reply."""
        latch = self.latches[ticket] = ears.of_this_thread() if ears else self.port.latch()
        if ticket in self._early:
            self._early.pop(ticket, None)
            self.look_at[ticket] = 0.0
        return latch

    def forget_hint(self, ticket: str) -> None:
        self.latches.pop(ticket, None)
        self.look_at.pop(ticket, None)

    async def nap(self, ticket: str, latch: Latch, nap: float, started: float, wait: float | None) -> bool:
        """Sleep until it is time to look again. False: the caller's own time is over."""
        until = steady() + nap
        ends = None if wait is None else started + wait
        while True:
            now = steady()
            if ends is not None and now >= ends:
                return False
            look_at = min(until, self.look_at.get(ticket, until))
            if now >= look_at:
                self.look_at.pop(ticket, None)
                return True
            await self.port.park(latch, look_at - now if ends is None else min(look_at, ends) - now)
            if self.closed:
                self.check_open()
            latch.clear()

    def hold(self, lease: BaseLease) -> None:
        key = (lease.name, lease.owner)
        if key in self.held:
            self.held[key].append(lease)
        else:
            self.held[key] = [lease]
        self.keeper.add(lease)

    def let_go(self, lease: BaseLease) -> None:
        self.keeper.discard(lease)
        key = (lease.name, lease.owner)
        leases = self.held.get(key)
        if leases and lease in leases:
            if len(leases) == 1:
                del self.held[key]
            else:
                leases.remove(lease)

    def check_open(self) -> None:
        if self.closed:
            raise Closed("this Backstay is closed; make a new one")

    async def dismiss(self) -> None:
        """No more callers: those who wait are told, and have a moment to leave the queue."""
        self.closed = True
        for sleeper in list(self.sleepers):
            sleeper.wake()
        until = steady() + DISMISS_WAIT
        while self.latches and steady() < until:
            self._woken(None)
            await self.port.pause(0.005)

    def close_parts(self) -> None:
        """Everything but the engine. Safe twice."""
        self.closed = True
        if self.owns_hub:
            self.hub.close()
        elif self._inbox is not None:
            self._inbox.close()
        try:
            with suppress(EngineError):  # what could not be said runs out by itself
                self.keeper.close()
        finally:
            if self._relay is not None:  # last: whoever waits for what the keeper gave back is to be told
                self._relay.close()

    def after_fork(self) -> None:
        """A new process: a new identity, nobody's leases, nobody's subscribers."""
        self.identity = Identity(self.engine.namespace)
        self.port.after_fork()
        if self.post is not self.port:
            self.post.after_fork()
        self.keeper.after_fork()
        self.hub.after_fork()
        self.hub = self._make_hub(self.identity)
        self._relay = self._new_relay()
        self.sleepers = weakref.WeakSet()
        self.latches = {}
        self.look_at = {}
        self._early = {}
        self.held = {}
        self.notes = {}
        self._inbox = None


_CORES: weakref.WeakSet[Core] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    cores = list(_CORES)
    carriers = [core.hub.carrier for core in cores if core.hub.carrier is not None]
    for engine in {id(engine): engine for engine in (*(core.engine for core in cores), *carriers)}.values():
        engine.after_fork()  # once each: cores may share them
    for core in cores:
        core.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
