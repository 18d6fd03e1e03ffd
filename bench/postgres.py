"""Measure locks on PostgreSQL beside advisory locks."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvloop
from bench.harness import Bench, ContenderProcess, Row, Sample, compare
from bench.pairs import backstay_tasks, spin_tasks
from psycopg_pool import AsyncConnectionPool

from backstay.testing.servers.postgres import PostgresServer

TASKS, POOL = 100, 10


@contextmanager
def advisory_tasks(url: str, tasks: int) -> Iterator[Callable[[float], Sample]]:
    """Acquire and release session-level advisory locks over a pool. They are weaker than Backstay's locks: no fence, no
    TTL, lost with the connection.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pool = AsyncConnectionPool(url, min_size=POOL, max_size=POOL, kwargs={"autocommit": True}, open=False)
        runner.run(pool.open(wait=True))

        async def pair(name: str) -> None:
            key = zlib.crc32(name.encode())
            async with pool.connection() as connection:
                await connection.execute("SELECT pg_advisory_lock(%s)", (key,))
                await connection.execute("SELECT pg_advisory_unlock(%s)", (key,))

        yield lambda seconds: spin_tasks(runner, pair, tasks, seconds)
        runner.run(pool.close())


def postgres(bench: Bench) -> list[Row]:
    """Measure with fsync on, as in production: every commit is on disk."""
    rounds, seconds = bench.pick((7, 1.0), (3, 0.5))
    what = f"PostgreSQL pairs, {TASKS} tasks"
    with (
        PostgresServer(settings={"fsync": "on", "full_page_writes": "on"}) as server,
        ContenderProcess(backstay_tasks, server.url, TASKS) as mine,
        ContenderProcess(advisory_tasks, server.url, TASKS) as other,
    ):
        slices = bench.interleave(what, {"Backstay": mine, "advisory locks": other}, rounds, seconds)
    return [compare(what, slices["Backstay"], "advisory locks", slices["advisory locks"], 2.5)]
