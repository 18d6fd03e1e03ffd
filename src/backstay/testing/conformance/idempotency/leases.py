"""A running call's lease is renewed. When it expires, one waiting call takes over and the late outcome is refused."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import refused
from backstay.testing.conformance.driver import Stage, claim
from backstay.testing.conformance.idempotency.cases import KEY, forget, inspect, run_once, seen, under_way, waiting
from backstay.testing.conformance.idempotency.runs import WOKEN_WITHIN
from backstay.testing.waiting import soon

#: Seconds: short enough for a call to outlast it, long enough to be renewed in time on a busy machine.
LEASE = 2.0


class Leases:
    """Tests of renewal, loss and takeover of a call's lease."""

    @claim
    async def test_a_call_that_outlasts_its_lease_is_renewed(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with under_way(conductor, owner, lease=LEASE) as running:
            begun = await inspect(conductor)
            call = await waiting(conductor, other)

            async def outlived() -> bool:
                now = await inspect(conductor)
                assert begun.since is not None
                assert now.until is not None
                return (now.until - begun.since).total_seconds() > 2 * LEASE  # it was renewed beyond its first expiry

            assert await soon(outlived)
        assert (await running).ran
        assert not (await call).ran

    @claim
    async def test_a_call_that_was_forgotten_meanwhile_is_refused(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with under_way(conductor, owner, lease=30) as running:
            assert await forget(other)
            assert (await run_once(other, "second")).ran
        failure = await refused(running, "LeaseLost")
        assert failure.facts["name"] == KEY
        assert (await run_once(conductor, "third")).value == "second"

    @claim
    async def test_the_outcome_of_a_key_never_changes(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with under_way(conductor, owner, lease=30) as running:
            await forget(other)
            await run_once(other, "second")
            before = await inspect(other)
        await refused(running, "LeaseLost")
        assert await inspect(other) == before

    @claim
    async def test_who_waits_takes_a_forgotten_call_over(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with under_way(conductor, owner) as running:
            call = await waiting(conductor, other, "second")
            async with asyncio.timeout(WOKEN_WITHIN):  # the call was woken and did not find out by its recheck
                assert await forget(conductor)
                assert (await call).ran
        await refused(running, "LeaseLost")
        await seen(conductor, state="completed")
