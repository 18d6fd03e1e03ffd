"""The processes of a race, the schedule by which faults are injected into them, and the result of the race."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from backstay.engine.base import steady
from support.nemeses.nemesis import Cut, Nemesis, ProcessPool, RaceProcess
from support.programs import child_environment

#: Seconds that a hanging process has to dump its stacks.
DUMP_WAIT = 0.5


class RaceProcesses:
    """The processes of a race by label. Each writes its standard error to `LABEL.stderr` in the race's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.all: dict[str, subprocess.Popen[bytes]] = {}
        #: The labels of processes that a nemesis has killed or asked to exit.
        self.replaced: set[str] = set()

    def start(self, label: str, command: list[str], stdin: int | None = None) -> None:
        with (self._folder / f"{label}.stderr").open("wb") as errors:
            self.all[label] = subprocess.Popen(command, stdin=stdin, stderr=errors, env=child_environment())

    def running(self) -> dict[str, subprocess.Popen[bytes]]:
        return {k: p for k, p in self.all.items() if k not in self.replaced and p.poll() is None}

    def mark_replaced(self, process: RaceProcess) -> None:
        self.replaced |= {label for label, one in self.all.items() if one is process}

    def await_exit(self, seconds: float, is_expected: Callable[[str, int], bool]) -> list[str]:
        """Wait until all processes have exited. Returns a violation for each that does not exit in time, which is
        killed, and for each whose exit status is not expected.
        """
        violations: list[str] = []
        deadline = time.monotonic() + seconds
        for label, process in self.all.items():
            try:
                status = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGUSR1)  # the process dumps the stacks of its threads and tasks
                time.sleep(DUMP_WAIT)
                violations.append(f"{label} did not stop within {seconds:g} s: {self._errors(label)}")
                process.kill()
                process.wait()
                continue
            if not is_expected(label, status):
                violations.append(f"{label} ended with status {status}: {self._errors(label)}")
        return violations

    def _errors(self, label: str) -> str:
        return (self._folder / f"{label}.stderr").read_text(errors="replace")[-8000:]


class FaultSchedule:
    """Lets each nemesis inject a fault in turn, in random order, one about every `pace` seconds."""

    def __init__(self, nemeses: Sequence[Nemesis], pace: float, dice: random.Random) -> None:
        self._nemeses = nemeses
        self._pace = pace
        self._dice = dice
        self._turns: list[Nemesis] = []
        self._next_at = steady() + pace

    def tick(self, pool: ProcessPool) -> None:
        """Let all nemeses tick, and inject the next fault if it is due."""
        for nemesis in self._nemeses:
            nemesis.tick()
        if self._nemeses and steady() >= self._next_at:
            self._turns = self._turns or self._dice.sample(self._nemeses, len(self._nemeses))
            self._turns.pop().inject(pool, self._dice)
            self._next_at = steady() + self._pace * self._dice.uniform(0.5, 1.5)

    def stop(self) -> None:
        for nemesis in self._nemeses:
            nemesis.stop()


class CheckedReport(Protocol):
    violations: list[str]


R = TypeVar("R", bound=CheckedReport)


@dataclass
class Result(Generic[R]):
    """The checker's report of a race, its duration, and the number of injected faults by name."""

    report: R
    seconds: float
    faults: Counter[str] = field(default_factory=Counter[str])
    #: The requests to which the proxy applied a rule, by the rule's action.
    proxy_faults: Counter[str] = field(default_factory=Counter[str])

    @classmethod
    def of(cls, report: Any, seconds: float, nemeses: Sequence[Nemesis]) -> Result[Any]:
        result = cls(report, seconds)
        for nemesis in nemeses:
            result.faults += nemesis.counts
            if isinstance(nemesis, Cut):
                result.proxy_faults += nemesis.applied
        return result

    @property
    def violations(self) -> list[str]:
        return self.report.violations

    def __str__(self) -> str:
        counts = ", ".join(f"{kind} {n}" for kind, n in sorted(self.faults.items()))
        details = ", ".join(f"{kind} {n}" for kind, n in sorted(self.proxy_faults.items()))
        return f"{self.report}, {self.seconds:.1f} s; {counts or 'no faults'}" + (f" ({details})" if details else "")
