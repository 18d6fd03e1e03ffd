"""A lease is valid as long as it is renewed. Otherwise it expires, and an expired lease never becomes valid again."""

from __future__ import annotations

from datetime import datetime

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.cases import NAME, enter, wait_free, wait_lost
from backstay.testing.waiting import soon


class GateLeasesTests:
    """Tests of renewal, expiry, `max_hold` and loss."""

    @driver_test
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

    @driver_test
    async def test_an_explicit_renewal_extends_the_lease(self, stage: Stage) -> None:
        holder, observer = await stage.actors(2)
        grant = await holder.acquire(NAME, ttl=30)
        renewed = await holder.renew(grant, 300)
        gained = datetime.fromisoformat(renewed.expires_at) - datetime.fromisoformat(grant.expires_at)
        assert 265 < gained.total_seconds() < 330
        (seen,) = (await observer.inspect(NAME)).holders
        assert seen.expires_at == renewed.expires_at

    @driver_test
    async def test_a_lease_that_ends_lets_the_next_waiter_in(self, stage: Stage) -> None:
        holder, waiter, observer = await stage.actors(3)
        held = await holder.acquire(
            NAME, ttl=2, renew=False
        )  # long enough for the waiter to enter the queue on a busy machine
        place = await enter(observer, waiter, NAME)
        grant = await place
        assert grant.fence > held.fence
        assert await holder.is_lost(held)

    @driver_test
    async def test_renewing_a_lost_lease_fails_and_never_brings_it_back(self, stage: Stage) -> None:
        holder, observer = await stage.actors(2)
        held = await holder.acquire(NAME, ttl=0.1, renew=False)
        await wait_free(observer, NAME)
        failure = await assert_refused(holder.renew(held, 30), "LeaseLost")
        assert failure.facts["lock_id"] == held.lock_id
        assert failure.facts["fence"] == held.fence
        assert not (await observer.inspect(NAME)).held

    @driver_test
    async def test_renewing_a_lock_of_another_holder_changes_nothing(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        held = await holder.acquire(NAME, ttl=30)
        await other.force_release(NAME)
        grant = await other.acquire(NAME, wait=0)
        await assert_refused(holder.renew(held), "LeaseLost")
        assert await holder.is_lost(held)
        assert [h.fence for h in (await other.inspect(NAME)).holders] == [grant.fence]

    @driver_test
    async def test_a_holder_is_notified_of_a_forced_release(self, stage: Stage) -> None:
        holder, other = await stage.actors(2)
        held = await holder.acquire(NAME, ttl=0.6)
        await other.force_release(NAME)
        await wait_lost(holder, held)
        failure = await assert_refused(holder.check(held), "LeaseLost")
        assert failure.facts["name"] == NAME

    @driver_test
    async def test_max_hold_ends_the_renewal(self, stage: Stage) -> None:
        holder, waiter = await stage.actors(2)
        held = await holder.acquire(NAME, ttl=0.3, max_hold=0.6)
        grant = await waiter.acquire(NAME)  # on a slow machine the lease has expired already, and this does not wait
        assert grant.fence > held.fence
        assert await holder.is_lost(held)

    @driver_test
    async def test_a_lease_without_renewal_ends_with_its_ttl(self, stage: Stage) -> None:
        holder, observer = await stage.actors(2)
        held = await holder.acquire(NAME, ttl=1, renew=False)
        await holder.check(held)
        await wait_lost(holder, held)
        await wait_free(observer, NAME)

    @driver_test
    async def test_waiters_do_not_extend_the_holders_lease(self, stage: Stage) -> None:
        holder, loser, observer = await stage.actors(3)
        held = await holder.acquire(NAME, ttl=30, renew=False)
        for _ in range(3):
            assert await loser.try_acquire(NAME, ttl=300) is None
        await assert_refused(loser.acquire(NAME, ttl=300, wait=0.05), "LockTimeout")
        (seen,) = (await observer.inspect(NAME)).holders
        assert seen.expires_at == held.expires_at
