"""All calls with a key get the outcome of one run of the function."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.idempotency.cases import (
    KEY,
    forget,
    inspect,
    run_once,
    running_call,
    start_waiting_call,
)
from backstay.testing.waiting import soon

#: Seconds, less than a waiter's recheck interval (10 s): a call that returns within this time was woken by a hint.
WOKEN_WITHIN = 9.0


class IdempotencyRunsTests:
    """Tests of new, running and completed calls."""

    @driver_test
    async def test_the_first_call_runs_and_later_ones_get_its_outcome(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        first = await run_once(one, {"receipt": 7, "raw": [1, None, "ü"]})
        assert first.ran
        for actor in (other, one):
            again = await run_once(actor, "another")
            assert again.value == first.value == {"receipt": 7, "raw": [1, None, "ü"]}
            assert not again.ran

    @driver_test
    async def test_of_many_calls_at_once_one_runs_and_all_get_its_outcome(self, stage: Stage) -> None:
        crowd = await stage.actors(9)
        outcomes = await asyncio.gather(*[run_once(actor, i) for i, actor in enumerate(crowd)])
        assert sum(outcome.ran for outcome in outcomes) == 1
        assert len({outcome.value for outcome in outcomes}) == 1

    @driver_test
    async def test_waiting_calls_get_the_outcome(self, stage: Stage) -> None:
        conductor, owner, *crowd = await stage.actors(6)
        async with running_call(conductor, owner) as running:
            calls = [await start_waiting_call(conductor, actor) for actor in crowd]
        async with asyncio.timeout(WOKEN_WITHIN):
            assert (await running).value == "first"
            assert [((await call).value, (await call).ran) for call in calls] == [("first", False)] * len(crowd)

    @driver_test
    async def test_without_waiting_a_running_call_is_named(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with running_call(conductor, owner) as running:
            failure = await assert_refused(run_once(other, wait=0), "InProgress")
            assert failure.facts["name"] == KEY
            assert failure.facts["by"]
            assert 0 < failure.facts["retry_after"] <= 30
        await running

    @driver_test
    async def test_a_wait_that_times_out_leaves_the_call_running(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with running_call(conductor, owner) as running:
            failure = await assert_refused(run_once(other, wait=0.1), "InProgress")
            assert "TimeoutError" in failure.kinds
            assert failure.facts["waited"] == 0.1
            assert (await inspect(conductor)).waiters == 0
        assert (await running).ran

    @driver_test
    async def test_an_outcome_is_kept_for_its_ttl(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await run_once(one, "old", ttl=0.3)

        async def ran_again() -> bool:
            return bool((await run_once(other, "new", ttl=0.3)).value == "new")

        assert await soon(ran_again)

    @driver_test
    async def test_different_keys_do_not_collide(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        keys = ["a", "a:b", "{a}", "a%7B", "A", "a\x00", "a\n", "ü", "x" * 512]
        for key in keys:
            assert (await run_once(one, key, key=key)).ran
        for key in keys:
            assert (await run_once(one, "another", key=key)).value == key

    @driver_test
    async def test_none_and_large_values_are_valid_outcomes(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for key, value in (("none", None), ("empty", ""), ("large", "x" * 1_000_000), ("false", False)):
            await run_once(one, value, key=key)
            again = await run_once(other, "another", key=key)
            assert again.value == value
            assert not again.ran

    @driver_test
    async def test_a_forgotten_key_runs_again(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await run_once(one, "old")
        assert await forget(other)
        assert not await forget(other)
        assert (await inspect(other)).state == "idle"
        assert (await run_once(other, "new")).ran

    @driver_test
    async def test_inspection_shows_the_owner_and_the_lease_end(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        assert (await inspect(conductor)).state == "idle"
        async with running_call(conductor, owner, fingerprint="x") as running:
            call = await start_waiting_call(conductor, other, fingerprint="x")
            running_now = await inspect(conductor)
            assert running_now.by
            assert running_now.waiters == 1
            assert running_now.since is not None
            assert running_now.until is not None
            assert running_now.since < running_now.until
        await running
        await call
        after = await inspect(conductor)
        assert (after.state, after.by, after.fence) == ("completed", running_now.by, running_now.fence)
        assert after.since == running_now.since
        assert after.until is not None
        assert 86_000 < (after.until - running_now.since).total_seconds() < 86_500
