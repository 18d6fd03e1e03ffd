"""Backstay's blocking API on any engine, for comparison with peers whose clients block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.queues.stage import BULK, Many, One

from backstay.sync import Backstay


@asynccontextmanager
async def open(url: str) -> AsyncIterator[tuple[One, Many]]:
    with Backstay(url) as stay:

        @stay.job()
        def noop(t0: float) -> None:
            raise NotImplementedError("enqueued only")

        async def one(t0: float) -> None:
            noop.enqueue(t0)

        async def many(t0: float, n: int) -> None:
            for i in range(0, n, BULK):
                noop.enqueue_many([(t0,)] * min(BULK, n - i))

        yield one, many
