"""A race that certifies a set-up: many processes, a few locks, somebody who kills, pauses and cuts.

    python -m holdfast.testing.contenders --url redis://127.0.0.1:6379/0 --seconds 30
    python -m holdfast.testing.contenders --own-redis --seconds 60 --nemesis kill,pause,restart,faults

Ends with figures and, when a promise was broken, with the violations and status 1.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import holdfast.sync
from holdfast.engine.base import Read, Reading, steady
from holdfast.errors import HoldfastError
from holdfast.gate.machine import GATE, LIFE, Gate
from holdfast.testing import history
from holdfast.testing.history import Report, Snapshot
from holdfast.testing.nemesis import Cut, Fighter, Kill, Nemesis, Pause, Restart
from holdfast.testing.ports import lasting_port
from holdfast.testing.proxy import FaultProxy
from holdfast.testing.servers import RedisServer

#: Four locks and a semaphore of two: enough to meet at, few enough to queue at.
NAMES = {"north": 1, "east": 1, "south": 1, "west": 1, "pool": 2}
NAMESPACE = "holdfast-race"
#: What contenders behind a proxy add to their URL.
QUICK = "?timeout=0.5&connect_timeout=1"
#: How often the observer looks, and the nemesis checks the clock.
LOOK = 0.01
#: Contenders that were asked to stop have this long: they may wait in a queue, or for an engine that was away.
STOP_WAIT = 45.0
#: Beyond a lease's life, what a busy machine may take to notice.
SLACK = 5.0


@dataclass
class Result:
    """A race in figures."""

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
    """Contenders at work. `run()` starts them, troubles them, stops them, and judges what they did."""

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
    ) -> None:
        self.url = url
        #: Past any proxy: for the observer and the last look.
        self.direct = direct or url
        self.folder = folder
        self.processes = processes
        self.seconds = seconds
        self.ttl = ttl
        self.pace = pace
        self.nemeses = nemeses
        self.dice = random.Random(seed)
        self.seed = seed
        self.snapshots: list[Snapshot] = []
        self._fighters: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()
        self._started = 0
        #: Who was seen holding lately.
        self._holding: list[str] = []

    # ── what a nemesis may do ──

    def pick(self) -> Fighter | None:
        alive = {k: p for k, p in self._fighters.items() if k not in self._killed and p.poll() is None}
        holding = [label for lock_id in self._holding if (label := lock_id.partition(".")[0]) in alive]
        if holding and self.dice.random() < 0.7:  # trouble is where the locks are
            return alive[self.dice.choice(holding)]
        return self.dice.choice(list(alive.values())) if alive else None

    def replace(self, fighter: Fighter) -> None:
        for label, process in self._fighters.items():
            if process is fighter:
                self._killed.add(label)
        self._start()

    # ── the race ──

    def run(self) -> Result:
        with holdfast.sync.Holdfast(self.direct, namespace=NAMESPACE) as hf:
            over = threading.Event()
            observer = threading.Thread(target=self._observe, args=(hf, over))
            try:
                for _ in range(self.processes):
                    self._start()
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
            amnesia = [t for n in self.nemeses if isinstance(n, Restart) for t in n.amnesia]
            report = history.check(events, self.snapshots, permits=NAMES, amnesia=amnesia)
            report.violations += strays
            report.violations += self._last_look(hf)
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
        command = [sys.executable, "-m", "holdfast.testing.contender", self.url]
        command += [f"{name}={permits}" for name, permits in NAMES.items()]
        command += ["--folder", str(self.folder), "--label", label, "--namespace", NAMESPACE, "--api", api]
        command += ["--ttl", str(self.ttl), "--seed", str(self.seed)]
        with (self.folder / f"{label}.stderr").open("wb") as errors:
            self._fighters[label] = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors)

    def _trouble(self) -> None:
        end = steady() + self.seconds
        strike_at = steady() + self.pace
        while steady() < end:
            time.sleep(LOOK)
            for nemesis in self.nemeses:
                nemesis.tick()
            if self.nemeses and steady() >= strike_at:
                self.dice.choice(self.nemeses).strike(self, self.dice)
                strike_at = steady() + self.pace * self.dice.uniform(0.5, 1.5)
        for nemesis in self.nemeses:
            nemesis.settle()

    def _stop(self) -> list[str]:
        """Ask everybody to end. Whoever does not, or ends badly, is a violation of its own."""
        strays: list[str] = []
        for process in self._fighters.values():
            if process.stdin is not None:
                process.stdin.close()
        deadline = time.monotonic() + STOP_WAIT
        for label, process in self._fighters.items():
            try:
                status = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                strays.append(f"{label} did not stop within {STOP_WAIT:g} s")
                continue
            if label not in self._killed and status != 0:
                errors = (self.folder / f"{label}.stderr").read_text(errors="replace")[-2000:]
                strays.append(f"{label} ended with status {status}: {errors}")
        return strays

    # ── looking ──

    def _observe(self, hf: holdfast.sync.Holdfast, over: threading.Event) -> None:
        while not over.wait(LOOK):
            before = steady()
            for name, gate in self._gates(hf).items():
                self._holding = self._holding[-len(NAMES) :] + [h.lock_id for h in gate.holders]
                self.snapshots.append(
                    Snapshot(
                        name,
                        gate.seen,
                        tuple(holder.lock_id for holder in gate.holders),
                        tuple((waiter.lock_id, waiter.since) for waiter in gate.queue),
                        frozenset(waiter.lock_id for waiter in gate.queue if waiter.offer),
                        before,
                    )
                )

    @staticmethod
    def _gates(hf: holdfast.sync.Holdfast) -> dict[str, Gate]:
        readings: list[Reading[Gate] | Exception] = hf.engine.apply_many([Read(GATE, name) for name in NAMES])
        return {
            name: reading.state
            for name, reading in zip(NAMES, readings, strict=True)
            if not isinstance(reading, Exception) and reading.state is not None
        }

    def _last_look(self, hf: holdfast.sync.Holdfast) -> list[str]:
        """Nobody is left but the tickets of killed processes, and those hold nothing up for long."""
        wrong: list[str] = []
        dead: Counter[str] = Counter()
        for name in NAMES:
            found = hf.locks.inspect(name)
            for lock_id in [h.lock_id for h in found.holders] + [w.lock_id for w in found.queue]:
                if lock_id.partition(".")[0] in self._killed:
                    dead[name] += 1
                else:
                    wrong.append(f"{name}: {lock_id} has ended and is still there")
        for name, permits in NAMES.items():
            patience = self.ttl + SLACK + (LIFE / 1_000_000 if dead[name] else 0)
            gate = hf.lock(name, ttl=self.ttl) if permits == 1 else hf.semaphore(name, permits, ttl=self.ttl)
            try:
                gate.acquire(wait=patience).release()
            except HoldfastError as error:
                wrong.append(f"{name}: not free {patience:.1f} s after everybody had stopped: {error}")
        return wrong


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.testing.contenders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", default="", help="the engine to certify; default: a new SQLite file")
    parser.add_argument("--own-redis", action="store_true", help="start a Redis for the race, with an AOF")
    parser.add_argument("--forgetful", action="store_true", help="the same without an AOF: restarts forget all")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--ttl", type=float, default=1.0)
    parser.add_argument("--nemesis", default="kill,pause", help="of kill, pause, restart, faults")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-race-")))
        server = None
        if args.own_redis or args.forgetful:
            server = stack.enter_context(RedisServer(port=lasting_port(), aof=not args.forgetful))
        direct = server.url if server else args.url or f"sqlite:///{folder}/race.db"
        url = direct
        nemeses: list[Nemesis] = []
        for kind in filter(None, args.nemesis.split(",")):
            nemesis, url = _nemesis(kind, url, server, args, stack)
            nemeses.append(nemesis)
        race = Race(
            url,
            direct=direct,
            folder=folder,
            processes=args.processes,
            seconds=args.seconds,
            ttl=args.ttl,
            nemeses=nemeses,
            seed=args.seed,
        )
        result = race.run()
    sys.stdout.write(f"{result}\n" + "".join(f"VIOLATION {v}\n" for v in result.violations))
    return 1 if result.violations else 0


def _nemesis(
    kind: str, url: str, server: RedisServer | None, args: argparse.Namespace, stack: ExitStack
) -> tuple[Nemesis, str]:
    """A trouble by name, and the URL by which contenders go from then on."""
    if kind == Kill.kind:
        return Kill(), url
    if kind == Pause.kind:
        return Pause(args.ttl), url
    if kind == Restart.kind and server is not None:
        return Restart(server), url
    if kind == Cut.kind and not url.startswith(("sqlite:", "memory:")):
        parts = urlsplit(url)
        proxy = FaultProxy(parts.port or 6379, host=parts.hostname or "127.0.0.1", seed=args.seed)
        # Replies are given up sooner than by default, so that seconds see many lost ones.
        quick = url if parts.query else url + QUICK
        return Cut(proxy), stack.enter_context(proxy).instead_of(quick)
    raise SystemExit(f"--nemesis {kind}: not known, or not possible here (restart needs --own-redis, faults a Redis)")


if __name__ == "__main__":
    sys.exit(main())
