"""A running call's lease is renewed. When it expires, one waiting call takes over and runs the function; the outcome
that the first call reports after that is refused.
"""

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
    wait_for_state,
)
from backstay.testing.conformance.idempotency.runs import WOKEN_WITHIN
from backstay.testing.waiting import soon

#: The lease in seconds: short enough to expire during a test, long enough to be renewed in time on a busy machine.
LEASE = 2.0


class IdempotencyLeasesTests:
    """Tests of renewal, loss and takeover of a call's lease."""

    @driver_test
    async def test_a_call_that_outlasts_its_lease_is_renewed(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with running_call(conductor, owner, lease=LEASE) as running:
            begun = await inspect(conductor)
            call = await start_waiting_call(conductor, other)

            async def outlived() -> bool:
                now = await inspect(conductor)
                assert begun.since is not None
                assert now.until is not None
                return (now.until - begun.since).total_seconds() > 2 * LEASE  # without a renewal it would be 1 * LEASE

            assert await soon(outlived)
        assert (await running).ran
        assert not (await call).ran

    @driver_test
    async def test_a_call_that_was_forgotten_meanwhile_is_refused(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with running_call(conductor, owner, lease=30) as running:
            assert await forget(other)
            assert (await run_once(other, "second")).ran
        failure = await assert_refused(running, "LeaseLost")
        assert failure.facts["name"] == KEY
        assert (await run_once(conductor, "third")).value == "second"

    @driver_test
    async def test_the_outcome_of_a_key_never_changes(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with running_call(conductor, owner, lease=30) as running:
            await forget(other)
            await run_once(other, "second")
            before = await inspect(other)
        await assert_refused(running, "LeaseLost")
        assert await inspect(other) == before

    @driver_test
    async def test_a_waiting_call_takes_over_a_forgotten_call(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with running_call(conductor, owner) as running:
            call = await start_waiting_call(conductor, other, "second")
            async with asyncio.timeout(WOKEN_WITHIN):  # shorter than the recheck, so a hint must have woken the call
                assert await forget(conductor)
                assert (await call).ran
        await assert_refused(running, "LeaseLost")
        await wait_for_state(conductor, state="completed")
