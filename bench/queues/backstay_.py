"""Backstay's async API on any engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.queues.stage import BULK, Many, One, record, run

from backstay import Backstay

WAYS = ("concurrency 100",)


def app(url: str) -> tuple[Backstay, Any]:
    stay = Backstay(url)

    @stay.job()
    async def noop(t0: float) -> None:
        record(t0)

    return stay, noop


@asynccontextmanager
async def open(url: str) -> AsyncIterator[tuple[One, Many]]:
    stay, noop = app(url)

    async def one(t0: float) -> None:
        await noop.enqueue(t0)

    async def many(t0: float, n: int) -> None:
        for i in range(0, n, BULK):
            await noop.enqueue_many([(t0,)] * min(BULK, n - i))

    async with stay:
        yield one, many


def work(url: str, how: str) -> None:
    stay, _ = app(url)

    async def main() -> None:
        async with stay:
            await stay.worker(concurrency=100).run()

    run(main())
