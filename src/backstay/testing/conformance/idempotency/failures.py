"""What `on_error` does with an exception: forget it, so that the next call runs, or store and replay it."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import refused
from backstay.testing.conformance.driver import Stage, claim
from backstay.testing.conformance.idempotency.cases import inspect, run_once, under_way, waiting
from backstay.testing.conformance.idempotency.runs import WOKEN_WITHIN


class Failures:
    """Tests of `on_error`."""

    @claim
    async def test_after_a_failure_the_next_call_runs(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await refused(run_once(one, fails="card declined"), "Trouble")
        assert (await inspect(one)).state == "idle"
        assert (await run_once(other, "second")).ran

    @claim
    async def test_a_failure_is_replayed_when_asked(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await refused(run_once(one, fails="card declined", on_error="replay"), "Trouble")
        assert (await inspect(one)).state == "failed"
        for actor in (one, other):
            failure = await refused(run_once(actor, "second"), "ReplayedFailure")
            assert failure.facts["kind"].endswith("Trouble")
            assert failure.facts["reason"] == "card declined"

    @claim
    async def test_after_a_failure_one_of_those_who_wait_runs(self, stage: Stage) -> None:
        conductor, owner, *crowd = await stage.actors(6)
        async with under_way(conductor, owner, fails="card declined") as running:
            calls = [await waiting(conductor, actor, i) for i, actor in enumerate(crowd)]
        await refused(running, "Trouble")
        async with asyncio.timeout(WOKEN_WITHIN):
            outcomes = [await call for call in calls]
        assert sum(outcome.ran for outcome in outcomes) == 1
        assert len({outcome.value for outcome in outcomes}) == 1

    @claim
    async def test_waiting_calls_get_a_stored_failure(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with under_way(conductor, owner, fails="card declined", on_error="replay") as running:
            call = await waiting(conductor, other)
        await refused(running, "Trouble")
        async with asyncio.timeout(WOKEN_WITHIN):
            await refused(call, "ReplayedFailure")
