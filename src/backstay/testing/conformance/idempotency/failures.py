"""What `on_error` does with an exception: forget it, so that the next call runs, or store and replay it."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.idempotency.cases import inspect, run_once, running_call, start_waiting_call
from backstay.testing.conformance.idempotency.runs import WOKEN_WITHIN


class IdempotencyFailuresTests:
    """Tests of `on_error`."""

    @driver_test
    async def test_after_a_failure_the_next_call_runs(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await assert_refused(run_once(one, fails="card declined"), "ScriptedError")
        assert (await inspect(one)).state == "idle"
        assert (await run_once(other, "second")).ran

    @driver_test
    async def test_a_failure_is_replayed_when_asked(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await assert_refused(run_once(one, fails="card declined", on_error="replay"), "ScriptedError")
        assert (await inspect(one)).state == "failed"
        for actor in (one, other):
            failure = await assert_refused(run_once(actor, "second"), "ReplayedFailure")
            assert failure.facts["kind"].endswith("ScriptedError")
            assert failure.facts["reason"] == "card declined"

    @driver_test
    async def test_after_a_failure_one_waiting_call_runs(self, stage: Stage) -> None:
        conductor, owner, *crowd = await stage.actors(6)
        async with running_call(conductor, owner, fails="card declined") as running:
            calls = [await start_waiting_call(conductor, actor, i) for i, actor in enumerate(crowd)]
        await assert_refused(running, "ScriptedError")
        async with asyncio.timeout(WOKEN_WITHIN):
            outcomes = [await call for call in calls]
        assert sum(outcome.ran for outcome in outcomes) == 1
        assert len({outcome.value for outcome in outcomes}) == 1

    @driver_test
    async def test_waiting_calls_get_a_stored_failure(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with running_call(conductor, owner, fails="card declined", on_error="replay") as running:
            call = await start_waiting_call(conductor, other)
        await assert_refused(running, "ScriptedError")
        async with asyncio.timeout(WOKEN_WITHIN):
            await assert_refused(call, "ReplayedFailure")
