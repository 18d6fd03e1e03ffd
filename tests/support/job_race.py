"""A race of workers: a few processes run many jobs under kills, pauses, restarts and network faults. At the end a
checker searches the recorded history for violations.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import backstay.sync
from backstay.engine.base import steady
from backstay.errors import EngineError, EngineUnavailable
from backstay.job import flows
from backstay.job.model import Job, NewJob
from backstay.job.store import JOB_STORE
from backstay.runtime.flows import run
from backstay.testing.histories import job_history
from backstay.testing.histories.job_history import JobReport, Outcome
from support.chaos_worker import chores
from support.nemeses.nemesis import Cut, Fighter, Kill, Nemesis, Pause, Ring
from support.programs import child_environment

NAMESPACE = "backstay-job-race"
BULK = 500
LOOK = 0.01
#: Seconds between two counts of the completed jobs.
COUNT = 0.5
#: Seconds that a busy machine may take, after the last fault and the expiry of the leases, to complete the remaining
#: jobs.
PATIENCE = 120.0
STOP_WAIT = 30.0


class Term(Nemesis):
    """Sends SIGTERM to a process and starts a new one, as a deployment does."""

    kind = "term"

    def strike(self, ring: Ring, dice: random.Random) -> None:
        if fighter := ring.pick():
            with contextlib.suppress(ProcessLookupError):
                os.kill(fighter.pid, signal.SIGTERM)
            self.done["terms"] += 1
            ring.replace(fighter)


class TimedKill(Kill):
    """A `Kill` that records the time of each kill by process id."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[int, float] = {}

    def strike(self, ring: Ring, dice: random.Random) -> None:
        picked: list[Fighter] = []

        class Watch:
            """Forwards the calls to the ring and records the picked process."""

            def pick(self) -> Fighter | None:
                found = ring.pick()
                picked.extend([found] if found else [])
                return found

            def replace(self, fighter: Fighter) -> None:
                ring.replace(fighter)

        super().strike(Watch(), dice)
        for fighter in picked:
            self.at[fighter.pid] = steady()


@dataclass
class JobResult:
    """The report of a race, its duration, and the number of faults by kind."""

    report: JobReport
    seconds: float
    troubles: Counter[str] = field(default_factory=Counter[str])

    @property
    def violations(self) -> list[str]:
        return self.report.violations

    def __str__(self) -> str:
        troubles = ", ".join(f"{kind} {n}" for kind, n in sorted(self.troubles.items()))
        return f"{self.report}, {self.seconds:.1f} s; {troubles or 'no troubles'}"


