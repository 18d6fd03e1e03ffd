"""The scheduler: ticks cron entries, prunes finished jobs and checks workflow runs, each in its own loop.

Every worker runs these loops. `stay.scheduler()` runs them without a worker, for deployments whose workers come and go.
Any number of processes may run them at once; the store enqueues only one job per cron entry and moment.
"""

from __future__ import annotations

import asyncio
import threading

from backstay.errors import BackstayError
from backstay.job.scheduler.cron_ticks import LONGEST_SLEEP, cron_entries, tick
from backstay.job.scheduler.pruner import CHECK, KEEP, PRUNE, check_runs, prune
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.loop import Loop


def background_loops(core: Core, keep: int = KEEP) -> list[Loop]:
    """Return the loops for cron, pruning and checks of runs. The caller starts them on its event loop."""

    async def tick_cron() -> float:
        return await tick(core)

    async def prune_jobs() -> None:
        await prune(core, keep)

    async def check_all_runs() -> None:
        await check_runs(core)

    return [
        Loop(tick_cron, name="scheduler", every=LONGEST_SLEEP, telemetry=core.telemetry),
        Loop(prune_jobs, name="pruner", every=PRUNE, telemetry=core.telemetry),
        Loop(check_all_runs, name="runs", every=CHECK, telemetry=core.telemetry),
    ]


class Scheduler:
    """Runs cron and pruning without a worker: `await stay.scheduler().run()` returns after `stop()`."""

    def __init__(self, core: Core, keep: int = KEEP) -> None:
        self._core = core
        self._keep = keep
        self._stopped: asyncio.Event | None = None
        self._loops: list[Loop] = []

    async def run(self) -> None:
        """Run until stopped. Raises BadArgument for a cron job whose arguments lack defaults."""
        self._core.check_open()
        for job, _ in cron_entries(self._core).values():
            job.codec.decode_args(b"")  # fail here, not at the first tick
        stopped = self._stopped = asyncio.Event()
        loops = self._loops = background_loops(self._core, self._keep)
        try:
            for loop in loops:
                loop.start()
            await stopped.wait()
        finally:
            for loop in loops:
                await loop.stop()

    def stop(self) -> None:
        """Stop the scheduler. Call it on the event loop's thread; safe to call twice."""
        if self._stopped is not None:
            self._stopped.set()


class BlockingScheduler:
    """The scheduler of the blocking API: `stay.scheduler().run()` blocks until `stop()` is called from any thread."""

    def __init__(self, core: Core, keep: int = KEEP) -> None:
        self._core = core
        self._keep = keep
        self._stopped = threading.Event()

    def run(self) -> None:
        """Run until stopped. Retries while the engine is unavailable."""
        self._core.check_open()
        pruned = checked = 0.0
        pause = 0.0
        while not self._stopped.wait(pause):
            self._core.check_open()
            try:
                pause = min(run(tick(self._core)), CHECK)
                pruned -= pause
                checked -= pause
                if checked <= 0:
                    run(check_runs(self._core))
                    checked = CHECK
                if pruned <= 0:
                    run(prune(self._core, self._keep))
                    pruned = PRUNE
            except BackstayError as error:
                self._core.telemetry.emit("loop.failed", name="scheduler", why=type(error).__name__, failures=1)
                pause = 1.0

    def stop(self) -> None:
        """Stop the scheduler, from any thread. Safe to call twice."""
        self._stopped.set()
