"""A lease is valid while it is renewed, expires otherwise, and is never revived."""

from __future__ import annotations

from datetime import datetime

from backstay.testing.conformance.actor import refused
from backstay.testing.conformance.driver import Stage, claim
from backstay.testing.conformance.gate.cases import NAME, enter, free, lost
from backstay.testing.waiting import soon


class Leases:
    """Tests of renewal, expiry, `max_hold` and loss."""

    @claim
    async def test_a_lease_is_renewed_in_the_background(self, stage: Stage) -> None:
        holder, observer = await stage.actors(2)
        grant = await holder.acquire(NAME, ttl=2)
        first = datetime.fromisoformat(grant.expires_at)

        async def extended() -> bool:
            (seen,) = (await observer.inspect(NAME)).holders
            return (datetime.fromisoformat(seen.expires_at) - first).total_seconds() > 0.3

        assert await soon(extended)
        assert not await holder.is_lost(grant)
        assert (await observer.inspect(NAME)).fence == grant.fence

    @claim
    async def test_an_explicit_renewal_extends_the_lease(self, stage: Stage) -> None:
        holder, observer = await stage.actors(2)
        grant = await holder.acquire(NAME, ttl=30)
        renewed = await holder.renew(grant, 300)
        gained = datetime.fromisoformat(renewed.expires_at) - datetime.fromisoformat(grant.expires_at)
        assert 265 < gained.total_seconds() < 330
        (seen,) = (await observer.inspect(NAME)).holders
        assert seen.expires_at == renewed.expires_at

    @claim
    async def test_a_lease_that_ends_lets_the_next_waiter_in(self, stage: Stage) -> None:
        holder, waiter, observer = await stage.actors(3)
        held = await holder.acquire(NAME, ttl=2, renew=False)  # time to enter the queue on a busy machine
        place = await enter(observer, waiter, NAME)
        grant = await place
        assert grant.fence > held.fence
        assert await holder.is_lost(held)

    @claim
    async def test_renewing_a_lost_lease_fails_and_never_brings_it_back(self, stage: Stage) -> None:
        holder, observer = await stage.actors(2)
        held = await holder.acquire(NAME, ttl=0.1, renew=False)
        await free(observer, NAME)
        failure = await refused(holder.renew(held, 30), "LeaseLost")
        assert failure.facts["lock_id"] == held.lock_id
        assert failure.facts["fence"] == held.fence
        assert not (await observer.inspect(NAME)).held

    @claim
    async def test_renewing_a_lock_of_another_holder_changes_nothing(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        held = await holder.acquire(NAME, ttl=30)
        await other.force_release(NAME)
        grant = await other.acquire(NAME, wait=0)
        await refused(holder.renew(held), "LeaseLost")
        assert await holder.is_lost(held)
        assert [h.fence for h in (await other.inspect(NAME)).holders] == [grant.fence]

    @claim
    async def test_a_holder_learns_that_its_lease_was_taken_away(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        held = await holder.acquire(NAME, ttl=0.6)
        await other.force_release(NAME)
        await lost(holder, held)
        failure = await refused(holder.check(held), "LeaseLost")
        assert failure.facts["name"] == NAME

    @claim
    async def test_max_hold_ends_the_renewal(self, stage: Stage) -> None:
        holder, waiter = await stage.actors(2)
        held = await holder.acquire(NAME, ttl=0.3, max_hold=0.6)
        grant = await waiter.acquire(NAME)  # on a slow machine the lease has expired already, and this does not wait
        assert grant.fence > held.fence
        assert await holder.is_lost(held)

    @claim
    async def test_a_lease_without_renewal_ends_with_its_ttl(self, stage: Stage) -> None:
        holder, observer = await stage.actors(2)
        held = await holder.acquire(NAME, ttl=1, renew=False)
        await holder.check(held)
        await lost(holder, held)
        await free(observer, NAME)

    @claim
    async def test_losers_do_not_extend_the_lease_of_the_holder(self, stage: Stage) -> None:
        holder, loser, observer = await stage.actors(3)
        held = await holder.acquire(NAME, ttl=30, renew=False)
        for _ in range(3):
            assert await loser.try_acquire(NAME, ttl=300) is None
        await refused(loser.acquire(NAME, ttl=300, wait=0.05), "LockTimeout")
        (seen,) = (await observer.inspect(NAME)).holders
        assert seen.expires_at == held.expires_at
