"""Users' pools while their connections are killed: one holder at a time, growing fences, no lost operation."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from backstay import Backstay, BackstayError, sync
from backstay.engine.base import steady
from backstay.testing.waiting import eventually

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


def test_locks_through_pools_hold_while_their_connections_are_killed(backstay_postgres, namespace):
    diary = Diary()
    options = {"min_size": 3, "timeout": 2, "kwargs": {"application_name": namespace}, "open": False}
    stop = steady() + SECONDS
    paused = threading.Event()

    def kill():
        with psycopg.connect(backstay_postgres.admin_url, autocommit=True) as admin:
            while steady() < stop:
                paused.wait(random.uniform(0.05, 0.3))
                admin.execute(OURS, (namespace,))

    def take(stay):
        while steady() < stop:
            with suppress(BackstayError), stay.lock("x", ttl=10, wait=5) as lease:
                diary.enter(lease.fence)
                paused.wait(0.001)
                diary.leave(lease.fence)

    async def take_async(stay):
        while steady() < stop:
            with suppress(BackstayError):
                async with stay.lock("x", ttl=10, wait=5) as lease:
                    diary.enter(lease.fence)
                    await asyncio.sleep(0.001)
                    diary.leave(lease.fence)

    async def change_ones_mind(stay):
        while steady() < stop:
            task = asyncio.create_task(stay.lock("x").acquire(wait=1))
            await asyncio.sleep(random.uniform(0, 0.05))
            task.cancel()
            with suppress(asyncio.CancelledError, BackstayError):
                await (await task).release()

    async def on_a_loop():
        async with AsyncConnectionPool(backstay_postgres.url, **options) as pool:
            stay = Backstay(pool, namespace=namespace)
            await asyncio.gather(*[take_async(stay) for _ in range(3)], change_ones_mind(stay))
            await stay.close()
            return await asyncio.to_thread(eventually, lambda: all_back(pool))

    with ConnectionPool(backstay_postgres.url, **options) as pool:
        stay = sync.Backstay(pool, namespace=namespace)
        threads = [threading.Thread(target=kill), *(threading.Thread(target=take, args=(stay,)) for _ in range(3))]
        for thread in threads:
            thread.start()
        assert asyncio.run(on_a_loop())
        for thread in threads:
            thread.join()
        stay.close()
        assert eventually(lambda: all_back(pool))
    assert len(diary.fences) > 20
    assert not diary.overlaps
    assert diary.fences == sorted(set(diary.fences))
