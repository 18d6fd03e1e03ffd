"""PgQueuer on PostgreSQL, with asyncpg."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from bench.queues.stage import BULK, Many, One, record, run
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

WAYS = ("batches of 100, a pool",)


async def reset(url: str) -> None:
    connection = await asyncpg.connect(url)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


@asynccontextmanager
async def open(url: str) -> AsyncIterator[tuple[One, Many]]:
    queries = Queries(AsyncpgPoolDriver(await asyncpg.create_pool(url)))

    async def one(t0: float) -> None:
        await queries.enqueue("noop", repr(t0).encode())

    async def many(t0: float, n: int) -> None:
        for i in range(0, n, BULK):
            k = min(BULK, n - i)
            await queries.enqueue(["noop"] * k, [repr(t0).encode()] * k, [0] * k)

    yield one, many


def work(url: str, how: str) -> None:
    logging.basicConfig(level=logging.ERROR)

    async def main() -> None:
        queuer = PgQueuer(AsyncpgPoolDriver(await asyncpg.create_pool(url)))

        @queuer.entrypoint("noop")
        async def noop(job: Any) -> None:
            record(float(job.payload))

        await queuer.run(batch_size=100)

    run(main())
