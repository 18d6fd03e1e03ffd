"""A race of workers: a few processes run many jobs under kills, pauses, restarts and network faults. At the end a
checker searches the recorded history for violations.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import time
from collections.abc import Sequence
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
from backstay.testing.histories.job_history import FinalRecord, JobReport
from support.nemeses.nemesis import Kill, Nemesis, Pause, RaceProcess
from support.races.chaos_worker import chores
from support.races.processes import FaultSchedule, RaceProcesses, Result

NAMESPACE = "backstay-job-race"
#: Jobs that are enqueued, or read back, at a time.
BULK = 500
#: Seconds between two ticks of the nemeses.
INTERVAL = 0.01
#: Seconds between two counts of the completed jobs.
COUNT = 0.5
#: Seconds that a busy machine may take, after the last fault and the expiry of the leases, to complete the remaining
#: jobs.
PATIENCE = 120.0
STOP_WAIT = 30.0


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
        self._processes = RaceProcesses(folder)
        self._ids: dict[int, str] = {}
        #: Batches of jobs that were sent and not confirmed: they are sent again.
        self._made: dict[int, list[NewJob]] = {}

    # ── methods that a nemesis calls ──

    def pick(self) -> RaceProcess | None:
        alive = list(self._processes.running().values())
        return self.dice.choice(alive) if alive else None

    def replace(self, process: RaceProcess) -> None:
        self._processes.mark_replaced(process)
        self._start()

    # ── the race ──

    def run(self) -> Result[JobReport]:
        began = steady()
        try:
            with self._backstay(self.direct) as stay:
                chore = chores(stay)
                for batch in self._batches(0, self.jobs // 2):
                    if not self._enqueue(chore, batch):
                        raise EngineUnavailable(f"{self.direct} accepts no jobs before the race begins")
                for _ in range(self.processes):
                    self._start()
                self._inject_faults(stay)
                failures = self._wait(stay)
                outcomes = self._outcomes(stay, chore)
        finally:
            failures_at_exit = self._stop()
        seconds = steady() - began
        kills = {pid: t for n in self.nemeses if isinstance(n, Kill) for pid, t in n.killed_at.items()}
        resumes = {pid: times for n in self.nemeses if isinstance(n, Pause) for pid, times in n.resumed.items()}
        report = job_history.check(job_history.read(self.folder), outcomes, kills, resumes)
        report.violations += [*failures, *failures_at_exit]
        return Result.of(report, seconds, self.nemeses)

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
        label = f"w{len(self._processes.all)}"
        command = [sys.executable, "-m", "support.races.chaos_worker", self.url, "--folder", str(self.folder)]
        command += ["--label", label, "--namespace", NAMESPACE, "--lease", str(self.lease), "--hub", self.hub]
        command += ["--concurrency", str(self.concurrency), "--seconds", str(self.chore), "--shards", str(self.shards)]
        self._processes.start(label, command)

    def _count_done(self, stay: backstay.sync.Backstay) -> int:
        with contextlib.suppress(EngineError):
            return sum(queue.completed for queue in stay.queues.list())
        return 0

    def _inject_faults(self, stay: backstay.sync.Backstay) -> None:
        """Inject faults until nine tenths of the jobs are completed, and enqueue the second half of the jobs meanwhile.
        The last batch is enqueued after every nemesis has injected a fault; otherwise fast workers might complete all
        jobs before that.
        """
        rest = self._batches(self.jobs // 2, self.jobs)
        schedule = FaultSchedule(self.nemeses, self.pace, self.dice)
        with self._backstay(self.url) as behind_the_proxy:
            chore = chores(behind_the_proxy)
            count_at, advanced, done = steady(), steady(), 0
            while rest or done < self.jobs * 9 // 10:
                if len(rest) > 1 or (rest and all(nemesis.counts.total() for nemesis in self.nemeses)):
                    if self._enqueue(chore, rest[0]):
                        rest.pop(0)
                else:
                    time.sleep(INTERVAL)
                schedule.tick(self)
                if steady() >= count_at:
                    before, done = done, self._count_done(stay)
                    count_at = steady() + COUNT
                    if done > before:
                        advanced = steady()
                    elif steady() - advanced > PATIENCE:
                        break  # `_wait` reports the jobs that are not completed
        schedule.stop()

    def _wait(self, stay: backstay.sync.Backstay) -> list[str]:
        deadline = steady() + PATIENCE
        while (done := self._count_done(stay)) < self.jobs:
            if steady() > deadline:
                return [f"{self.jobs - done} of {self.jobs} jobs are not done {PATIENCE:g} s after the last fault"]
            time.sleep(COUNT / 5)
        return []

    def _outcomes(self, stay: backstay.sync.Backstay, chore: Any) -> dict[int, FinalRecord | None]:
        found: dict[int, FinalRecord | None] = {}
        store = stay._core.services.get(JOB_STORE)  # the stored records, which have more fields than the API returns
        numbers = sorted(self._ids)
        for first in range(0, len(numbers), BULK):
            batch = numbers[first : first + BULK]
            jobs: list[Job | None] = stay.engine.apply_many([store.get(self._ids[n]) for n in batch])
            for n, job in zip(batch, jobs, strict=True):
                if isinstance(job, BaseException):
                    raise job
                result = None if job is None or job.result is None else chore.decode_result(job.result)
                found[n] = None if job is None else FinalRecord(job.state, job.fence, result, job.attempt)
        return found

    def _stop(self) -> list[str]:
        """Stop all workers. Returns a violation for each that does not stop or that exits with an error."""
        for process in self._processes.all.values():
            if process.poll() is None:
                process.terminate()
        # SIGTERM itself ends a worker that gets it twice, or before its handler is installed.
        expected = (0, -signal.SIGKILL, -signal.SIGTERM)
        return self._processes.await_exit(STOP_WAIT, lambda _, status: status in expected)
