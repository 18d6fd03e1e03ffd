"""Waiters are served in FIFO order."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import Actor, Grant, assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.cases import NAME, enter, enter_briefly, enter_in_order, wait_queued


class GateOrderTests:
    """Waiters are served in order, and a waiter that leaves the queue does not delay the others."""

    @driver_test
    async def test_waiters_are_served_in_arrival_order(self, stage: Stage) -> None:
        holder, observer, *crowd = await stage.actors(10)
        held = await holder.acquire(NAME)
        waiting = await enter_in_order(observer, crowd, NAME)
        await holder.release(held)
        fences: list[int] = []
        for actor, place in zip(crowd, waiting, strict=True):
            grant = await place
            fences.append(grant.fence)
            await actor.release(grant)
        assert fences == sorted(fences)

    @driver_test
    async def test_permits_are_handed_out_in_arrival_order(self, stage: Stage) -> None:
        one, two, observer, *crowd = await stage.actors(7)
        held = [await actor.acquire(NAME, "semaphore", permits=2) for actor in (one, two)]
        waiting = await enter_in_order(observer, crowd, NAME, "semaphore", permits=2)
        await one.release(held[0])
        first = await waiting[0]
        assert not any(place.done() for place in waiting[1:])
        await two.release(held[1])
        second = await waiting[1]
        assert not any(place.done() for place in waiting[2:])
        for actor, grant in zip(crowd, (first, second), strict=False):
            await actor.release(grant)
        await asyncio.gather(*waiting[2:])

    @driver_test
    async def test_a_new_caller_does_not_overtake_a_waiter(self, stage: Stage) -> None:
        holder, waiter, stranger, observer = await stage.actors(4)
        for _ in range(5):
            held = await holder.acquire(NAME)
            place = await enter(observer, waiter, NAME)
            _, taken = await asyncio.gather(holder.release(held), stranger.try_acquire(NAME))
            assert taken is None
            assert await stranger.try_acquire(NAME) is None
            await waiter.release(await place)

    @driver_test
    async def test_a_late_waiter_is_served_after_earlier_waiters(self, stage: Stage) -> None:
        holder, early, late, observer = await stage.actors(4)
        held = await holder.acquire(NAME)
        first = await enter(observer, early, NAME)
        _, second = await asyncio.gather(holder.release(held), enter_now(late))
        grant = await first
        assert not second.done()
        await early.release(grant)
        assert (await second).fence > grant.fence

    @driver_test
    async def test_a_waiter_that_times_out_does_not_delay_the_others(self, stage: Stage) -> None:
        holder, hasty, patient, observer = await stage.actors(4)
        held = await holder.acquire(NAME)
        brief = await enter_briefly(observer, hasty, NAME)
        place = await enter(observer, patient, NAME)
        await assert_refused(brief, "LockTimeout")
        assert [w.position for w in (await observer.inspect(NAME)).queue] == [0]
        await holder.release(held)
        await place

    @driver_test
    async def test_a_full_queue_turns_callers_away(self, stage: Stage) -> None:
        holder, one, two, third, observer = await stage.actors(5)
        held = await holder.acquire(NAME)
        waiting = await enter_in_order(observer, (one, two), NAME, max_waiters=2)
        failure = await assert_refused(third.acquire(NAME, max_waiters=2), "QueueFull")
        assert failure.facts["waiters"] == 2
        assert failure.facts["name"] == NAME
        await wait_queued(observer, NAME, 2)
        await holder.release(held)
        await one.release(await waiting[0])
        await two.release(await waiting[1])
        await third.acquire(NAME, max_waiters=2)


async def enter_now(actor: Actor) -> asyncio.Task[Grant]:
    """Start an acquire without waiting until it is in the queue."""
    return asyncio.create_task(actor.acquire(NAME))
