"""Run a workflow in this process on an in-memory engine, and follow it to its end."""

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
from backstay.cli.views.run_progress import Row, RunProgress
from backstay.cli.views.run_watch import Viewer, Watch
from backstay.errors import ConfigError
from backstay.job.model import LogLine
from backstay.job.run_model import Run, RunEvent
from backstay.workflow import flows
from backstay.workflow.definition import Workflow
from backstay.workflow.planning.plan import plan_run

NAMESPACE = "backstay-run"
#: Signals that cancel the run. A second signal stops the worker at once.
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The workflow that `backstay run` runs, its inputs, and the options of the worker that runs its jobs."""

    workflow: Workflow
    inputs: Mapping[str, Any]
    concurrency: int
    fail_fast: bool
    grace: float
    directory: str
    pass_env: tuple[str, ...]
    secrets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a run. `signal`: the number of the signal that cancelled it, or 0."""

    run: Run
    progress: RunProgress
    signal: int


def select_jobs(workflow: Workflow, wanted: tuple[str, ...]) -> Workflow:
    """Return the workflow with only the wanted jobs and the jobs that they need. Raise ConfigError for unknown jobs."""
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


async def run_locally(request: RunRequest, viewer: Callable[[RunProgress], Viewer]) -> RunOutcome:
    """Run the workflow and return its result. All processes of its commands have ended when this returns or raises."""
    async with Backstay("memory://", namespace=NAMESPACE) as stay:
        core = stay.internals.core
        made = plan_run(core, request.workflow, request.inputs, trigger="cli")
        labels = sorted({label for job in made.jobs for label in job.labels})
        worker = stay.worker(
            labels=labels,
            concurrency=request.concurrency,
            grace=request.grace,
            signals=False,
            allow_commands=True,
            pass_env=request.pass_env,
            secrets=request.secrets,
            directory=request.directory,
        )
        run = await flows.start(core, made)
        stops = _EarlyCancel(stay, run.id, worker.stop)
        watch = Watch(core, run, lambda progress: stops.wrap_viewer(viewer(progress), fail_fast=request.fail_fast))
        working = asyncio.get_running_loop().create_task(worker.run())
        with stops:
            try:
                watching = asyncio.get_running_loop().create_task(watch.follow())
                await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
                if not watching.done():  # the worker stopped at once, on a second signal
                    watching.cancel()
                    await asyncio.wait({watching})
                    run = await flows.get_run(core, run.id)
                else:
                    run = watching.result()
            finally:
                worker.stop(now=True)
                await working
        return RunOutcome(run, watch.progress, stops.signal)


class _EarlyCancel:
    """Cancels the run on the first signal and, with `fail_fast`, on the first failed job."""

    def __init__(self, stay: Backstay, run: str, now: Callable[..., None]) -> None:
        self._stay = stay
        self._run = run
        self._now = now
        self._tasks: set[asyncio.Task[Any]] = set()
        self.signal = 0

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        if self.signal:
            self._now(now=True)
            return
        self.signal = number
        self._cancel(f"received {signal.Signals(number).name}")

    def _cancel(self, reason: str) -> None:
        core = self._stay.internals.core
        task = asyncio.get_running_loop().create_task(flows.cancel(core, self._run, reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def wrap_viewer(self, viewer: Viewer, *, fail_fast: bool) -> Viewer:
        return _FailFast(viewer, self._cancel) if fail_fast else viewer


class _FailFast:
    """Passes all calls on to another viewer (`Viewer`: what shows the run to the user). Cancels the run when the first
    job fails.
    """

    def __init__(self, viewer: Viewer, cancel: Callable[[str], None]) -> None:
        self._viewer = viewer
        self._cancel = cancel
        self._done = False

    def on_event(self, row: Row, event: RunEvent) -> None:
        self._viewer.on_event(row, event)
        if row.is_bad and not self._done:
            self._done = True
            self._cancel(f"{row.key} failed")

    def on_output(self, row: Row, line: LogLine) -> None:
        self._viewer.on_output(row, line)

    def on_poll(self) -> None:
        self._viewer.on_poll()


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
