"""Procrastinate on PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import procrastinate
from bench.queues.stage import BULK, Many, One, record, run

WAYS = ("concurrency 100, a pool of 20",)


def task(url: str) -> tuple[Any, Any]:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=10, max_size=20))

    @app.task(name="noop")
    async def noop(t0: float) -> None:
        record(t0)

    return app, noop


async def reset(url: str) -> None:
    app, _ = task(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


@asynccontextmanager
async def open(url: str) -> AsyncIterator[tuple[One, Many]]:
    app, noop = task(url)

    async def one(t0: float) -> None:
        await noop.defer_async(t0=t0)

    async def many(t0: float, n: int) -> None:
        for i in range(0, n, BULK):
            await noop.batch_defer_async(*[{"t0": t0} for _ in range(min(BULK, n - i))])

    async with app.open_async():
        yield one, many


def work(url: str, how: str) -> None:
    logging.basicConfig(level=logging.ERROR)

    async def main() -> None:
        app, _ = task(url)
        async with app.open_async():
            await app.run_worker_async(install_signal_handlers=False, concurrency=100, delete_jobs="always")

    run(main())
