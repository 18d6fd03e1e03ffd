"""The host's clock is set back an hour: leases are renewed, and waiters that time out leave the queue."""

from __future__ import annotations

import asyncio
import time

import pytest

from backstay import Backstay, LockTimeout
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.testing.waiting import eventually, soon

NAME = "invoice:42"
HOUR = 3600 * 1_000_000


class HostClock:
    """The host's clock, which the test sets."""

    def __init__(self):
        self.off = 0

    def __call__(self):
        return time.time_ns() // 1000 + self.off


@pytest.fixture
def clock():
    return HostClock()


@pytest.fixture
def stay(connect, clock):
    return connect(engine=SqliteEngine(":memory:", clock=clock))


@pytest.mark.timed
def test_a_held_lease_is_renewed_after_the_clock_is_set_back(stay, clock):
    lease = stay.lock(NAME, ttl=2).acquire()
    ends = lease.deadline
    clock.off -= HOUR
    assert eventually(lambda: lease.is_lost or lease.deadline > ends + 2)
    assert not lease.is_lost
    assert lease.release().released
    assert not stay.locks.inspect(NAME).held


def test_a_waiter_that_times_out_leaves_the_queue_after_the_clock_is_set_back(stay, clock):
    stay.lock(NAME).acquire()
    clock.off -= HOUR
    stay._core.held_leases.clear()  # this thread acts as another caller now
    with pytest.raises(LockTimeout):
        stay.lock(NAME).acquire(wait=0.1)
    assert stay.locks.inspect(NAME).waiter_count == 0


def test_a_lock_is_acquired_and_released_after_the_clock_is_set_back(stay, clock):
    first = stay.lock(NAME).acquire()
    first.release()
    clock.off -= HOUR
    second = stay.lock(NAME).acquire(wait=0)
    assert second.fence > first.fence
    assert second.release().released
    assert not stay.locks.inspect(NAME).held


@pytest.mark.redis
def test_a_cancelled_waiter_leaves_the_queue_although_the_clock_offset_is_wrong(backstay_redis, namespace):
    async def scenario():
        async with Backstay(backstay_redis.url, namespace=namespace) as stay:
            await stay.lock(NAME).acquire()
            waiter = asyncio.create_task(stay.lock(NAME).acquire())

            async def queued():
                return (await stay.locks.inspect(NAME)).waiter_count == 1

            assert await soon(queued)
            stay.engine._offset -= 3600
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert (await stay.locks.inspect(NAME)).waiter_count == 0

    asyncio.run(scenario())
