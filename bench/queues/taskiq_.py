"""taskiq on Redis: a stream, or a list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.queues.stage import One, record, run
from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker

WAYS = ("100 tasks",)


def task(url: str) -> tuple[Any, Any]:
    broker = ListQueueBroker(url)

    @broker.task(task_name="noop")
    async def noop(t0: float) -> None:
        record(t0)

    return broker, noop


@asynccontextmanager
async def open(url: str) -> AsyncIterator[tuple[One, None]]:
    broker, noop = task(url)
    await broker.startup()

    async def one(t0: float) -> None:
        await noop.kiq(t0)

    yield one, None


def work(url: str, how: str) -> None:
    broker, _ = task(url)

    async def main() -> None:
        broker.is_worker_process = True
        await run_receiver_task(broker, run_startup=True, max_async_tasks=100, max_prefetch=100, validate_params=False)

    run(main())
