"""Processes that are killed or suspended while they run a call."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.idempotency.cases import GATE, inspect, run_once, start_waiting_call, wait_for_state
from backstay.testing.conformance.idempotency.runs import WOKEN_WITHIN


class IdempotencyCrashSuite:
    """Tests that kill or suspend an actor's process. They need a `ProcessDriver`."""

    @driver_test
    async def test_a_dead_owners_call_is_taken_over_by_exactly_one(self, stage: Stage) -> None:
        owner, conductor, *crowd = await stage.actors(9)
        held = await conductor.acquire(GATE)
        call = asyncio.create_task(run_once(owner, "first", gate=GATE, lease=3))
        await wait_for_state(conductor)
        # The nine actors are assigned to three processes in turn. Leave out those in the owner's process, because it is
        # killed.
        living = [actor for i, actor in enumerate(crowd) if (i + 2) % 3]
        calls = [await start_waiting_call(conductor, actor, i, lease=30) for i, actor in enumerate(living)]
        owner.kill()
        await assert_refused(call, "ProcessGone")
        outcomes = await asyncio.gather(*calls)
        assert sum(outcome.ran for outcome in outcomes) == 1
        assert len({outcome.value for outcome in outcomes}) == 1
        await conductor.release(held)

    @driver_test
    async def test_a_suspended_call_cannot_overwrite_its_successors_outcome(self, stage: Stage) -> None:
        owner, conductor, other = await stage.actors(3)
        held = await conductor.acquire(GATE)
        call = asyncio.create_task(run_once(owner, "stale", gate=GATE, lease=3))
        before = await wait_for_state(conductor)
        owner.pause()
        try:
            later = await run_once(other, "fresh")
        finally:
            owner.resume()
        assert later.ran
        await conductor.release(held)
        await assert_refused(call, "LeaseLost")
        after = await inspect(conductor)
        assert after.fence > before.fence
        assert (await run_once(conductor, "again")).value == "fresh"

    @driver_test
    async def test_a_dead_waiter_does_not_hold_up_the_others(self, stage: Stage) -> None:
        dead, conductor, other = await stage.actors(3)
        held = await conductor.acquire(GATE)
        # Actors are assigned to the three processes in turn. The fourth actor is in the process of `dead`, which the
        # test kills, so it is not used. The fifth, the owner, is in the conductor's process.
        _, owner = await stage.actors(2)
        call = asyncio.create_task(run_once(owner, fails="no", gate=GATE))
        await wait_for_state(conductor)
        gone = await start_waiting_call(conductor, dead)
        waits = await start_waiting_call(conductor, other, "second")
        dead.kill()
        await assert_refused(gone, "ProcessGone")
        await conductor.release(held)
        await assert_refused(call, "ScriptedError")
        async with asyncio.timeout(WOKEN_WITHIN):  # the dead waiter's offer lasts 2 s
            assert (await waits).ran
