"""Waiters are served in FIFO order."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import Actor, Grant, refused
from backstay.testing.conformance.driver import Stage, claim
from backstay.testing.conformance.gate.cases import NAME, enter, hurry, line_up, queued


class Order:
    """Waiters are served in order, and a waiter that leaves the queue does not hold up the rest."""

    @claim
    async def test_waiters_are_served_in_arrival_order(self, stage: Stage) -> None:
        holder, observer, *crowd = await stage.actors(10)
        held = await holder.acquire(NAME)
        waiting = await line_up(observer, crowd, NAME)
        await holder.release(held)
        fences: list[int] = []
        for actor, place in zip(crowd, waiting, strict=True):
            grant = await place
            fences.append(grant.fence)
            await actor.release(grant)
        assert fences == sorted(fences)

    @claim
    async def test_permits_are_handed_out_in_arrival_order(self, stage: Stage) -> None:
        one, two, observer, *crowd = await stage.actors(7)
        held = [await actor.acquire(NAME, "semaphore", permits=2) for actor in (one, two)]
        waiting = await line_up(observer, crowd, NAME, "semaphore", permits=2)
        await one.release(held[0])
        first = await waiting[0]
        assert not any(place.done() for place in waiting[1:])
        await two.release(held[1])
        second = await waiting[1]
        assert not any(place.done() for place in waiting[2:])
        for actor, grant in zip(crowd, (first, second), strict=False):
            await actor.release(grant)
        await asyncio.gather(*waiting[2:])

    @claim
    async def test_a_newcomer_does_not_overtake_a_waiter(self, stage: Stage) -> None:
        holder, waiter, stranger, observer = await stage.actors(4)
        for _ in range(5):
            held = await holder.acquire(NAME)
            place = await enter(observer, waiter, NAME)
            _, taken = await asyncio.gather(holder.release(held), stranger.try_acquire(NAME))
            assert taken is None
            assert await stranger.try_acquire(NAME) is None
            await waiter.release(await place)

    @claim
    async def test_a_late_comer_who_waits_comes_after_those_who_wait(self, stage: Stage) -> None:
        holder, early, late, observer = await stage.actors(4)
        held = await holder.acquire(NAME)
        first = await enter(observer, early, NAME)
        _, second = await asyncio.gather(holder.release(held), enter_now(late))
        grant = await first
        assert not second.done()
        await early.release(grant)
        assert (await second).fence > grant.fence

    @claim
    async def test_who_gives_up_waiting_does_not_hold_up_the_others(self, stage: Stage) -> None:
        holder, hasty, patient, observer = await stage.actors(4)
        held = await holder.acquire(NAME)
        brief = await hurry(observer, hasty, NAME)
        place = await enter(observer, patient, NAME)
        await refused(brief, "LockTimeout")
        assert [w.position for w in (await observer.inspect(NAME)).queue] == [0]
        await holder.release(held)
        await place

    @claim
    async def test_a_full_queue_turns_callers_away(self, stage: Stage) -> None:
        holder, one, two, third, observer = await stage.actors(5)
        held = await holder.acquire(NAME)
        waiting = await line_up(observer, (one, two), NAME, max_waiters=2)
        failure = await refused(third.acquire(NAME, max_waiters=2), "QueueFull")
        assert failure.facts["waiters"] == 2
        assert failure.facts["name"] == NAME
        await queued(observer, NAME, 2)
        await holder.release(held)
        await one.release(await waiting[0])
        await two.release(await waiting[1])
        await third.acquire(NAME, max_waiters=2)


async def enter_now(actor: Actor) -> asyncio.Task[Grant]:
    """Start an acquire without waiting until it is in the queue."""
    return asyncio.create_task(actor.acquire(NAME))
