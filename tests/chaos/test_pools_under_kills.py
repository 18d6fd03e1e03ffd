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
from support.pool_state import all_returned

pytestmark = [pytest.mark.postgres, pytest.mark.chaos, pytest.mark.race, pytest.mark.slow]

SECONDS = 5.0
TERMINATE_SOME = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND random() < 0.3"


class Diary:
    """Records the holders of the lock by fence, and overlaps. All callers are in this process, so lists suffice."""

    def __init__(self):
        self.holders = []
        self.fences = []
        self.overlaps = []

    def enter(self, fence):
        self.holders.append(fence)
        self.fences.append(fence)
        if len(self.holders) > 1:
            self.overlaps.append(list(self.holders))

    def leave(self, fence):
        self.holders.remove(fence)


def test_locks_through_pools_hold_while_their_connections_are_killed(backstay_postgres, namespace):
    diary = Diary()
    options = {"min_size": 3, "timeout": 2, "kwargs": {"application_name": namespace}, "open": False}
    stop = steady() + SECONDS
    paused = threading.Event()

    def kill():
        with psycopg.connect(backstay_postgres.admin_url, autocommit=True) as admin:
            while steady() < stop:
                paused.wait(random.uniform(0.05, 0.3))
                admin.execute(TERMINATE_SOME, (namespace,))

    def hold(stay):
        while steady() < stop:
            with suppress(BackstayError), stay.lock("x", ttl=10, wait=5) as lease:
                diary.enter(lease.fence)
                paused.wait(0.001)
                diary.leave(lease.fence)

    async def hold_async(stay):
        while steady() < stop:
            with suppress(BackstayError):
                async with stay.lock("x", ttl=10, wait=5) as lease:
                    diary.enter(lease.fence)
                    await asyncio.sleep(0.001)
                    diary.leave(lease.fence)

    async def cancel_acquires(stay):
        while steady() < stop:
            task = asyncio.create_task(stay.lock("x").acquire(wait=1))
            await asyncio.sleep(random.uniform(0, 0.05))
            task.cancel()
            with suppress(asyncio.CancelledError, BackstayError):
                await (await task).release()

    async def on_a_loop():
        async with AsyncConnectionPool(backstay_postgres.url, **options) as pool:
            stay = Backstay(pool, namespace=namespace)
            await asyncio.gather(*[hold_async(stay) for _ in range(3)], cancel_acquires(stay))
            await stay.close()
            return await asyncio.to_thread(eventually, lambda: all_returned(pool))

    with ConnectionPool(backstay_postgres.url, **options) as pool:
        stay = sync.Backstay(pool, namespace=namespace)
        threads = [threading.Thread(target=kill), *(threading.Thread(target=hold, args=(stay,)) for _ in range(3))]
        for thread in threads:
            thread.start()
        assert asyncio.run(on_a_loop())
        for thread in threads:
            thread.join()
        stay.close()
        assert eventually(lambda: all_returned(pool))
    assert len(diary.fences) > 20
    assert not diary.overlaps
    assert diary.fences == sorted(set(diary.fences))
