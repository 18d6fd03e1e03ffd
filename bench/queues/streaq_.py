"""streaQ on Redis streams."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.queues.stage import BULK, Many, One, record
from streaq import Worker

WAYS = ("concurrency 100",)


def task(url: str) -> tuple[Any, Any]:
    worker: Any = Worker(redis_url=url, queue_name="bench", concurrency=100, anyio_kwargs={"use_uvloop": True})

    @worker.task(name="noop")
    async def noop(t0: float) -> None:
        record(t0)

    return worker, noop


@asynccontextmanager
async def open(url: str) -> AsyncIterator[tuple[One, Many]]:
    worker, noop = task(url)

    async def one(t0: float) -> None:
        await noop.enqueue(t0)

    async def many(t0: float, n: int) -> None:
        for i in range(0, n, BULK):
            await worker.enqueue_many([noop.enqueue(t0) for _ in range(min(BULK, n - i))])

    async with worker:
        yield one, many


def work(url: str, how: str) -> None:
    logging.getLogger("streaq").setLevel(logging.WARNING)
    task(url)[0].run_sync()
