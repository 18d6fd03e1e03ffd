"""BullMQ for Python, on Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.queues.stage import BULK, Many, One, record, run
from bullmq import Queue, Worker

WAYS = ("concurrency 100",)


async def noop(job: Any, _: str) -> None:
    record(job.data["t0"])


@asynccontextmanager
async def open(url: str) -> AsyncIterator[tuple[One, Many]]:
    queue = Queue("bench", {"connection": url})

    async def one(t0: float) -> None:
        await queue.add("noop", {"t0": t0})

    async def many(t0: float, n: int) -> None:
        for i in range(0, n, BULK):
            await queue.addBulk([{"name": "noop", "data": {"t0": t0}} for _ in range(min(BULK, n - i))])

    yield one, many


def work(url: str, how: str) -> None:
    async def main() -> None:
        worker = Worker("bench", noop, {"connection": url, "concurrency": 100})
        await asyncio.Event().wait()
        await worker.close()

    run(main())
