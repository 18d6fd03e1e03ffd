"""Huey, on Redis or on a SQLite file (WAL, synchronous=FULL)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import huey
from bench.queues.stage import One, record

WAYS = ("1 thread", "4 threads, poll 10 ms")


def task(url: str) -> tuple[Any, Any]:
    if url.startswith("redis"):
        app: Any = huey.RedisHuey("bench", url=url)
    else:
        app = huey.SqliteHuey("bench", filename=url.removeprefix("sqlite:///"), fsync=True)

    @app.task(name="noop")
    def noop(t0: float) -> None:
        record(t0)

    return app, noop


@asynccontextmanager
async def open(url: str) -> AsyncIterator[tuple[One, None]]:
    _, noop = task(url)

    async def one(t0: float) -> None:
        noop(t0)

    yield one, None


def work(url: str, how: str) -> None:
    logging.basicConfig(level=logging.ERROR)
    options = {} if how == WAYS[0] else {"workers": 4, "initial_delay": 0.01, "max_delay": 0.01}
    task(url)[0].create_consumer(**options).run()
