"""Processes that die or stand still while they run a call."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import refused
from backstay.testing.conformance.driver import Stage, claim
from backstay.testing.conformance.idempotency.runs import TOLD
from backstay.testing.conformance.idempotency.scenes import GATE, inspect, run_once, seen, waiting


class IdempotencyCrashSuite:
    """Claims that need a `ProcessDriver`. The conductor lives apart from whoever is killed or stopped."""

    @claim
    async def test_a_dead_owners_call_is_taken_over_by_exactly_one(self, stage: Stage) -> None:
        owner, conductor, *crowd = await stage.actors(9)
        held = await conductor.acquire(GATE)
        call = asyncio.create_task(run_once(owner, "first", gate=GATE, lease=3))
        await seen(conductor)
        living = [actor for i, actor in enumerate(crowd) if (i + 2) % 3]  # those of the owner's process die with it
        calls = [await waiting(conductor, actor, i, lease=30) for i, actor in enumerate(living)]
        owner.kill()
        await refused(call, "ProcessGone")
        outcomes = await asyncio.gather(*calls)
        assert sum(outcome.ran for outcome in outcomes) == 1
        assert len({outcome.value for outcome in outcomes}) == 1
        await conductor.release(held)

    @claim
    async def test_a_call_that_stood_still_cannot_overwrite_its_successors(self, stage: Stage) -> None:
        owner, conductor, other = await stage.actors(3)
        held = await conductor.acquire(GATE)
        call = asyncio.create_task(run_once(owner, "stale", gate=GATE, lease=3))
        before = await seen(conductor)
        owner.pause()
        try:
            later = await run_once(other, "fresh")
        finally:
            owner.resume()
        assert later.ran
        await conductor.release(held)
        await refused(call, "LeaseLost")
        after = await inspect(conductor)
        assert after.fence > before.fence
        assert (await run_once(conductor, "again")).value == "fresh"

    @claim
    async def test_a_dead_waiter_does_not_hold_up_the_others(self, stage: Stage) -> None:
        dead, conductor, other = await stage.actors(3)
        held = await conductor.acquire(GATE)
        # The owner lives in the conductor's process: the fourth actor shares the first one's.
        _, owner = await stage.actors(2)
        call = asyncio.create_task(run_once(owner, fails="no", gate=GATE))
        await seen(conductor)
        gone = await waiting(conductor, dead)
        waits = await waiting(conductor, other, "second")
        dead.kill()
        await refused(gone, "ProcessGone")
        await conductor.release(held)
        await refused(call, "Trouble")
        async with asyncio.timeout(TOLD):  # two seconds for the dead one, and some for a busy machine
            assert (await waits).ran
