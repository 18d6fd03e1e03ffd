"""Users' pools while somebody kills their connections: one holder at a time, fences that grow, nothing left out."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from holdfast import Holdfast, HoldfastError, sync
from holdfast.engine.base import steady
from holdfast.testing.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.chaos, pytest.mark.race, pytest.mark.slow]

SECONDS = 5.0
OURS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND random() < 0.3"


class Diary:
    """Who was inside, in order. Both kinds of callers share a process, so a list is enough."""

    def __init__(self):
        self.inside = []
        self.fences = []
        self.overlaps = []

    def enter(self, fence):
        self.inside.append(fence)
        self.fences.append(fence)
        if len(self.inside) > 1:
            self.overlaps.append(list(self.inside))

    def leave(self, fence):
        self.inside.remove(fence)


def all_back(pool):
    stats = pool.get_stats()
    return stats["pool_available"] == stats["pool_size"] == pool.max_size


def test_locks_through_pools_hold_while_their_connections_are_killed(holdfast_postgres, namespace):
    diary = Diary()
    options = {"min_size": 3, "timeout": 2, "kwargs": {"application_name": namespace}, "open": False}
    stop = steady() + SECONDS
    paused = threading.Event()

    def kill():
        with psycopg.connect(holdfast_postgres.admin_url, autocommit=True) as admin:
            while steady() < stop:
                paused.wait(random.uniform(0.05, 0.3))
                admin.execute(OURS, (namespace,))

    def take(hf):
        while steady() < stop:
            with suppress(HoldfastError), hf.lock("x", ttl=10, wait=5) as lease:
                diary.enter(lease.fence)
                paused.wait(0.001)
                diary.leave(lease.fence)

    async def take_async(hf):
        while steady() < stop:
            with suppress(HoldfastError):
                async with hf.lock("x", ttl=10, wait=5) as lease:
                    diary.enter(lease.fence)
                    await asyncio.sleep(0.001)
                    diary.leave(lease.fence)

    async def change_ones_mind(hf):
        while steady() < stop:
            task = asyncio.create_task(hf.lock("x").acquire(wait=1))
            await asyncio.sleep(random.uniform(0, 0.05))
            task.cancel()
            with suppress(asyncio.CancelledError, HoldfastError):
                await (await task).release()

    async def on_a_loop():
        async with AsyncConnectionPool(holdfast_postgres.url, **options) as pool:
            hf = Holdfast(pool, namespace=namespace)
            await asyncio.gather(*[take_async(hf) for _ in range(3)], change_ones_mind(hf))
            await hf.close()
            return await asyncio.to_thread(eventually, lambda: all_back(pool))

    with ConnectionPool(holdfast_postgres.url, **options) as pool:
        hf = sync.Holdfast(pool, namespace=namespace)
        threads = [threading.Thread(target=kill), *(threading.Thread(target=take, args=(hf,)) for _ in range(3))]
        for thread in threads:
            thread.start()
        assert asyncio.run(on_a_loop())
        for thread in threads:
            thread.join()
        hf.close()
        assert eventually(lambda: all_back(pool))
    assert len(diary.fences) > 20
    assert not diary.overlaps
    assert diary.fences == sorted(set(diary.fences))
