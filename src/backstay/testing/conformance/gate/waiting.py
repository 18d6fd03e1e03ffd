"""Acquires that do not wait (`wait=0`), wait for a limited time, or wait without limit."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import Actor, Grant, assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.cases import NAME, enter, enter_briefly, wait_queued

#: Seconds, less than a waiter's recheck interval (10 s): a waiter served within this time was woken by a hint.
WOKEN_WITHIN = 9.0

WHO = {
    "lock_id": "lock-7",
    "execution_id": "execution-7",
    "workflow_id": "billing",
    "workflow_name": "Monthly billing",
}


class GateWaitingTests:
    """Tests of the three kinds of `wait`."""

    @driver_test
    async def test_without_waiting_the_refusal_names_the_holder(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        held = await holder.acquire(NAME, **WHO)
        failure = await assert_refused(other.acquire(NAME, wait=0), "LockHeld")
        reported = failure.facts["holder"]
        assert {key: reported[key] for key in WHO} == WHO
        assert reported["fence"] == held.fence
        assert reported["locked_at"] == held.fields["locked_at"]
        assert failure.facts["name"] == NAME
        assert failure.facts["count"] == 1
        for part in ("Monthly billing", "execution-7", held.fields["locked_at"]):
            assert part in failure.message

    @driver_test
    async def test_the_count_in_a_refusal_is_holders_and_waiters(self, stage: Stage) -> None:
        holder, waiter, other, observer = await stage.actors(4)
        held = await holder.acquire(NAME)
        place = await enter(observer, waiter, NAME)
        failure = await assert_refused(other.acquire(NAME, wait=0), "LockHeld")
        assert failure.facts["count"] == 2
        await holder.release(held)
        await place

    @driver_test
    async def test_a_wait_that_times_out_leaves_the_queue(self, stage: Stage) -> None:
        holder, other, observer = await stage.actors(3)
        held = await holder.acquire(NAME, **WHO)
        failure = await assert_refused(other.acquire(NAME, wait=0.2), "LockTimeout")
        assert "TimeoutError" in failure.kinds
        assert failure.facts["waited"] == 0.2
        assert failure.facts["holder"]["execution_id"] == "execution-7"
        seen = await observer.inspect(NAME)
        assert seen.waiter_count == 0
        assert [holder.fence for holder in seen.holders] == [held.fence]

    @driver_test
    async def test_try_acquire_gets_a_free_lock_only(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        grant = await one.try_acquire(NAME)
        assert grant is not None
        assert await other.try_acquire(NAME) is None
        assert (await other.inspect(NAME)).waiter_count == 0
        await one.release(grant)
        assert await other.try_acquire(NAME) is not None

    @driver_test
    async def test_a_release_wakes_the_next_waiter(self, stage: Stage) -> None:
        holder, waiter, observer = await stage.actors(3)
        held = await holder.acquire(NAME)
        place = await enter(observer, waiter, NAME)
        await holder.release(held)
        async with asyncio.timeout(WOKEN_WITHIN):
            await place

    @driver_test
    async def test_all_concurrent_waiters_are_woken(self, stage: Stage) -> None:
        """Several waiters enter the queue while their process is still subscribing to the hub. No wake-up may
        be lost.
        """
        holder, _, *crowd = await stage.actors(8)
        held = await holder.acquire(NAME)
        places = [asyncio.create_task(actor.acquire(NAME)) for actor in crowd]
        await wait_queued(holder, NAME, len(crowd))
        async with asyncio.timeout(WOKEN_WITHIN):
            await holder.release(held)
            for done in asyncio.as_completed([_pass_on(*pair) for pair in zip(crowd, places, strict=True)]):
                await done

    @driver_test
    async def test_a_waiter_that_times_out_wakes_the_waiters_behind_it(self, stage: Stage) -> None:
        reader, writer, late, observer = await stage.actors(4)
        reading = await reader.acquire(NAME, "read")
        writing = await enter_briefly(observer, writer, NAME, "write")
        place = await enter(observer, late, NAME, "read")
        await assert_refused(writing, "LockTimeout")
        async with asyncio.timeout(WOKEN_WITHIN):
            await place
        assert (await observer.inspect(NAME)).holder_count == 2
        assert not await reader.is_lost(reading)

    @driver_test
    async def test_the_wait_of_the_lock_is_the_default_of_acquire(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        await holder.acquire(NAME)
        await assert_refused(other.do("acquire", name=NAME, kind="lock", options={"wait": 0}, call={}), "LockHeld")
        await assert_refused(
            other.do("acquire", name=NAME, kind="lock", options={"wait": 0}, call={"wait": 0.05}), "LockTimeout"
        )

    @driver_test
    async def test_waiters_that_time_out_leave_an_empty_queue(self, stage: Stage) -> None:
        holder, observer, *crowd = await stage.actors(7)
        await holder.acquire(NAME)
        outcomes = await asyncio.gather(
            *[assert_refused(actor.acquire(NAME, wait=0.05), "LockTimeout") for actor in crowd]
        )
        assert len(outcomes) == len(crowd)
        await wait_queued(observer, NAME, 0)


async def _pass_on(actor: Actor, place: asyncio.Task[Grant]) -> None:
    await actor.release(await place)
