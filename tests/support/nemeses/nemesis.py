"""Who makes a race hard: kills, pauses, restarts and cuts, at random but with a seed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from typing import Protocol

from backstay.engine.base import steady
from backstay.testing.histories.history import Amnesia
from backstay.testing.proxy import Action, FaultProxy
from backstay.testing.servers import RedisServer


class Fighter(Protocol):
    """A contender process as a nemesis sees it."""

    @property
    def pid(self) -> int: ...


class Ring(Protocol):
    """Where the contenders are."""

    def pick(self) -> Fighter | None:
        """A running contender, if any."""
        ...

    def replace(self, fighter: Fighter) -> None:
        """Start another contender in place of a killed one."""
        ...


class Restartable(Protocol):
    """A server that can be killed and comes back on the same port."""

    def kill(self) -> None: ...

    def start(self) -> object: ...


class Nemesis:
    """One kind of trouble. `strike` causes it, `tick` ends what has lasted long enough, `settle` ends all of it."""

    #: Its name on the command line, and in the figures.
    kind = ""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        #: When something that was answered may have been forgotten.
        self.amnesia: list[Amnesia] = []

    def strike(self, ring: Ring, dice: random.Random) -> None:
        raise NotImplementedError

    def tick(self) -> None:
        """Called often."""

    def settle(self) -> None:
        """The race is over: leave everything whole."""


class Kill(Nemesis):
    """kill -9, and a new process in its place."""

    kind = "kill"

    def strike(self, ring: Ring, dice: random.Random) -> None:
        if fighter := ring.pick():
            os.kill(fighter.pid, signal.SIGKILL)
            self.done["kills"] += 1
            ring.replace(fighter)


class Pause(Nemesis):
    """SIGSTOP for longer than a lease lives, then SIGCONT: the classic stale holder."""

    kind = "pause"

    def __init__(self, ttl: float) -> None:
        super().__init__()
        self._ttl = ttl
        self._stopped: dict[int, float] = {}
        #: When (steady) each process went on.
        self.resumed: dict[int, list[float]] = {}

    def strike(self, ring: Ring, dice: random.Random) -> None:
        fighter = ring.pick()
        if fighter and fighter.pid not in self._stopped and len(self._stopped) < 2:
            os.kill(fighter.pid, signal.SIGSTOP)
            self._stopped[fighter.pid] = steady() + self._ttl * dice.uniform(1.1, 1.6)
            self.done["pauses"] += 1

    def tick(self) -> None:
        for pid in [pid for pid, until in self._stopped.items() if steady() >= until]:
            self._resume(pid)

    def settle(self) -> None:
        for pid in list(self._stopped):
            self._resume(pid)

    def _resume(self, pid: int) -> None:
        del self._stopped[pid]
        self.resumed.setdefault(pid, []).append(steady())
        with contextlib.suppress(ProcessLookupError):  # killed meanwhile
            os.kill(pid, signal.SIGCONT)


class Restart(Nemesis):
    """kill -9 for the server, and a new one on the same port. Without an AOF it has forgotten everything."""

    kind = "restart"

    def __init__(self, server: Restartable) -> None:
        super().__init__()
        self._server = server
        self._forgets = isinstance(server, RedisServer) and not server.aof
        #: When everything was forgotten.
        self.amnesia: list[Amnesia] = []

    def strike(self, ring: Ring, dice: random.Random) -> None:
        self._server.kill()
        if self._forgets:
            self.amnesia.append(Amnesia(steady(), time.time_ns() // 1000))
        self._server.start()
        self.done["restarts"] += 1


class Cut(Nemesis):
    """The network between contenders and server: replies lost or late, connections cut, requests hoarded."""

    kind = "faults"
    ACTIONS: tuple[Action, ...] = ("drop", "delay", "late", "cut-before", "cut-after", "blackhole", "hold", "hold")
    #: A fault lasts at most this long; hoarded requests come out later, when their callers have given up.
    LONGEST, LATEST = 0.5, 3.0
    #: Not every server answers half a conversation.
    ANSWER = 0.5

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__()
        self._proxy = proxy
        self.struck = proxy.struck
        self._heal_at = self._deliver_at = 0.0

    def strike(self, ring: Ring, dice: random.Random) -> None:
        proxy = self._proxy
        more = (proxy.drop_replies, proxy.cut_all)
        nth = dice.randrange(len(self.ACTIONS) + len(more))
        if nth < len(self.ACTIONS):
            proxy.rule(self.ACTIONS[nth], chance=dice.choice((0.1, 0.5, 1.0)), seconds=dice.uniform(0.01, 0.3))
        else:
            more[nth - len(self.ACTIONS)]()
        self._heal_at = steady() + dice.uniform(0.05, self.LONGEST)
        self._deliver_at = self._deliver_at or steady() + dice.uniform(self.LONGEST, self.LATEST)
        self.done["faults"] += 1

    def tick(self) -> None:
        if self._heal_at and steady() >= self._heal_at:
            self._heal_at = 0.0
            self._proxy.heal()
        if self._deliver_at and steady() >= self._deliver_at:
            self._deliver_at = 0.0
            self.done["delivered late"] += len(self._proxy.deliver_held(self.ANSWER))

    def settle(self) -> None:
        self._proxy.heal()
        self.done["delivered late"] += len(self._proxy.deliver_held(self.ANSWER))
