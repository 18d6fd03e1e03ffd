"""A workflow run in this process, on an engine in memory: started, watched, ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from backstay import Backstay
from backstay.cli.views.run_progress import Progress, Row
from backstay.cli.views.run_watch import Viewer, Watch
from backstay.errors import ConfigError
from backstay.job.model import LogLine
from backstay.job.run_model import Run, RunEvent
from backstay.workflow import flows
from backstay.workflow.definition import Workflow
from backstay.workflow.planning.plan import new_run

NAMESPACE = "backstay-run"
#: Both are passed on to the run; the second one does not wait for it.
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to run, and how."""

    workflow: Workflow
    inputs: Mapping[str, Any]
    concurrency: int
    fail_fast: bool
    grace: float
    directory: str
    pass_env: tuple[str, ...]
    secrets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. `signal`: the one that cancelled it; 0: none."""

    run: Run
    progress: Progress
    signal: int


def only(workflow: Workflow, wanted: tuple[str, ...]) -> Workflow:
    """The jobs that were asked for, and those that they need. Raises ConfigError."""
    if not wanted:
        return workflow
    kept: set[str] = set()
    queue = list(wanted)
    while queue:
        job = queue.pop()
        if job not in workflow.jobs:
            raise ConfigError(f"there is no job {job!r} in {workflow.name!r}; there are {', '.join(workflow.jobs)}")
        if job not in kept:
            kept.add(job)
            queue += workflow.jobs[job].needs
    return replace(workflow, jobs={job: spec for job, spec in workflow.jobs.items() if job in kept})


async def run_here(wish: Wish, viewer: Callable[[Progress], Viewer]) -> Outcome:
    """To the end, whatever ends it. Nothing of its commands is left afterwards."""
    async with Backstay("memory://", namespace=NAMESPACE) as stay:
        core = stay._core  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the same package
        made = new_run(core, wish.workflow, wish.inputs, trigger="cli")
        labels = sorted({label for job in made.jobs for label in job.labels})
        worker = stay.worker(
            labels=labels,
            concurrency=wish.concurrency,
            grace=wish.grace,
            signals=False,
            allow_commands=True,
            pass_env=wish.pass_env,
            secrets=wish.secrets,
            directory=wish.directory,
        )
        run = await flows.start(core, made)
        stops = _Stops(stay, run.id, worker.stop)
        watch = Watch(core, run, lambda progress: stops.around(viewer(progress), fail_fast=wish.fail_fast))
        working = asyncio.get_running_loop().create_task(worker.run())
        with stops:
            try:
                watching = asyncio.get_running_loop().create_task(watch.to_the_end())
                await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
                if not watching.done():  # the worker was told to stop at once
                    watching.cancel()
                    await asyncio.wait({watching})
                    run = await flows.look(core, run.id)
                else:
                    run = watching.result()
            finally:
                worker.stop(now=True)
                await working
        return Outcome(run, watch.progress, stops.heard)


class _Stops:
    """What ends a run early: signals, and the first failure for those who want that."""

    def __init__(self, stay: Backstay, run: str, now: Callable[..., None]) -> None:
        self._stay = stay
        self._run = run
        self._now = now
        self._tasks: set[asyncio.Task[Any]] = set()
        self.heard = 0

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._hear, number)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def _hear(self, number: int) -> None:
        if self.heard:
            self._now(now=True)
            return
        self.heard = number
        self._cancel(f"{signal.Signals(number).name} was heard")

    def _cancel(self, reason: str) -> None:
        core = self._stay._core  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the same package
        task = asyncio.get_running_loop().create_task(flows.cancel(core, self._run, reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def around(self, viewer: Viewer, *, fail_fast: bool) -> Viewer:
        return _FailFast(viewer, self._cancel) if fail_fast else viewer


class _FailFast:
    """A viewer that cancels the run with its first failure."""

    def __init__(self, viewer: Viewer, cancel: Callable[[str], None]) -> None:
        self._viewer = viewer
        self._cancel = cancel
        self._done = False

    def moved(self, row: Row, event: RunEvent) -> None:
        self._viewer.moved(row, event)
        if row.is_bad and not self._done:
            self._done = True
            self._cancel(f"{row.key} failed")

    def wrote(self, row: Row, line: LogLine) -> None:
        self._viewer.wrote(row, line)

    def look(self) -> None:
        self._viewer.look()


def cores() -> int:
    """How many jobs run at once unless said otherwise."""
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
