"""Processes that are killed or suspended while they hold or wait for a lock."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.cases import NAME, enter

#: Seconds within which a dead waiter is skipped: its offer lasts 2 s, the next waiter rechecks up to 2 s later, and a
#: busy machine needs some more.
SKIPPED = 15.0

#: The TTL in seconds: short enough to expire during a test, long enough to be renewed in time on a busy machine.
LEASE = 2.0


class CrashSuite:
    """Tests that need a `ProcessDriver`: the first three actors of a stage are in different processes."""

    @driver_test
    async def test_a_dead_holders_lock_passes_on_when_its_lease_ends(self, stage: Stage) -> None:
        holder, waiter, observer = await stage.actors(3)
        held = await holder.acquire(NAME, ttl=LEASE)
        place = await enter(observer, waiter, NAME)
        holder.kill()
        assert (await place).fence > held.fence

    @driver_test
    async def test_a_dead_waiter_is_skipped_after_one_offer(self, stage: Stage) -> None:
        dying, holder, waiter = await stage.actors(3)
        observer = await stage.actor()  # it is in the process of `dying`, so it cannot be used after the kill
        held = await holder.acquire(NAME)
        dead = await enter(observer, dying, NAME)
        place = await enter(observer, waiter, NAME)
        dying.kill()
        await assert_refused(dead, "ProcessGone")
        await holder.release(held)
        async with asyncio.timeout(SKIPPED):
            assert (await place).fence > held.fence

    @driver_test
    async def test_a_suspended_process_finds_its_lease_lost(self, stage: Stage) -> None:
        holder, waiter, observer = await stage.actors(3)
        held = await holder.acquire(NAME, ttl=LEASE)
        place = await enter(observer, waiter, NAME)
        holder.pause()
        try:
            grant = await place
        finally:
            holder.resume()
        assert await holder.is_lost(held)
        await assert_refused(holder.check(held), "LeaseLost")
        await assert_refused(holder.renew(held), "LeaseLost")
        await assert_refused(holder.release(held), "NotOwner")
        assert [h.fence for h in (await observer.inspect(NAME)).holders] == [grant.fence]

    @driver_test
    async def test_cleanup_releases_the_lock_of_a_dead_execution_at_once(self, stage: Stage) -> None:
        holder, waiter, operator = await stage.actors(3)
        await holder.acquire(NAME, ttl=3600, execution_id="execution-1")
        place = await enter(operator, waiter, NAME)
        holder.kill()
        assert (await operator.cleanup("execution-1")).scopes == (NAME,)
        await place
