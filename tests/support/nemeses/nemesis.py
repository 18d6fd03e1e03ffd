"""Faults for any race: kills and pauses of its processes, server restarts, and network faults."""

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


class RaceProcess(Protocol):
    """A process that takes part in a race."""

    @property
    def pid(self) -> int: ...


class ProcessPool(Protocol):
    """The processes of a race, from which a nemesis picks its victims."""

    def pick(self) -> RaceProcess | None:
        """Return a random running process, or None if none runs."""
        ...

    def replace(self, process: RaceProcess) -> None:
        """Start a new process in place of one that was killed or asked to exit."""
        ...


class Restartable(Protocol):
    """A server that can be killed and started again on the same port."""

    def kill(self) -> None: ...

    def start(self) -> object: ...


class Nemesis:
    """Injects one kind of fault. All random choices come from the race's seeded `dice`."""

    #: The name of this kind of fault on the command line.
    kind = ""

    def __init__(self) -> None:
        #: The number of injected faults by name.
        self.counts: Counter[str] = Counter()
        #: The times at which the server may have lost writes that it had acknowledged.
        self.amnesia: list[Amnesia] = []

    def inject(self, pool: ProcessPool, dice: random.Random) -> None:
        """Inject one fault."""
        raise NotImplementedError

    def tick(self) -> None:
        """End faults that have lasted long enough. The race calls this every few milliseconds."""

    def stop(self) -> None:
        """End all faults that still last, at the end of the race."""


class Kill(Nemesis):
    """Kills a process with SIGKILL and starts a new one."""

    kind = "kill"

    def __init__(self) -> None:
        super().__init__()
        #: The time (`steady()`) of each kill, by process id.
        self.killed_at: dict[int, float] = {}

    def inject(self, pool: ProcessPool, dice: random.Random) -> None:
        if process := pool.pick():
            os.kill(process.pid, signal.SIGKILL)
            self.killed_at[process.pid] = steady()
            self.counts["kills"] += 1
            pool.replace(process)


class Term(Nemesis):
    """Sends SIGTERM to a process and starts a new one, as a deployment does."""

    kind = "term"

    def inject(self, pool: ProcessPool, dice: random.Random) -> None:
        if process := pool.pick():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            self.counts["terms"] += 1
            pool.replace(process)


class Pause(Nemesis):
    """Suspends a process for longer than its lease (SIGSTOP, later SIGCONT), so that it resumes as a stale holder."""

    kind = "pause"

    def __init__(self, ttl: float) -> None:
        super().__init__()
        self._ttl = ttl
        #: The time at which each suspended process is resumed, by process id.
        self._stopped: dict[int, float] = {}
        #: The times (`steady()`) at which each process was resumed, by process id.
        self.resumed: dict[int, list[float]] = {}

    def inject(self, pool: ProcessPool, dice: random.Random) -> None:
        process = pool.pick()
        if process and process.pid not in self._stopped and len(self._stopped) < 2:
            os.kill(process.pid, signal.SIGSTOP)
            self._stopped[process.pid] = steady() + self._ttl * dice.uniform(1.1, 1.6)
            self.counts["pauses"] += 1

    def tick(self) -> None:
        for pid in [pid for pid, until in self._stopped.items() if steady() >= until]:
            self._resume(pid)

    def stop(self) -> None:
        for pid in list(self._stopped):
            self._resume(pid)

    def _resume(self, pid: int) -> None:
        del self._stopped[pid]
        self.resumed.setdefault(pid, []).append(steady())
        with contextlib.suppress(ProcessLookupError):  # it was killed while it was suspended
            os.kill(pid, signal.SIGCONT)


class Restart(Nemesis):
    """Kills the server with SIGKILL and starts it again on the same port. A Redis without an AOF loses all its data."""

    kind = "restart"

    def __init__(self, server: Restartable) -> None:
        super().__init__()
        self._server = server
        self._loses_data = isinstance(server, RedisServer) and not server.aof

    def inject(self, pool: ProcessPool, dice: random.Random) -> None:
        self._server.kill()
        if self._loses_data:
            self.amnesia.append(Amnesia(steady(), time.time_ns() // 1000))
        self._server.start()
        self.counts["restarts"] += 1


class Cut(Nemesis):
    """Network faults between processes and server: lost or delayed replies, cut connections, requests held back."""

    kind = "faults"
    ACTIONS: tuple[Action, ...] = ("drop", "delay", "late", "cut-before", "cut-after", "blackhole", "hold", "hold")
    #: Seconds: a fault lasts at most LONGEST. Held requests are delivered LONGEST to LATEST seconds after it began,
    #: when their callers have given up.
    LONGEST, LATEST = 0.5, 3.0
    #: Seconds to wait for the reply to a held request. A server sends none if only part of the request was held.
    ANSWER = 0.5

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__()
        self._proxy = proxy
        self.applied = proxy.applied
        self._heal_at = self._deliver_at = 0.0

    def inject(self, pool: ProcessPool, dice: random.Random) -> None:
        proxy = self._proxy
        more = (proxy.drop_replies, proxy.cut_all)
        nth = dice.randrange(len(self.ACTIONS) + len(more))
        if nth < len(self.ACTIONS):
            proxy.rule(self.ACTIONS[nth], chance=dice.choice((0.1, 0.5, 1.0)), seconds=dice.uniform(0.01, 0.3))
        else:
            more[nth - len(self.ACTIONS)]()
        self._heal_at = steady() + dice.uniform(0.05, self.LONGEST)
        self._deliver_at = self._deliver_at or steady() + dice.uniform(self.LONGEST, self.LATEST)
        self.counts["faults"] += 1

    def tick(self) -> None:
        if self._heal_at and steady() >= self._heal_at:
            self._heal_at = 0.0
            self._proxy.heal()
        if self._deliver_at and steady() >= self._deliver_at:
            self._deliver_at = 0.0
            self.counts["delivered late"] += len(self._proxy.deliver_held(self.ANSWER))

    def stop(self) -> None:
        self._proxy.heal()
        self.counts["delivered late"] += len(self._proxy.deliver_held(self.ANSWER))
