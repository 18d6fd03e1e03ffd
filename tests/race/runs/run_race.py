"""A race of workflow runs while its processes are killed and paused: servers, a scheduler, workers on the engine,
workers over HTTP, and the engine itself. The pure graph defines how each run must end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from event_readers import Readers, Received
from expected_run import ExpectedRun
from run_checker import check_run

from backstay import sync
from backstay.engine.base import steady
from backstay.job.flows import send
from backstay.job.scheduler.pruner import check_runs
from backstay.job.store import JOB_STORE
from backstay.runtime.flows import run as do
from backstay.testing.servers.ports import reserve_port
from backstay.workflow import flows

HERE = Path(__file__).parent
LEASE = 2.0
ACCEPTED = (200, 202)
#: Statuses that a server may send while the engine or another server is down.
RETRYABLE = (409, 503)
PAGE = 1000
#: A program that is ready has logged one of these.
READY = ("listening on", "queues default", "INFO scheduler")


@dataclass
class RaceProgram:
    """A program of the race, which is started again after each kill."""

    name: str
    arguments: list[str]
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    #: The time at which the suspended program is resumed; 0 if it is not suspended.
    resume_at: float = 0.0
    log: Path = Path(os.devnull)

    @property
    def is_ready(self) -> bool:
        """Whether it has logged that it is ready. Killing it earlier would test only its start."""
        return any(word in self.log.read_text(errors="replace") for word in READY)


@dataclass
class RunRaceResult:
    """The violations of a race, and its counts."""

    runs: int
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    slowest: float = 0.0

    def __str__(self) -> str:
        counts = [f"{name} {n}" for name, n in sorted((self.faults + self.counts).items())]
        return f"{self.runs} runs in {self.seconds:.1f} s, the slowest {self.slowest:.1f} s; {', '.join(counts)}"


class RunRace:
    """`run()` starts the programs, starts the runs through the servers, reads the events of each run, and injects
    faults until the last run has ended.
    """

    def __init__(
        self,
        url: str,
        *,
        folder: Path,
        engine: Any = None,
        runs: int = 12,
        seed: int = 1,
        parallel: int = 6,
        pace: float = 1.0,
        attempt_seconds: float = 0.03,
        shards: int = 1,
        patience: float = 120.0,
        direct: str = "",
    ) -> None:
        self._engine = engine
        self._folder = folder
        self._direct = direct or url
        self._shards = shards
        self._parallel = parallel
        self._pace = pace
        self._patience = patience
        self._dice = random.Random(seed)
        self._expected = [ExpectedRun(seed, nth) for nth in range(runs)]
        self._ports = [reserve_port(), reserve_port()]
        self._servers = [f"http://127.0.0.1:{port}" for port in self._ports]
        self.result = RunRaceResult(runs)
        self._is_over = False
        self._env = {
            **os.environ,
            "CHAOS_URL": url,
            "CHAOS_FOLDER": str(folder),
            "CHAOS_DURATION": str(attempt_seconds),
            "CHAOS_SHARDS": str(shards),
        }
        program, lease = "chaos_flows:stay", ["--lease", str(LEASE)]
        serve = ["serve", program, "--no-access-log", *lease]
        work = ["worker", program, "--concurrency", "8", "--drain", "1", *lease]
        programs = {
            "api": [*serve, "--port", str(self._ports[0]), "--api-only"],
            "server": [*serve, "--port", str(self._ports[1]), "--worker", "--labels", "red", "--concurrency", "4"],
            "scheduler": ["scheduler", program, *lease],
            "red": [*work, "--labels", "red"],
            "blue": [*work, "--labels", "blue"],
            "http-0": [*work, "--labels", "red,blue", "--server", self._servers[0]],
            "http-1": [*work, "--labels", "blue", "--server", self._servers[1]],
        }
        self._programs = {name: RaceProgram(name, arguments) for name, arguments in programs.items()}

    def run(self) -> RunRaceResult:
        began = steady()
        try:
            for program in self._programs.values():
                self._start(program)
            asyncio.run(self._race())
        finally:
            self.result.seconds = steady() - began
            for program in self._programs.values():
                self._kill(program)
        self._read_output()
        return self.result

    # ── the programs ──

    def _start(self, program: RaceProgram) -> None:
        program.starts += 1
        program.resume_at = 0.0
        program.log = self._folder / f"{program.name}.{program.starts}.log"
        with program.log.open("wb") as output:
            command = [sys.executable, "-m", "backstay", *program.arguments]
            program.process = subprocess.Popen(command, cwd=HERE, env=self._env, stdout=output, stderr=output)

    def _kill(self, program: RaceProgram) -> None:
        if program.process is not None:
            program.process.kill()
            program.process.wait()
            program.process = None

    def _read_output(self) -> None:
        """Search the logs for defects: a program reports a fault in one line, without a traceback, and never has to
        correct the counts of a run.
        """
        for file in sorted(self._folder.glob("*.log")):
            log = file.read_text(errors="replace")
            for defect in ("Traceback", "did not agree", "please report"):
                if defect in log:
                    at = log.index(defect)
                    self.result.violations.append(f"{file.name}: {log[max(0, at - 300) : at + 2500]}")
                    break

    def _restart_exited(self) -> None:
        """Start programs that have exited by themselves again; each such exit is a violation."""
        for program in self._programs.values():
            if program.process is not None and (code := program.process.poll()) is not None:
                log = program.log.read_text(errors="replace")[-1500:]
                self.result.violations.append(f"{program.log.name} exited by itself with {code}: {log}")
                self._start(program)

    # ── faults ──

    async def _inject_faults(self) -> None:
        kinds = ["kill"] * 4 + ["stop"] * 2 + (["engine", "engine-stop"] if self._engine is not None else [])
        while not self._is_over:
            until = steady() + self._dice.uniform(0.5, 1.5) * self._pace
            while steady() < until and not self._is_over:
                await asyncio.sleep(0.02)
                self._resume(steady())
                self._restart_exited()
            if not self._is_over:
                await self._inject(self._dice.choice(kinds))
        self._resume(float("inf"))

    async def _inject(self, kind: str) -> None:
        program = self._programs[self._dice.choice(sorted(self._programs))]
        if kind in ("kill", "stop") and not program.is_ready:
            return
        match kind:
            case "kill":
                self._kill(program)
                self._start(program)
            case "stop" if program.process is not None and not program.resume_at:
                program.process.send_signal(signal.SIGSTOP)
                program.resume_at = steady() + LEASE * self._dice.uniform(0.5, 1.6)
            case "engine":
                await asyncio.to_thread(self._engine.kill)
                await asyncio.sleep(self._dice.uniform(0, 0.5))
                await asyncio.to_thread(self._engine.start)
            case "engine-stop":
                self._engine.pause()
                await asyncio.sleep(self._dice.uniform(0.2, 1.5))
                self._engine.resume()
            case _:
                return
        self.result.faults[f"{kind} {program.name}" if kind in ("kill", "stop") else kind] += 1

    def _resume(self, now: float) -> None:
        for program in self._programs.values():
            if program.process is not None and program.resume_at and now >= program.resume_at:
                program.resume_at = 0.0
                program.process.send_signal(signal.SIGCONT)

    # ── runs ──

    async def _race(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        async with httpx.AsyncClient(timeout=10, limits=limits) as client:
            readers = Readers(client, self._servers, self._dice)
            finished: set[str] = set()

            def is_last(event: Received) -> bool:
                if event.kind == "run_finished":
                    finished.add(event.data["run_id"])
                return len(finished) >= len(self._expected)

            everything = asyncio.create_task(readers.follow_all(is_last))
            faults = asyncio.create_task(self._inject_faults())
            slots = asyncio.Semaphore(self._parallel)
            run_ids: dict[str, str] = {}
            runs = [
                asyncio.create_task(self._follow_run(client, readers, slots, expected, run_ids))
                for expected in self._expected
            ]
            try:
                _, late = await asyncio.wait(runs, timeout=self._patience + 4.0 * len(runs))
                self._is_over = True
                await faults
                if late:
                    _, late = await asyncio.wait(late, timeout=180)
                stuck = [expected for expected, task in zip(self._expected, runs, strict=True) if task in late]
                for expected in stuck:
                    self.result.violations.append(f"{expected.name} ({run_ids.get(expected.name)}) has not ended")
                done = {
                    expected.name: task.result()
                    for expected, task in zip(self._expected, runs, strict=True)
                    if task not in late
                }
                received = -1
                # Wait for the last event as long as further events arrive.
                while not stuck and not everything.done() and received != len(readers.everything):
                    received = len(readers.everything)
                    await asyncio.wait([everything], timeout=60)
                self._check(run_ids, done, readers.everything)
            finally:
                self._is_over = True
                for task in (*runs, everything, faults):
                    task.cancel()
                await asyncio.gather(*runs, everything, faults, return_exceptions=True)
                self.result.violations += readers.violations
                self.result.counts["reconnects of readers"] = readers.reconnects

    async def _follow_run(
        self,
        client: httpx.AsyncClient,
        readers: Readers,
        slots: asyncio.Semaphore,
        expected: ExpectedRun,
        run_ids: dict[str, str],
    ) -> list[Received]:
        """Start one run, and return all its events."""
        async with slots:
            began = steady()
            body = {"inputs": expected.inputs, "request_id": expected.name}
            response = await self._request(lambda at: client.post(f"{at}/api/workflows/{expected.kind}/run", json=body))
            run_ids[expected.name] = response["run_id"]
            received = await readers.follow(response["run_id"])
            self.result.slowest = max(self.result.slowest, steady() - began)
            return received

    async def _request(self, send_to: Callable[[str], Awaitable[httpx.Response]]) -> Any:
        """Send a request to random servers until one accepts it, and return the JSON of its response."""
        while True:
            with contextlib.suppress(httpx.HTTPError):
                got = await send_to(self._dice.choice(self._servers))
                if got.status_code in ACCEPTED:
                    return got.json()
                if got.status_code not in RETRYABLE:
                    self.result.violations.append(f"{got.request.url}: {got.status_code} {got.text[:300]}")
            await asyncio.sleep(self._dice.uniform(0.05, 0.3))

    # ── checks after the race ──

    def _check(self, run_ids: dict[str, str], done: dict[str, list[Received]], everything: list[Received]) -> None:
        violations = self.result.violations
        with sync.Backstay(self._direct, namespace="run-chaos", shards=self._shards) as stay:
            core = stay._core
            store = core.services.get(JOB_STORE)
            stored_numbers: dict[str, list[int]] = {}
            for expected in self._expected:
                if expected.name not in done:
                    self._report_stuck(core, store, run_ids.get(expected.name, ""))
                    continue
                run = do(send(core, store.get_run(run_ids[expected.name])))
                assert run is not None
                jobs = do(flows.list_job_rows(core, run.id))
                events = []
                while page := do(send(core, store.run_events(run.id, len(events), PAGE))):
                    events += page
                stored_numbers[run.id] = [event.seq for event in events]
                violations += check_run(expected, run, jobs, events, done[expected.name])
                self.result.counts["jobs"] += len(jobs)
                self.result.counts["events"] += len(events)
                for kind in ("lease_expired", "scheduled"):
                    self.result.counts[kind] += sum(event.kind == kind for event in events)
            stored = {one.id for one in _all_runs(core, store)}
            if stored != set(run_ids.values()):
                violations.append(f"{len(stored)} runs are stored, and {len(run_ids)} were requested")
            if corrected := do(check_runs(core)):
                violations.append(f"the counts of {corrected} runs had to be corrected")
        received_numbers: dict[str, list[int]] = {}
        for one in everything:
            received_numbers.setdefault(one.data["run_id"], []).append(one.data["sequence"])
        for run_id, numbers in stored_numbers.items():
            received = received_numbers.get(run_id, [])
            if received != numbers:
                twice = sorted({n for n in received if received.count(n) > 1})
                lost = sorted({*numbers} - {*received})
                violations.append(
                    f"{run_id}: a reader of all runs received {len(received)} of {len(numbers)}, {twice=}, {lost=}"
                )

    def _report_stuck(self, core: Any, store: Any, run_id: str) -> None:
        if not run_id:
            return
        run = do(send(core, store.get_run(run_id)))
        open_ = [job for job in do(flows.list_job_rows(core, run_id)) if not job.finished]
        shown = "; ".join(
            f"{job.type} {job.state} {job.labels} waits {job.waits_for} lease {job.lease_until}" for job in open_[:5]
        )
        self.result.violations.append(f"{run_id} is {run.status}, {run.counts}: {shown}; now {time.time_ns() // 1000}")


def _all_runs(core: Any, store: Any) -> list[Any]:
    found: list[Any] = []
    while page := do(send(core, store.list_runs(before=found[-1].id if found else "", limit=PAGE))):
        found += page
    return found
