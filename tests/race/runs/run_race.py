"""Many runs while their processes are killed, paused and restarted: servers, a scheduler, workers beside
the engine and over HTTP, and the engine itself. The pure graph is the oracle.
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
from event_readers import Readers, Seen
from expected_run import ExpectedRun
from run_checker import check_run

from backstay import sync
from backstay.engine.base import steady
from backstay.job.flows import send
from backstay.job.scheduler.pruner import check_runs
from backstay.job.store import JOB_STORE
from backstay.runtime.flows import run as do
from backstay.testing.servers.ports import lasting_port
from backstay.workflow import flows

HERE = Path(__file__).parent
LEASE = 2.0
ACCEPTED = (200, 202)
#: What servers may answer while something is away.
NOT_NOW = (409, 503)
PAGE = 1000
#: What a program says when it is ready.
UP = ("listening on", "queues default", "INFO scheduler")


@dataclass
class Role:
    """A program that is started again whenever it was killed."""

    name: str
    arguments: list[str]
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    #: When it is let go on; 0: it is not stopped.
    asleep_until: float = 0.0
    log: Path = Path(os.devnull)

    @property
    def is_up(self) -> bool:
        """It has said so. Whoever is killed before that has not been in the race yet."""
        return any(word in self.log.read_text(errors="replace") for word in UP)


@dataclass
class Verdict:
    """A race in figures."""

    runs: int
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list[str])
    troubles: Counter[str] = field(default_factory=Counter[str])
    figures: Counter[str] = field(default_factory=Counter[str])
    slowest: float = 0.0

    def __str__(self) -> str:
        told = [f"{name} {n}" for name, n in sorted((self.troubles + self.figures).items())]
        return f"{self.runs} runs in {self.seconds:.1f} s, the slowest {self.slowest:.1f} s; {', '.join(told)}"


class RunRace:
    """`run()` starts everybody, begins the runs through the servers, follows each of them, and troubles all of it until
    the last run has ended.
    """

    def __init__(
        self,
        url: str,
        *,
        folder: Path,
        engine: Any = None,
        runs: int = 12,
        seed: int = 1,
        at_once: int = 6,
        pace: float = 1.0,
        chore: float = 0.03,
        shards: int = 1,
        patience: float = 120.0,
        direct: str = "",
    ) -> None:
        self._engine = engine
        self._folder = folder
        self._direct = direct or url
        self._shards = shards
        self._at_once = at_once
        self._pace = pace
        self._patience = patience
        self._dice = random.Random(seed)
        self._expected = [ExpectedRun(seed, nth) for nth in range(runs)]
        self._ports = [lasting_port(), lasting_port()]
        self._servers = [f"http://127.0.0.1:{port}" for port in self._ports]
        self.verdict = Verdict(runs)
        self._calm = False
        self._env = {
            **os.environ,
            "CHAOS_URL": url,
            "CHAOS_FOLDER": str(folder),
            "CHAOS_CHORE": str(chore),
            "CHAOS_SHARDS": str(shards),
        }
        program, lease = "chaos_flows:stay", ["--lease", str(LEASE)]
        serve = ["serve", program, "--no-access-log", *lease]
        work = ["worker", program, "--concurrency", "8", "--drain", "1", *lease]
        parts = {
            "api": [*serve, "--port", str(self._ports[0]), "--api-only"],
            "server": [*serve, "--port", str(self._ports[1]), "--worker", "--labels", "red", "--concurrency", "4"],
            "scheduler": ["scheduler", program, *lease],
            "red": [*work, "--labels", "red"],
            "blue": [*work, "--labels", "blue"],
            "far-0": [*work, "--labels", "red,blue", "--server", self._servers[0]],
            "far-1": [*work, "--labels", "blue", "--server", self._servers[1]],
        }
        self._roles = {name: Role(name, arguments) for name, arguments in parts.items()}

    def run(self) -> Verdict:
        began = steady()
        try:
            for role in self._roles.values():
                self._start(role)
            asyncio.run(self._race())
        finally:
            self.verdict.seconds = steady() - began
            for role in self._roles.values():
                self._end(role)
        self._read_output()
        return self.verdict

    # ── the programs ──

    def _start(self, role: Role) -> None:
        role.starts += 1
        role.asleep_until = 0.0
        role.log = self._folder / f"{role.name}.{role.starts}.log"
        with role.log.open("wb") as said:
            command = [sys.executable, "-m", "backstay", *role.arguments]
            role.process = subprocess.Popen(command, cwd=HERE, env=self._env, stdout=said, stderr=said)

    def _end(self, role: Role) -> None:
        if role.process is not None:
            role.process.kill()
            role.process.wait()
            role.process = None

    def _read_output(self) -> None:
        """Whatever troubles them, programs say so in a line: a traceback is a defect, and so are books set right."""
        for file in sorted(self._folder.glob("*.log")):
            said = file.read_text(errors="replace")
            for sign in ("Traceback", "did not agree", "please report"):
                if sign in said:
                    at = said.index(sign)
                    self.verdict.violations.append(f"{file.name} says {said[max(0, at - 300) : at + 2500]}")
                    break

    def _revive(self) -> None:
        """Nobody ends by himself."""
        for role in self._roles.values():
            if role.process is not None and (code := role.process.poll()) is not None:
                said = role.log.read_text(errors="replace")[-1500:]
                self.verdict.violations.append(f"{role.log.name} ended by itself with {code}: {said}")
                self._start(role)

    # ── troubles ──

    async def _trouble(self) -> None:
        kinds = ["kill"] * 4 + ["stop"] * 2 + (["engine", "engine-stop"] if self._engine is not None else [])
        while not self._calm:
            until = steady() + self._dice.uniform(0.5, 1.5) * self._pace
            while steady() < until and not self._calm:
                await asyncio.sleep(0.02)
                self._wake(steady())
                self._revive()
            if not self._calm:
                await self._strike(self._dice.choice(kinds))
        self._wake(float("inf"))

    async def _strike(self, kind: str) -> None:
        role = self._roles[self._dice.choice(sorted(self._roles))]
        if kind in ("kill", "stop") and not role.is_up:
            return
        match kind:
            case "kill":
                self._end(role)
                self._start(role)
            case "stop" if role.process is not None and not role.asleep_until:
                role.process.send_signal(signal.SIGSTOP)
                role.asleep_until = steady() + LEASE * self._dice.uniform(0.5, 1.6)
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
        self.verdict.troubles[f"{kind} {role.name}" if kind in ("kill", "stop") else kind] += 1

    def _wake(self, now: float) -> None:
        for role in self._roles.values():
            if role.process is not None and role.asleep_until and now >= role.asleep_until:
                role.asleep_until = 0.0
                role.process.send_signal(signal.SIGCONT)

    # ── runs ──

    async def _race(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        async with httpx.AsyncClient(timeout=10, limits=limits) as client:
            readers = Readers(client, self._servers, self._dice)
            finished: set[str] = set()

            def enough(seen: Seen) -> bool:
                if seen.kind == "run_finished":
                    finished.add(seen.data["run_id"])
                return len(finished) >= len(self._expected)

            everything = asyncio.create_task(readers.follow_all(enough))
            trouble = asyncio.create_task(self._trouble())
            turns = asyncio.Semaphore(self._at_once)
            begun: dict[str, str] = {}
            runs = [
                asyncio.create_task(self._one(client, readers, turns, expected, begun)) for expected in self._expected
            ]
            try:
                _, late = await asyncio.wait(runs, timeout=self._patience + 4.0 * len(runs))
                self._calm = True
                await trouble
                if late:
                    _, late = await asyncio.wait(late, timeout=180)
                stuck = [expected for expected, task in zip(self._expected, runs, strict=True) if task in late]
                for expected in stuck:
                    self.verdict.violations.append(f"{expected.name} ({begun.get(expected.name)}) has not ended")
                done = {
                    expected.name: task.result()
                    for expected, task in zip(self._expected, runs, strict=True)
                    if task not in late
                }
                told = -1
                while not stuck and not everything.done() and told != len(readers.everything):  # as long as it moves
                    told = len(readers.everything)
                    await asyncio.wait([everything], timeout=60)
                self._check(begun, done, readers.everything)
            finally:
                self._calm = True
                for task in (*runs, everything, trouble):
                    task.cancel()
                await asyncio.gather(*runs, everything, trouble, return_exceptions=True)
                self.verdict.violations += readers.wrong
                self.verdict.figures["readers came back"] = readers.comebacks

    async def _one(
        self,
        client: httpx.AsyncClient,
        readers: Readers,
        turns: asyncio.Semaphore,
        expected: ExpectedRun,
        begun: dict[str, str],
    ) -> list[Seen]:
        async with turns:
            began = steady()
            body = {"inputs": expected.inputs, "request_id": expected.name}
            answer = await self._ask(lambda at: client.post(f"{at}/api/workflows/{expected.kind}/run", json=body))
            begun[expected.name] = answer["run_id"]
            seen = await readers.follow(answer["run_id"])
            self.verdict.slowest = max(self.verdict.slowest, steady() - began)
            return seen

    async def _ask(self, ask: Callable[[str], Awaitable[httpx.Response]]) -> Any:
        """Until some server answers."""
        while True:
            with contextlib.suppress(httpx.HTTPError):
                got = await ask(self._dice.choice(self._servers))
                if got.status_code in ACCEPTED:
                    return got.json()
                if got.status_code not in NOT_NOW:
                    self.verdict.violations.append(f"{got.request.url}: {got.status_code} {got.text[:300]}")
            await asyncio.sleep(self._dice.uniform(0.05, 0.3))

    # ── the end ──

    def _check(self, begun: dict[str, str], done: dict[str, list[Seen]], everything: list[Seen]) -> None:
        wrong = self.verdict.violations
        with sync.Backstay(self._direct, namespace="run-chaos", shards=self._shards) as stay:
            core = stay._core
            store = core.services.get(JOB_STORE)
            told_all: dict[str, list[int]] = {}
            for expected in self._expected:
                if expected.name not in done:
                    self._report_stuck(core, store, begun.get(expected.name, ""))
                    continue
                run = do(send(core, store.get_run(begun[expected.name])))
                assert run is not None
                jobs = do(flows.list_job_rows(core, run.id))
                told = []
                while page := do(send(core, store.run_events(run.id, len(told), PAGE))):
                    told += page
                told_all[run.id] = [event.seq for event in told]
                wrong += check_run(expected, run, jobs, told, done[expected.name])
                self.verdict.figures["jobs"] += len(jobs)
                self.verdict.figures["events"] += len(told)
                for kind in ("lease_expired", "scheduled"):
                    self.verdict.figures[kind] += sum(event.kind == kind for event in told)
            kept = {one.id for one in _all_runs(core, store)}
            if kept != set(begun.values()):
                wrong.append(f"{len(kept)} runs were begun, and {len(begun)} were asked for")
            if mended := do(check_runs(core)):
                wrong.append(f"{mended} runs had to be set right")
        seen_all: dict[str, list[int]] = {}
        for one in everything:
            seen_all.setdefault(one.data["run_id"], []).append(one.data["sequence"])
        for run_id, numbers in told_all.items():
            seen = seen_all.get(run_id, [])
            if seen != numbers:
                twice = sorted({n for n in seen if seen.count(n) > 1})
                lost = sorted({*numbers} - {*seen})
                wrong.append(f"{run_id}: whoever follows all runs saw {len(seen)} of {len(numbers)}, {twice=}, {lost=}")

    def _report_stuck(self, core: Any, store: Any, run_id: str) -> None:
        if not run_id:
            return
        run = do(send(core, store.get_run(run_id)))
        open_ = [job for job in do(flows.list_job_rows(core, run_id)) if not job.finished]
        shown = "; ".join(
            f"{job.type} {job.state} {job.labels} waits {job.waits_for} lease {job.lease_until}" for job in open_[:5]
        )
        self.verdict.violations.append(f"{run_id} is {run.status}, {run.counts}: {shown}; now {time.time_ns() // 1000}")


def _all_runs(core: Any, store: Any) -> list[Any]:
    found: list[Any] = []
    while page := do(send(core, store.list_runs(before=found[-1].id if found else "", limit=PAGE))):
        found += page
    return found
