"""RQ on Redis, without a fork per job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.queues.stage import BULK, Many, One, record
from redis import Redis
from rq import Queue, SimpleWorker

WAYS = ("no fork",)
NOOP = "bench.queues.rq_.noop"


def noop(t0: float) -> None:
    record(t0)


@asynccontextmanager
async def open(url: str) -> AsyncIterator[tuple[One, Many]]:
    queue = Queue("bench", connection=Redis.from_url(url))

    async def one(t0: float) -> None:
        queue.enqueue(NOOP, t0)

    async def many(t0: float, n: int) -> None:
        for i in range(0, n, BULK):
            queue.enqueue_many([Queue.prepare_data(NOOP, args=(t0,)) for _ in range(min(BULK, n - i))])

    yield one, many


def work(url: str, how: str) -> None:
    connection = Redis.from_url(url)
    SimpleWorker([Queue("bench", connection=connection)], connection=connection).work(logging_level="ERROR")
