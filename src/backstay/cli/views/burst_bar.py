"""The progress bar of `--burst`: the number of finished jobs, their rate, and the number of remaining jobs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator

from backstay import Backstay
from backstay.errors import BackstayError
from backstay.job.worker.worker import Worker

#: Seconds between updates of the bar, and between counts of the remaining jobs (running jobs may enqueue more).
MOVE, COUNT = 0.2, 2.0


@contextlib.asynccontextmanager
async def burst_bar(stay: Backstay, worker: Worker, *, wanted: bool) -> AsyncGenerator[None, None]:
    """Show the bar while the block runs, if it is wanted and standard error is a terminal."""
    if not (wanted and sys.stderr.isatty()):
        yield
        return
    task = asyncio.get_running_loop().create_task(_watch(stay, worker))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _watch(stay: Backstay, worker: Worker) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("jobs", total=None, rate="")
        loop = asyncio.get_running_loop()
        began = loop.time()
        counted = 0.0
        while True:
            now = loop.time()
            if now - counted >= COUNT:
                counted = now
                with contextlib.suppress(BackstayError):
                    queues = await stay.queues.list()
                    left = sum(queue.pending for queue in queues if queue.name in worker.queues)
                    progress.update(bar, total=worker.done + worker.running + left)
            rate = worker.done / max(now - began, 0.001)
            progress.update(bar, completed=worker.done, rate=f"{rate:,.0f}/s, {worker.running} running")
            await asyncio.sleep(MOVE)
