"""Cron and tidiness: what happens by itself. Any number of processes may do it at once; each tick makes one job.

Every worker runs all parts. `stay.scheduler()` runs them alone, for set-ups whose workers come and go.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import datetime
from typing import Any, cast

from backstay.errors import BackstayError
from backstay.job.api.announcer import announcer_of
from backstay.job.api.definition import BaseJobType
from backstay.job.api.registry import store_of
from backstay.job.flows import send
from backstay.job.model import Tick
from backstay.job.scheduler.cron import Cron, cron
from backstay.runtime.core import Core
from backstay.runtime.flows import run
from backstay.runtime.lease import instant
from backstay.runtime.loop import Loop

log = logging.getLogger("backstay")

#: How long the scheduler sleeps at most: jobs may be defined, and clocks corrected, meanwhile.
LONGEST_SLEEP = 30.0
#: Early by a hair is not on time: look again after this.
SHORTEST_SLEEP = 0.01
#: With catch_up="skip", a moment so many seconds ago has been missed.
GRACE = 60.0
#: Missed moments that are made up for in one go.
MOST_CAUGHT_UP = 1000
#: How often ended jobs past their time are looked for, and how many go in one step.
PRUNE, PRUNE_STEP = 60.0, 1000
#: How often runs of workflows are looked at: one past its time is cancelled at most so much later.
CHECK = 5.0
#: Completed jobs that are kept at most, by default, in each shard.
KEEP = 1_000_000


def entries_of(core: Core) -> dict[str, tuple[BaseJobType[..., Any], Cron]]:
    """The jobs that start by themselves, by name."""
    jobs = cast("dict[str, BaseJobType[..., Any]]", core.jobs)
    return {name: (job, cron(job.cron, job.timezone)) for name, job in jobs.items() if job.cron}


async def tick(core: Core) -> float:
    """Enqueue what is due by its schedule. Answers seconds until the next moment."""
    entries = entries_of(core)
    if not entries:
        return LONGEST_SLEEP
    last = await send(core, store_of(core).ticks(list(entries)))
    now = instant(core.engine.now())
    wait = LONGEST_SLEEP
    for name, (job, schedule) in entries.items():
        for moment in due(schedule, job.catch_up, instant(last[name]) if name in last else now, now):
            await _enqueue(core, name, job, moment)
        coming = schedule.next(now)
        if coming is not None:
            wait = min(wait, (coming - instant(core.engine.now())).total_seconds())
    return max(wait, SHORTEST_SLEEP)


def due(schedule: Cron, catch_up: str, last: datetime, now: datetime) -> list[datetime]:
    """The moments after `last` that are to be served now.

    one: the latest, however late. skip: the latest, unless it is a minute late. all: every one of them.
    """
    if catch_up == "all":
        moments: list[datetime] = []
        for moment in schedule.between(last, now):
            moments.append(moment)
            if len(moments) == MOST_CAUGHT_UP:
                break
        return moments
    latest = schedule.previous(now)
    if latest is None or latest <= last:
        return []
    if catch_up == "skip" and (now - latest).total_seconds() > GRACE:
        return []
    return [latest]


async def _enqueue(core: Core, name: str, job: BaseJobType[..., Any], moment: datetime) -> None:
    at = round(moment.timestamp() * 1_000_000)
    if await send(core, store_of(core).tick(Tick(name=name, at=at, job=job.new_job((), {}, due=at, cron=name)))):
        announcer_of(core).announce({job.name: 1})
        core.telemetry.emit("cron.tick", name=name, at=at)


async def prune(core: Core, keep: int = KEEP) -> int:
    """Delete ended jobs past their time, and the oldest completed ones above `keep`. Answers how many."""
    store, count = store_of(core), 0
    for shard in range(store.shards):
        while True:
            gone = await send(core, store.prune(shard, keep, PRUNE_STEP))
            count += gone
            if gone < PRUNE_STEP:
                break
    return count


async def check_runs(core: Core) -> int:
    """Cancel runs that are past their time, and set right what should never be wrong. Answers how many were."""
    store, wrong = store_of(core), 0
    for shard in range(store.shards):
        mended = await send(core, store.check_runs(shard))
        for run_id in mended:
            log.error("run %s and its jobs did not agree, and were set right: please report this", run_id)
            core.telemetry.emit("run.mended", id=run_id)
        wrong += len(mended)
    return wrong


def chores(core: Core, keep: int = KEEP) -> list[Loop]:
    """All parts as loops, to be started by whoever has an event loop."""

    async def ticking() -> float:
        return await tick(core)

    async def pruning() -> None:
        await prune(core, keep)

    async def checking() -> None:
        await check_runs(core)

    return [
        Loop(ticking, name="scheduler", every=LONGEST_SLEEP, telemetry=core.telemetry),
        Loop(pruning, name="pruner", every=PRUNE, telemetry=core.telemetry),
        Loop(checking, name="runs", every=CHECK, telemetry=core.telemetry),
    ]


class Scheduler:
    """Cron and pruning without a worker: `await stay.scheduler().run()` until `stop()`."""

    def __init__(self, core: Core, keep: int = KEEP) -> None:
        self._core = core
        self._keep = keep
        self._stopped: asyncio.Event | None = None
        self._loops: list[Loop] = []

    async def run(self) -> None:
        """Work until stopped."""
        self._core.check_open()
        for job, _ in entries_of(self._core).values():
            job.codec.decode_args(b"")  # what cannot work is said here
        stopped = self._stopped = asyncio.Event()
        loops = self._loops = chores(self._core, self._keep)
        try:
            for loop in loops:
                loop.start()
            await stopped.wait()
        finally:
            for loop in loops:
                await loop.stop()

    def stop(self) -> None:
        """From the loop's thread. Safe twice."""
        if self._stopped is not None:
            self._stopped.set()


class BlockingScheduler:
    """The same for blocking code: `stay.scheduler().run()` blocks until `stop()`, from any thread."""

    def __init__(self, core: Core, keep: int = KEEP) -> None:
        self._core = core
        self._keep = keep
        self._stopped = threading.Event()

    def run(self) -> None:
        """Work until stopped. An engine that is away is tried again."""
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
        """Safe twice."""
        self._stopped.set()
