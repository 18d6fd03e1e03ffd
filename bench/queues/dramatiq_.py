"""dramatiq on Redis: threads, without bulk enqueue."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dramatiq
from bench.queues.stage import One, record
from dramatiq.brokers.redis import RedisBroker

WAYS = ("8 threads", "4 threads, prefetch 500")


def actor(url: str, **options: Any) -> tuple[RedisBroker, Any]:
    broker = RedisBroker(url=url, **options)
    dramatiq.set_broker(broker)

    @dramatiq.actor(actor_name="noop")
    def noop(t0: float) -> None:
        record(t0)

    return broker, noop


@asynccontextmanager
async def open(url: str) -> AsyncIterator[tuple[One, None]]:
    _, noop = actor(url)

    async def one(t0: float) -> None:
        noop.send(t0)

    yield one, None


def work(url: str, how: str) -> None:
    many = how != WAYS[0]
    if many:
        os.environ["dramatiq_queue_prefetch"] = "500"  # noqa: SIM112 - its own spelling
    broker, _ = actor(url)
    dramatiq.Worker(broker, worker_threads=4 if many else 8).start()
    threading.Event().wait()
