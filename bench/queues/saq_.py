"""SAQ on Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.queues.stage import One, record, run
from saq import Queue, Worker

WAYS = ("concurrency 100",)


async def noop(_: Any, *, t0: float) -> None:
    record(t0)


@asynccontextmanager
async def open(url: str) -> AsyncIterator[tuple[One, None]]:
    queue = Queue.from_url(url, name="bench")
    await queue.connect()

    async def one(t0: float) -> None:
        await queue.enqueue("noop", t0=t0)

    yield one, None


def work(url: str, how: str) -> None:
    async def main() -> None:
        queue = Queue.from_url(url, name="bench", max_concurrent_ops=100)
        await queue.connect()
        await Worker(queue, functions=[noop], concurrency=100).start()

    run(main())
