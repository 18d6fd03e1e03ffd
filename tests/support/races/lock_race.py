"""A race: many processes compete for a few locks under kills, pauses and cut connections. At the end a checker searches
the recorded history for violations.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import backstay.sync
from backstay.engine.base import Read, Reading, steady
from backstay.errors import BackstayError
from backstay.gate.machine import GATE, LIFE, Gate
from backstay.testing.histories import history
from backstay.testing.histories.history import Amnesia, HistoryEvent, HistoryReport
from backstay.testing.histories.order import QueuedWaiter, Snapshot
from support.nemeses.nemesis import Nemesis, RaceProcess
from support.races.processes import FaultSchedule, RaceProcesses, Result

#: The permits of each name: four locks and a semaphore with two permits, few enough that queues form.
NAMES = {"north": 1, "east": 1, "south": 1, "west": 1, "pool": 2}
NAMESPACE = "backstay-race"
#: Seconds between two snapshots of the observer, and between two ticks of the nemeses.
INTERVAL = 0.01
#: Seconds that contenders have to stop: they may wait in a queue, or for an engine that was unreachable.
STOP_WAIT = 45.0
#: Seconds that a busy machine may take, after a lease expires, to free the lock.
SLACK = 5.0


class LockRace:
    """`run()` starts the contenders, injects faults, stops the contenders, and checks the history."""

    def __init__(
        self,
        url: str,
        *,
        folder: Path,
        direct: str = "",
        processes: int = 8,
        seconds: float = 8.0,
        ttl: float = 1.0,
        pace: float = 0.6,
        nemeses: Sequence[Nemesis] = (),
        seed: int = 0,
        contender: Sequence[str] = ("-m", "support.races.contender"),
    ) -> None:
        self.url = url
        #: The URL without a proxy, for the observer and the final check.
        self.direct = direct or url
        self.folder = folder
        self.processes = processes
        self.seconds = seconds
        self.ttl = ttl
        self.pace = pace
        self.nemeses = nemeses
        self.dice = random.Random(seed)
        self.seed = seed
        #: The arguments of the Python interpreter that runs a contender.
        self.contender = contender
        self.snapshots: list[Snapshot] = []
        self._processes = RaceProcesses(folder)
        #: The lock ids of the holders in recent snapshots.
        self._holding: list[str] = []

    # ── methods that a nemesis calls ──

    def pick(self) -> RaceProcess | None:
        alive = self._processes.running()
        holding = [label for lock_id in self._holding if (label := lock_id.partition(".")[0]) in alive]
        if holding and self.dice.random() < 0.7:  # prefer a process that holds a lock
            return alive[self.dice.choice(holding)]
        return self.dice.choice(list(alive.values())) if alive else None

    def replace(self, process: RaceProcess) -> None:
        self._processes.mark_replaced(process)
        self._start()

    # ── the race ──

    def run(self) -> Result[HistoryReport]:
        began = steady()
        with backstay.sync.Backstay(self.direct, namespace=NAMESPACE) as stay:
            over = threading.Event()
            observer = threading.Thread(target=self._observe, args=(stay, over))
            try:
                for _ in range(self.processes):
                    self._start()
                self._await_start()
                observer.start()
                self._inject_faults()
                failures = self._stop()
            finally:
                for process in self._processes.all.values():
                    if process.poll() is None:
                        process.kill()
                    process.wait()
                    if process.stdin is not None:
                        process.stdin.close()
                over.set()
                if observer.is_alive():
                    observer.join()
            events = history.read(self.folder)
            amnesia = [moment for nemesis in self.nemeses for moment in nemesis.amnesia]
            report = history.check(events, self.snapshots, permits=NAMES, amnesia=amnesia, ttl=self.ttl)
            report.violations += failures
            report.violations += self._check_locks(stay, _lost_attempts(events, amnesia))
        return Result.of(report, steady() - began, self.nemeses)

    def _start(self) -> None:
        started = len(self._processes.all)
        label = f"p{started}"
        api = "blocking" if started % 2 else "async"
        command = [sys.executable, *self.contender, self.url]
        command += [f"{name}={permits}" for name, permits in NAMES.items()]
        command += ["--folder", str(self.folder), "--label", label, "--namespace", NAMESPACE, "--api", api]
        command += ["--ttl", str(self.ttl), "--seed", str(self.seed)]
        self._processes.start(label, command, stdin=subprocess.PIPE)

    def _await_start(self) -> None:
        """Wait until all processes run. Starting eight of them takes a while on a busy machine."""
        deadline = steady() + STOP_WAIT
        while steady() < deadline and len(list(self.folder.glob("*" + history.SUFFIX))) < self.processes:
            time.sleep(INTERVAL)

    def _inject_faults(self) -> None:
        end = steady() + self.seconds
        schedule = FaultSchedule(self.nemeses, self.pace, self.dice)
        while steady() < end:
            time.sleep(INTERVAL)
            schedule.tick(self)
        schedule.stop()

    def _stop(self) -> list[str]:
        """Stop all contenders. Returns a violation for each that does not stop or that exits with an error."""
        for process in self._processes.all.values():
            if process.stdin is not None:
                process.stdin.close()
        replaced = self._processes.replaced
        return self._processes.await_exit(STOP_WAIT, lambda label, status: label in replaced or status == 0)

    # ── observing ──

    def _observe(self, stay: backstay.sync.Backstay, over: threading.Event) -> None:
        while not over.wait(INTERVAL):
            before = steady()
            for name, gate in self._gates(stay).items():
                self._holding = self._holding[-len(NAMES) :] + [h.lock_id for h in gate.holders]
                self.snapshots.append(
                    Snapshot(
                        name,
                        gate.seen,
                        tuple(holder.lock_id for holder in gate.holders),
                        tuple(QueuedWaiter(w.lock_id, w.since, w.alive - LIFE, w.offer) for w in gate.queue),
                        before,
                    )
                )

    @staticmethod
    def _gates(stay: backstay.sync.Backstay) -> dict[str, Gate]:
        readings: list[Reading[Gate] | Exception] = stay.engine.apply_many([Read(GATE, name) for name in NAMES])
        return {
            name: reading.state
            for name, reading in zip(NAMES, readings, strict=True)
            if not isinstance(reading, Exception) and reading.state is not None
        }

    def _check_locks(self, stay: backstay.sync.Backstay, lost: set[str]) -> list[str]:
        """Check the locks after all contenders have stopped. Only tickets of killed processes and of attempts that the
        engine lost may be left, and each lock must become free soon.
        """
        violations: list[str] = []
        dead: Counter[str] = Counter()
        for name in NAMES:
            found = stay.locks.inspect(name)
            for lock_id in [h.lock_id for h in found.holders] + [w.lock_id for w in found.queue]:
                if lock_id.partition(".")[0] in self._processes.replaced or lock_id in lost:
                    dead[name] += 1
                else:
                    violations.append(f"{name}: {lock_id} has ended and is still stored")
        for name, permits in NAMES.items():
            patience = self.ttl + SLACK + (LIFE / 1_000_000 if dead[name] else 0)
            gate = stay.lock(name, ttl=self.ttl) if permits == 1 else stay.semaphore(name, permits, ttl=self.ttl)
            try:
                gate.acquire(wait=patience).release()
            except BackstayError as error:
                violations.append(f"{name}: not free {patience:.1f} s after all contenders had stopped: {error}")
        return violations


def _lost_attempts(events: list[HistoryEvent], amnesia: list[Amnesia]) -> set[str]:
    """Return the attempts that began before the engine lost writes: it may still show them after their end."""
    asked = [event for event in events if event.kind == "asked"]
    return {e.id for e in asked if any(e.t <= moment.t and moment.concerns(e.name) for moment in amnesia)}
