"""What happens when a caller acquires a lock that it already holds."""

from __future__ import annotations

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.cases import NAME, enter


class GateReentrancyTests:
    """With `reentrant=True` a lock counts its acquires; otherwise a second acquire by its holder is refused, because it
    would wait for itself (self-deadlock).
    """

    @driver_test
    async def test_a_reentrant_lock_counts(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        outer = await holder.acquire(NAME, reentrant=True)
        inner = await holder.acquire(NAME, reentrant=True)
        assert (inner.fence, inner.lock_id) == (outer.fence, outer.lock_id)
        await holder.release(inner)
        assert await other.try_acquire(NAME) is None
        await holder.release(outer)
        assert await other.try_acquire(NAME) is not None

    @driver_test
    async def test_a_reentrant_lock_is_still_a_lock_to_others(self, stage: Stage) -> None:
        actors = await stage.actors(3)
        await actors[0].acquire(NAME, reentrant=True)
        for other in actors[1:]:
            assert await other.try_acquire(NAME, reentrant=True) is None

    @driver_test
    async def test_waiting_for_a_lock_that_the_caller_holds_is_refused(self, stage: Stage) -> None:
        holder, observer = await stage.actors(2)
        held = await holder.acquire(NAME)
        failure = await assert_refused(holder.acquire(NAME), "WouldDeadlock")
        assert failure.facts["name"] == NAME
        assert failure.facts["lock_id"] == held.lock_id
        assert "reentrant=True" in failure.message
        seen = await observer.inspect(NAME)
        assert (seen.holder_count, seen.waiter_count) == (1, 0)
        assert not await holder.is_lost(held)

    @driver_test
    async def test_a_nonblocking_acquire_of_an_own_lock_is_refused(self, stage: Stage) -> None:
        (holder,) = await stage.actors(1)
        held = await holder.acquire(NAME)
        failure = await assert_refused(holder.acquire(NAME, wait=0), "LockHeld")
        assert failure.facts["holder"]["lock_id"] == held.lock_id
        assert await holder.try_acquire(NAME) is None

    @driver_test
    async def test_others_may_wait_for_it(self, stage: Stage) -> None:
        holder, other, observer = await stage.actors(3)
        held = await holder.acquire(NAME)
        place = await enter(observer, other, NAME)
        await holder.release(held)
        await place

    @driver_test
    async def test_a_reader_cannot_wait_to_become_the_writer(self, stage: Stage) -> None:
        holder, observer = await stage.actors(2)
        await holder.acquire(NAME, "read")
        await assert_refused(holder.acquire(NAME, "write"), "WouldDeadlock")
        assert (await observer.inspect(NAME)).waiter_count == 0

    @driver_test
    async def test_a_holder_of_every_permit_cannot_wait_for_another(self, stage: Stage) -> None:
        holder, observer = await stage.actors(2)
        await holder.acquire(NAME, "semaphore", permits=2)
        await holder.acquire(NAME, "semaphore", permits=2)
        await assert_refused(holder.acquire(NAME, "semaphore", permits=2), "WouldDeadlock")
        assert (await observer.inspect(NAME)).waiter_count == 0
