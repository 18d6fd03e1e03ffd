"""A race: many processes compete for a few locks under kills, pauses and cut connections. At the end a checker searches
the recorded history for violations.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import backstay.sync
from backstay.engine.base import Read, Reading, steady
from backstay.errors import BackstayError
from backstay.gate.machine import GATE, LIFE, Gate
from backstay.testing.histories import history
from backstay.testing.histories.history import Amnesia, Event, Report
from backstay.testing.histories.order import Snapshot, Waiting
from support.nemeses.nemesis import Cut, Fighter, Nemesis
from support.programs import child_environment

#: The permits of each name: four locks and a semaphore with two permits, few enough that queues form.
NAMES = {"north": 1, "east": 1, "south": 1, "west": 1, "pool": 2}
NAMESPACE = "backstay-race"
#: URL options of contenders behind a proxy: shorter timeouts than the default, so that a race of seconds has many lost
#: replies.
QUICK = "?timeout=0.5&connect_timeout=1"
#: Seconds between two snapshots of the observer, and between two ticks of the nemeses.
LOOK = 0.01
#: Seconds that contenders have to stop: they may wait in a queue, or for an engine that was unreachable.
STOP_WAIT = 45.0
#: Seconds that a hanging contender has to dump its stacks.
LAST_WORDS = 0.5
#: Seconds that a busy machine may take, after a lease expires, to free the lock.
SLACK = 5.0


@dataclass
class Result:
    """The report of a race, and the number of faults by kind."""

    report: Report
    troubles: Counter[str] = field(default_factory=Counter[str])
    strikes: Counter[str] = field(default_factory=Counter[str])

    @property
    def violations(self) -> list[str]:
        return self.report.violations

    def __str__(self) -> str:
        troubles = ", ".join(f"{kind} {n}" for kind, n in sorted(self.troubles.items()))
        strikes = ", ".join(f"{kind} {n}" for kind, n in sorted(self.strikes.items()))
        return f"{self.report}; {troubles or 'no troubles'}" + (f" ({strikes})" if strikes else "")


class Race:
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
        contender: Sequence[str] = ("-m", "support.contender"),
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
        self._fighters: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()
        self._started = 0
        #: The lock ids of the holders in recent snapshots.
        self._holding: list[str] = []

    # ── methods that a nemesis calls ──

    def pick(self) -> Fighter | None:
        alive = {k: p for k, p in self._fighters.items() if k not in self._killed and p.poll() is None}
        holding = [label for lock_id in self._holding if (label := lock_id.partition(".")[0]) in alive]
        if holding and self.dice.random() < 0.7:  # prefer a process that holds a lock
            return alive[self.dice.choice(holding)]
        return self.dice.choice(list(alive.values())) if alive else None

    def replace(self, fighter: Fighter) -> None:
        for label, process in self._fighters.items():
            if process is fighter:
                self._killed.add(label)
        self._start()

    # ── the race ──

    def run(self) -> Result:
        with backstay.sync.Backstay(self.direct, namespace=NAMESPACE) as stay:
            over = threading.Event()
            observer = threading.Thread(target=self._observe, args=(stay, over))
            try:
                for _ in range(self.processes):
                    self._start()
                self._await_start()
                observer.start()
                self._trouble()
                strays = self._stop()
            finally:
                for process in self._fighters.values():
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
            report.violations += strays
            report.violations += self._last_look(stay, _forgotten(events, amnesia))
        result = Result(report)
        for nemesis in self.nemeses:
            result.troubles += nemesis.done
            if isinstance(nemesis, Cut):
                result.strikes += nemesis.struck
        return result

    def _start(self) -> None:
        label = f"p{self._started}"
        api = "blocking" if self._started % 2 else "async"
        self._started += 1
        command = [sys.executable, *self.contender, self.url]
        command += [f"{name}={permits}" for name, permits in NAMES.items()]
        command += ["--folder", str(self.folder), "--label", label, "--namespace", NAMESPACE, "--api", api]
        command += ["--ttl", str(self.ttl), "--seed", str(self.seed)]
        with (self.folder / f"{label}.stderr").open("wb") as errors:
            self._fighters[label] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=errors, env=child_environment()
            )

    def _await_start(self) -> None:
        """Wait until all processes run. Starting eight of them takes a while on a busy machine."""
        deadline = steady() + STOP_WAIT
        while steady() < deadline and len(list(self.folder.glob("*" + history.SUFFIX))) < self.processes:
            time.sleep(LOOK)

    def _trouble(self) -> None:
        end = steady() + self.seconds
        turns: list[Nemesis] = []
        strike_at = steady() + self.pace
        while steady() < end:
            time.sleep(LOOK)
            for nemesis in self.nemeses:
                nemesis.tick()
            if self.nemeses and steady() >= strike_at:
                turns = turns or self.dice.sample(self.nemeses, len(self.nemeses))
                turns.pop().strike(self, self.dice)
                strike_at = steady() + self.pace * self.dice.uniform(0.5, 1.5)
        for nemesis in self.nemeses:
            nemesis.settle()

    def _stop(self) -> list[str]:
        """Stop all contenders. Returns a violation for each that does not stop or that exits with an error."""
        strays: list[str] = []
        for process in self._fighters.values():
            if process.stdin is not None:
                process.stdin.close()
        deadline = time.monotonic() + STOP_WAIT
        for label, process in self._fighters.items():
            try:
                status = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGUSR1)  # it dumps the stacks of its threads and tasks
                time.sleep(LAST_WORDS)
                strays.append(f"{label} did not stop within {STOP_WAIT:g} s: {self._last_words(label, 8000)}")
                continue
            if label not in self._killed and status != 0:
                strays.append(f"{label} ended with status {status}: {self._last_words(label)}")
        return strays

    def _last_words(self, label: str, most: int = 2000) -> str:
        return (self.folder / f"{label}.stderr").read_text(errors="replace")[-most:]

    # ── observing ──

    def _observe(self, stay: backstay.sync.Backstay, over: threading.Event) -> None:
        while not over.wait(LOOK):
            before = steady()
            for name, gate in self._gates(stay).items():
                self._holding = self._holding[-len(NAMES) :] + [h.lock_id for h in gate.holders]
                self.snapshots.append(
                    Snapshot(
                        name,
                        gate.seen,
                        tuple(holder.lock_id for holder in gate.holders),
                        tuple(Waiting(w.lock_id, w.since, w.alive - LIFE, w.offer) for w in gate.queue),
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

    def _last_look(self, stay: backstay.sync.Backstay, forgotten: set[str]) -> list[str]:
        """Check the locks after all contenders have stopped. Only tickets of killed processes and of attempts that the
        engine lost may be left, and each lock must become free soon.
        """
        wrong: list[str] = []
        dead: Counter[str] = Counter()
        for name in NAMES:
            found = stay.locks.inspect(name)
            for lock_id in [h.lock_id for h in found.holders] + [w.lock_id for w in found.queue]:
                if lock_id.partition(".")[0] in self._killed or lock_id in forgotten:
                    dead[name] += 1
                else:
                    wrong.append(f"{name}: {lock_id} has ended and is still there")
        for name, permits in NAMES.items():
            patience = self.ttl + SLACK + (LIFE / 1_000_000 if dead[name] else 0)
            gate = stay.lock(name, ttl=self.ttl) if permits == 1 else stay.semaphore(name, permits, ttl=self.ttl)
            try:
                gate.acquire(wait=patience).release()
            except BackstayError as error:
                wrong.append(f"{name}: not free {patience:.1f} s after everybody had stopped: {error}")
        return wrong


def _forgotten(events: list[Event], amnesia: list[Amnesia]) -> set[str]:
    """Return the attempts that began before the engine lost writes: it may still show them after their end."""
    asked = [event for event in events if event.kind == "asked"]
    return {e.id for e in asked if any(e.t <= moment.t and moment.concerns(e.name) for moment in amnesia)}
