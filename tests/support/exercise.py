"""A short test of locks for any way to create a Backstay: acquire, wait, hand over, leave the queue, renew."""

from __future__ import annotations

import asyncio
import threading

import pytest

import backstay
from backstay import LockTimeout, sync
from backstay.testing.waiting import WITHIN, eventually, soon

#: Seconds: short, so that the keeper renews the lease during the test.
TTL = 3.0


def renewals(stay):
    """Return a list to which each successful renewal of this Backstay is appended."""
    events = []

    def record(event):
        if event.kind == "lease.renewed" and not event.facts["failed"]:
            events.append(event)

    stay.telemetry.subscribe(record)
    return events


def exercise_blocking(make):
    """Test the blocking API. `make()` creates Backstays that share their locks."""
    with make() as one, make() as two:
        assert isinstance(one, sync.Backstay)
        first = one.lock("x", ttl=30).acquire(wait=0)
        with pytest.raises(LockTimeout):
            two.lock("x").acquire(wait=0.05)
        assert not one.locks.inspect("x").queue
        leases = []
        waiter = threading.Thread(target=lambda: leases.append(two.lock("x", ttl=TTL).acquire(wait=WITHIN)))
        waiter.start()
        assert eventually(lambda: len(one.locks.inspect("x").queue) == 1)
        assert not first.release().idempotent
        waiter.join(WITHIN)
        (second,) = leases
        assert second.fence > first.fence
        events = renewals(two)
        assert eventually(lambda: len(events) >= 4)  # later than the first TTL
        second.check()
        assert one.locks.inspect("x").holders[0].lock_id == second.id
        assert not second.release().idempotent


async def exercise_async(make):
    async with make() as one, make() as two:
        assert isinstance(one, backstay.Backstay)

        async def queued(count):
            return len((await one.locks.inspect("x")).queue) == count

        first = await one.lock("x", ttl=30).acquire(wait=0)
        cancelled = asyncio.create_task(two.lock("x").acquire(wait=WITHIN))
        assert await soon(lambda: queued(1))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await soon(lambda: queued(0))
        waiter = asyncio.create_task(two.lock("x", ttl=TTL).acquire(wait=WITHIN))
        assert await soon(lambda: queued(1))
        assert not (await first.release()).idempotent
        second = await asyncio.wait_for(waiter, WITHIN)
        assert second.fence > first.fence
        events = renewals(two)

        async def is_renewed():
            return len(events) >= 4

        assert await soon(is_renewed)
        second.check()
        assert (await one.locks.inspect("x")).holders[0].lock_id == second.id
        assert not (await second.release()).idempotent
