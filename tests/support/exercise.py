"""What any Backstay must be able to do, whatever it was made from: take, wait, hand over, leave the queue, renew."""

from __future__ import annotations

import asyncio
import threading

import pytest

import backstay
from backstay import LockTimeout, sync
from backstay.testing.waiting import WITHIN, eventually, soon

#: Short, so that the keeper has something to do.
TTL = 3.0


def renewals(stay):
    """The renewals of a Backstay, as they come."""
    seen = []

    def note(event):
        if event.kind == "lease.renewed" and not event.facts["failed"]:
            seen.append(event)

    stay.telemetry.subscribe(note)
    return seen


def exercise_blocking(make):
    """`make()` makes Backstays that meet."""
    with make() as one, make() as two:
        assert isinstance(one, sync.Backstay)
        first = one.lock("x", ttl=30).acquire(wait=0)
        with pytest.raises(LockTimeout):
            two.lock("x").acquire(wait=0.05)
        assert not one.locks.inspect("x").queue
        got = []
        waiter = threading.Thread(target=lambda: got.append(two.lock("x", ttl=TTL).acquire(wait=WITHIN)))
        waiter.start()
        assert eventually(lambda: len(one.locks.inspect("x").queue) == 1)
        assert not first.release().idempotent
        waiter.join(WITHIN)
        (second,) = got
        assert second.fence > first.fence
        seen = renewals(two)
        assert eventually(lambda: len(seen) >= 4)  # the TTL is over by now
        second.check()
        assert one.locks.inspect("x").holders[0].lock_id == second.id
        assert not second.release().idempotent


async def exercise_async(make):
    async with make() as one, make() as two:
        assert isinstance(one, backstay.Backstay)

        async def queued(count):
            return len((await one.locks.inspect("x")).queue) == count

        first = await one.lock("x", ttl=30).acquire(wait=0)
        leaver = asyncio.create_task(two.lock("x").acquire(wait=WITHIN))
        assert await soon(lambda: queued(1))
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        assert await soon(lambda: queued(0))
        waiter = asyncio.create_task(two.lock("x", ttl=TTL).acquire(wait=WITHIN))
        assert await soon(lambda: queued(1))
        assert not (await first.release()).idempotent
        second = await asyncio.wait_for(waiter, WITHIN)
        assert second.fence > first.fence
        seen = renewals(two)

        async def renewed():
            return len(seen) >= 4

        assert await soon(renewed)
        second.check()
        assert (await one.locks.inspect("x")).holders[0].lock_id == second.id
        assert not (await second.release()).idempotent
