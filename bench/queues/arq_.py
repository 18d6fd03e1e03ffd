"""arq on Redis, polling every 5 ms instead of the default 500 ms."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker
from bench.queues.stage import One, record, run

WAYS = ("100 jobs, poll 5 ms",)


async def noop(_: Any, t0: float) -> None:
    record(t0)


@asynccontextmanager
async def open(url: str) -> AsyncIterator[tuple[One, None]]:
    pool = await create_pool(RedisSettings.from_dsn(url))

    async def one(t0: float) -> None:
        await pool.enqueue_job("noop", t0)

    yield one, None


def work(url: str, how: str) -> None:
    async def main() -> None:
        await Worker(
            functions=[noop],
            redis_settings=RedisSettings.from_dsn(url),
            handle_signals=False,
            max_jobs=100,
            poll_delay=0.005,
            keep_result=0,
        ).main()

    run(main())
