"""Not waiting, waiting for a while, waiting for ever."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import Actor, Grant, refused
from backstay.testing.conformance.driver import Stage, claim
from backstay.testing.conformance.gate.scenes import NAME, enter, hurry, queued

#: Below the longest recheck of a waiter (10 s): whoever is served by then was told, also on a busy machine.
TOLD = 9.0

WHO = {
    "lock_id": "lock-7",
    "execution_id": "execution-7",
    "workflow_id": "billing",
    "workflow_name": "Monthly billing",
}


class Waiting:
    """What the three kinds of patience end in."""

    @claim
    async def test_without_waiting_the_refusal_names_the_holder(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        held = await holder.acquire(NAME, **WHO)
        failure = await refused(other.acquire(NAME, wait=0), "LockHeld")
        told = failure.facts["holder"]
        assert {key: told[key] for key in WHO} == WHO
        assert told["fence"] == held.fence
        assert told["locked_at"] == held.fields["locked_at"]
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
        async with asyncio.timeout(TOLD):
            await place

    @claim
    async def test_waiters_who_come_together_are_all_told(self, stage: Stage) -> None:
        """The first waiters of a process, and it hears of them all: no hint is lost while it begins to listen."""
        holder, _, *crowd = await stage.actors(8)
        held = await holder.acquire(NAME)
        places = [asyncio.create_task(actor.acquire(NAME)) for actor in crowd]
        await queued(holder, NAME, len(crowd))
        async with asyncio.timeout(TOLD):
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
        async with asyncio.timeout(TOLD):
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
