"""Processes that are killed or suspended while they run a call."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import refused
from backstay.testing.conformance.driver import Stage, claim
from backstay.testing.conformance.idempotency.cases import GATE, inspect, run_once, seen, waiting
from backstay.testing.conformance.idempotency.runs import WOKEN_WITHIN


class IdempotencyCrashSuite:
    """Tests that need a `ProcessDriver`: the test runs in another process than the one that it kills or stops."""

    @claim
    async def test_a_dead_owners_call_is_taken_over_by_exactly_one(self, stage: Stage) -> None:
        owner, conductor, *crowd = await stage.actors(9)
        held = await conductor.acquire(GATE)
        call = asyncio.create_task(run_once(owner, "first", gate=GATE, lease=3))
        await seen(conductor)
        living = [actor for i, actor in enumerate(crowd) if (i + 2) % 3]  # not those in the owner's process
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
        # Skip one actor, so that the owner is in the conductor's process and not in the one that is killed.
        _, owner = await stage.actors(2)
        call = asyncio.create_task(run_once(owner, fails="no", gate=GATE))
        await seen(conductor)
        gone = await waiting(conductor, dead)
        waits = await waiting(conductor, other, "second")
        dead.kill()
        await refused(gone, "ProcessGone")
        await conductor.release(held)
        await refused(call, "Trouble")
        async with asyncio.timeout(WOKEN_WITHIN):  # the dead waiter's offer lasts 2 s
            assert (await waits).ran