class JobRace:
    """`run()` starts the workers, injects faults until nearly all jobs are completed, and checks the history.

    Half of the jobs are enqueued before the first fault, the others during the race, under the same faults.
    """

    def __init__(
        self,
        url: str,
        *,
        folder: Path,
        direct: str = "",
        jobs: int = 5000,
        processes: int = 6,
        concurrency: int = 20,
        chore: float = 0.005,
        lease: float = 2.0,
        pace: float = 0.7,
        hub: str = "",
        shards: int = 1,
        nemeses: Sequence[Nemesis] = (),
        seed: int = 0,
    ) -> None:
        self.url = url
        self.direct = direct or url
        self.folder = folder
        self.jobs = jobs
        self.processes = processes
        self.concurrency = concurrency
        self.chore = chore
        self.lease = lease
        self.pace = pace
        self.hub = hub
        self.shards = shards
        self.nemeses = nemeses
        self.dice = random.Random(seed)
        self._fighters: list[subprocess.Popen[bytes]] = []
        self._gone: set[int] = set()
        self._started = 0
        self._ids: dict[int, str] = {}
        #: Batches of jobs that were sent and not confirmed: they are sent again.
        self._made: dict[int, list[NewJob]] = {}

    # ── methods that a nemesis calls ──

    def pick(self) -> Fighter | None:
        alive = [p for p in self._fighters if p.pid not in self._gone and p.poll() is None]
        return self.dice.choice(alive) if alive else None

    def replace(self, fighter: Fighter) -> None:
        self._gone.add(fighter.pid)
        self._start()

    # ── the race ──

    def run(self) -> JobResult:
        began = steady()
        try:
            with self._backstay(self.direct) as stay:
                chore = chores(stay)
                for batch in self._batches(0, self.jobs // 2):
                    if not self._enqueue(chore, batch):
                        raise EngineUnavailable(f"{self.direct} takes no jobs before the race begins")
                for _ in range(self.processes):
                    self._start()
                self._trouble(stay)
                strays = self._wait(stay)
                outcomes = self._outcomes(stay, chore)
        finally:
            strays_at_the_end = self._stop()
        seconds = steady() - began
        kills = {pid: t for n in self.nemeses if isinstance(n, TimedKill) for pid, t in n.at.items()}
        resumes = {pid: times for n in self.nemeses if isinstance(n, Pause) for pid, times in n.resumed.items()}
        report = job_history.check(job_history.read(self.folder), outcomes, kills, resumes)
        report.violations += [*strays, *strays_at_the_end]
        result = JobResult(report, seconds)
        for nemesis in self.nemeses:
            result.troubles += nemesis.done
            if isinstance(nemesis, Cut):
                result.troubles += nemesis.struck
        return result

    def _backstay(self, url: str) -> backstay.sync.Backstay:
        return backstay.sync.Backstay(url, namespace=NAMESPACE, hub=self.hub or None, shards=self.shards)

    def _batches(self, first: int, end: int) -> list[range]:
        return [range(n, min(n + BULK, end)) for n in range(first, end, BULK)]

    def _enqueue(self, chore: Any, batch: range) -> bool:
        """Enqueue a batch. Returns False if the outcome is unknown; sending the batch again creates no duplicates."""
        jobs = self._made.setdefault(batch.start, chore.new_jobs([(n,) for n in batch]))
        try:
            made = run(flows.enqueue_many(chore.core, jobs))
        except EngineError:
            return False
        self._ids.update(zip(batch, [one.id for one in made], strict=True))
        del self._made[batch.start]
        return True

    def _start(self) -> None:
        label = f"w{self._started}"
        self._started += 1
        command = [sys.executable, "-m", "support.chaos_worker", self.url, "--folder", str(self.folder)]
        command += ["--label", label, "--namespace", NAMESPACE, "--lease", str(self.lease), "--hub", self.hub]
        command += ["--concurrency", str(self.concurrency), "--seconds", str(self.chore), "--shards", str(self.shards)]
        with (self.folder / f"{label}.stderr").open("wb") as errors:
            self._fighters.append(subprocess.Popen(command, stderr=errors, env=child_environment()))

    def _done(self, stay: backstay.sync.Backstay) -> int:
        with contextlib.suppress(EngineError):
            return sum(queue.completed for queue in stay.queues.list())
        return 0

    def _trouble(self, stay: backstay.sync.Backstay) -> None:
        """Inject faults until nine tenths of the jobs are completed. The second half of the jobs is enqueued meanwhile.
        Its last batch waits until every nemesis has struck; otherwise fast workers might complete all jobs before that.
        """
        turns: list[Nemesis] = []
        rest = self._batches(self.jobs // 2, self.jobs)
        with self._backstay(self.url) as troubled:
            chore = chores(troubled)
            strike_at, count_at, moved, done = steady() + self.pace, steady(), steady(), 0
            while rest or done < self.jobs * 9 // 10:
                if len(rest) > 1 or (rest and all(nemesis.done.total() for nemesis in self.nemeses)):
                    if self._enqueue(chore, rest[0]):
                        rest.pop(0)
                else:
                    time.sleep(LOOK)
                for nemesis in self.nemeses:
                    nemesis.tick()
                if self.nemeses and steady() >= strike_at:
                    turns = turns or self.dice.sample(self.nemeses, len(self.nemeses))
                    turns.pop().strike(self, self.dice)
                    strike_at = steady() + self.pace * self.dice.uniform(0.5, 1.5)
                if steady() >= count_at:
                    before, done = done, self._done(stay)
                    count_at = steady() + COUNT
                    if done > before:
                        moved = steady()
                    elif steady() - moved > PATIENCE:
                        break  # `_wait` reports what is wrong
        for nemesis in self.nemeses:
            nemesis.settle()

    def _wait(self, stay: backstay.sync.Backstay) -> list[str]:
        deadline = steady() + PATIENCE
        while (done := self._done(stay)) < self.jobs:
            if steady() > deadline:
                return [f"{self.jobs - done} of {self.jobs} jobs are not done {PATIENCE:g} s after the last trouble"]
            time.sleep(COUNT / 5)
        return []

    def _outcomes(self, stay: backstay.sync.Backstay, chore: Any) -> dict[int, Outcome | None]:
        found: dict[int, Outcome | None] = {}
        store = stay._core.services.get(JOB_STORE)  # pyright: ignore[reportPrivateUsage] - what is stored, not what the API says of it
        numbers = sorted(self._ids)
        for first in range(0, len(numbers), BULK):
            batch = numbers[first : first + BULK]
            jobs: list[Job | None] = stay.engine.apply_many([store.get(self._ids[n]) for n in batch])
            for n, job in zip(batch, jobs, strict=True):
                if isinstance(job, BaseException):
                    raise job
                result = None if job is None or job.result is None else chore.decode_result(job.result)
                found[n] = None if job is None else Outcome(job.state, job.fence, result, job.attempt)
        return found

    def _stop(self) -> list[str]:
        """Stop all workers. One that does not stop, or exits with an error without a kill, is a violation."""
        strays: list[str] = []
        for process in self._fighters:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_WAIT
        for i, process in enumerate(self._fighters):
            try:
                status = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGUSR1)
                time.sleep(0.5)
                strays.append(f"w{i} did not stop within {STOP_WAIT:g} s: {self._last_words(i)}")
                process.kill()
                process.wait()
                continue
            # Signalled twice, or before its handler was installed: it may exit at once.
            if status not in (0, -signal.SIGKILL, -signal.SIGTERM):
                strays.append(f"w{i} ended with status {status}: {self._last_words(i)}")
        return strays

    def _last_words(self, i: int) -> str:
        return (self.folder / f"w{i}.stderr").read_text(errors="replace")[-4000:]
