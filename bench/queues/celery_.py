"""Celery on Redis, without a result backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.queues.stage import One, record
from celery import Celery

WAYS = ("solo, prefetch 100", "10 threads, prefetch 100")


def task(url: str) -> tuple[Any, Any]:
    app = Celery("bench", broker=url)
    app.conf.task_ignore_result = True

    @app.task(name="noop")
    def noop(t0: float) -> None:
        record(t0)

    return app, noop


@asynccontextmanager
async def open(url: str) -> AsyncIterator[tuple[One, None]]:
    app, noop = task(url)
    with app.producer_or_acquire() as producer:

        async def one(t0: float) -> None:
            noop.apply_async((t0,), producer=producer)

        yield one, None


def work(url: str, how: str) -> None:
    app, _ = task(url)
    pool = ["-P", "solo"] if how == WAYS[0] else ["-P", "threads", "-c", "10"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["worker", "-l", "ERROR", "--prefetch-multiplier", "100", *quiet, *pool])
