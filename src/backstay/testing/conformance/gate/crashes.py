"""Processes that die, and processes that stand still."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import refused
from backstay.testing.conformance.driver import Stage, claim
from backstay.testing.conformance.gate.scenes import NAME, enter

#: One offer window (2 s), the pause of the one behind (2 s), and more than as much again for a busy machine.
SKIPPED = 15.0

#: Short enough to be outlasted, long enough for a busy machine to renew it while the others come.
LEASE = 2.0


class CrashSuite:
    """For a ProcessDriver: the first three actors of a stage live in processes of their own."""

    @claim
    async def test_a_dead_holders_lock_passes_on_when_its_lease_ends(self, stage: Stage) -> None:
        holder, waiter, observer = await stage.actors(3)
        held = await holder.acquire(NAME, ttl=LEASE)
        place = await enter(observer, waiter, NAME)
        holder.kill()
        assert (await place).fence > held.fence

    @claim
    async def test_a_dead_waiter_is_skipped_after_one_offer(self, stage: Stage) -> None:
        dying, holder, waiter = await stage.actors(3)
        observer = await stage.actor()  # shares the dying one's process: not used after its death
        held = await holder.acquire(NAME)
        dead = await enter(observer, dying, NAME)
        place = await enter(observer, waiter, NAME)
        dying.kill()
        await refused(dead, "ProcessGone")
        await holder.release(held)
        async with asyncio.timeout(SKIPPED):
            assert (await place).fence > held.fence

    @claim
    async def test_a_process_that_stood_still_finds_its_lease_lost(self, stage: Stage) -> None:
        holder, waiter, observer = await stage.actors(3)
        held = await holder.acquire(NAME, ttl=LEASE)
        place = await enter(observer, waiter, NAME)
        holder.pause()
        try:
            grant = await place
        finally:
            holder.resume()
        assert await holder.is_lost(held)
        await refused(holder.check(held), "LeaseLost")
        await refused(holder.renew(held), "LeaseLost")
        await refused(holder.release(held), "NotOwner")
        assert [h.fence for h in (await observer.inspect(NAME)).holders] == [grant.fence]

    @claim
    async def test_cleanup_frees_what_a_dead_execution_held_at_once(self, stage: Stage) -> None:
        holder, waiter, operator = await stage.actors(3)
        await holder.acquire(NAME, ttl=3600, execution_id="execution-1")
        place = await enter(operator, waiter, NAME)
        holder.kill()
        assert (await operator.cleanup("execution-1")).scopes == (NAME,)
        await place
