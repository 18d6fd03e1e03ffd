"""`wait=0`, a limited wait, and an unlimited wait."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import Actor, Grant, refused
from backstay.testing.conformance.driver import Stage, claim
from backstay.testing.conformance.gate.cases import NAME, enter, hurry, queued

#: Seconds, less than a waiter's recheck interval (10 s): a waiter served within this time was woken by a hint.
WOKEN_WITHIN = 9.0

WHO = {
    "lock_id": "lock-7",
    "execution_id": "execution-7",
    "workflow_id": "billing",
    "workflow_name": "Monthly billing",
}


class Waiting:
    """Tests of the three kinds of `wait`."""

    @claim
    async def test_without_waiting_the_refusal_names_the_holder(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        held = await holder.acquire(NAME, **WHO)
        failure = await refused(other.acquire(NAME, wait=0), "LockHeld")
        reported = failure.facts["holder"]
        assert {key: reported[key] for key in WHO} == WHO
        assert reported["fence"] == held.fence
        assert reported["locked_at"] == held.fields["locked_at"]
        assert failure.facts["name"] == NAME
        assert failure.facts["count"] == 1
        for part in ("Monthly billing", "execution-7", held.fields["locked_at"]):
            assert part in failure.message

    @claim
    async def test_the_count_in_a_refusal_is_holders_and_waiters(self, stage: Stage) -> None:
        holder, waiter, other, observer = await stage.actors(4)
        held = await holder.acquire(NAME)
        place = await enter(observer, waiter, NAME)
        failure = await refused(other.acquire(NAME, wait=0), "LockHeld")
        assert failure.facts["count"] == 2
        await holder.release(held)
        await place

    @claim
    async def test_waiting_too_long_is_a_timeout_and_the_place_is_given_up(self, stage: Stage) -> None:
        holder, other, observer = await stage.actors(3)
        held = await holder.acquire(NAME, **WHO)
        failure = await refused(other.acquire(NAME, wait=0.2), "LockTimeout")
        assert "TimeoutError" in failure.kinds
        assert failure.facts["waited"] == 0.2
        assert failure.facts["holder"]["execution_id"] == "execution-7"
        seen = await observer.inspect(NAME)
        assert seen.waiter_count == 0
        assert [holder.fence for holder in seen.holders] == [held.fence]

    @claim
    async def test_a_try_takes_what_is_free_and_nothing_else(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        grant = await one.try_acquire(NAME)
        assert grant is not None
        assert await other.try_acquire(NAME) is None
        assert (await other.inspect(NAME)).waiter_count == 0
        await one.release(grant)
        assert await other.try_acquire(NAME) is not None

    @claim
    async def test_a_release_wakes_the_next_waiter(self, stage: Stage) -> None:
        holder, waiter, observer = await stage.actors(3)
        held = await holder.acquire(NAME)
        place = await enter(observer, waiter, NAME)
        await holder.release(held)
        async with asyncio.timeout(WOKEN_WITHIN):
            await place

    @claim
    async def test_all_concurrent_waiters_are_woken(self, stage: Stage) -> None:
        """No hint is lost while a process is still subscribing on behalf of its first waiters."""
        holder, _, *crowd = await stage.actors(8)
        held = await holder.acquire(NAME)
        places = [asyncio.create_task(actor.acquire(NAME)) for actor in crowd]
        await queued(holder, NAME, len(crowd))
        async with asyncio.timeout(WOKEN_WITHIN):
            await holder.release(held)
            for done in asyncio.as_completed([_pass_on(*pair) for pair in zip(crowd, places, strict=True)]):
                await done

    @claim
    async def test_who_gives_up_wakes_whom_he_kept_waiting(self, stage: Stage) -> None:
        reader, writer, late, observer = await stage.actors(4)
        reading = await reader.acquire(NAME, "read")
        writing = await hurry(observer, writer, NAME, "write")
        place = await enter(observer, late, NAME, "read")
        await refused(writing, "LockTimeout")
        async with asyncio.timeout(WOKEN_WITHIN):
            await place
        assert (await observer.inspect(NAME)).holder_count == 2
        assert not await reader.is_lost(reading)

    @claim
    async def test_the_wait_of_the_lock_is_the_default_of_acquire(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        await holder.acquire(NAME)
        await refused(other.do("acquire", name=NAME, kind="lock", options={"wait": 0}, call={}), "LockHeld")
        await refused(
            other.do("acquire", name=NAME, kind="lock", options={"wait": 0}, call={"wait": 0.05}), "LockTimeout"
        )

    @claim
    async def test_a_crowd_that_times_out_leaves_nothing_behind(self, stage: Stage) -> None:
        holder, observer, *crowd = await stage.actors(7)
        await holder.acquire(NAME)
        outcomes = await asyncio.gather(*[refused(actor.acquire(NAME, wait=0.05), "LockTimeout") for actor in crowd])
        assert len(outcomes) == len(crowd)
        await queued(observer, NAME, 0)


async def _pass_on(actor: Actor, place: asyncio.Task[Grant]) -> None:
    await actor.release(await place)
