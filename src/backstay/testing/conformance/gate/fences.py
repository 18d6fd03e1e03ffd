"""Fences increase with every grant."""

from __future__ import annotations

from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.cases import NAME, wait_free


class GateFencesTests:
    """Fences increase strictly and stay below 2**53, so that a double represents them exactly."""

    @driver_test
    async def test_a_fence_grows_with_every_grant(self, stage: Stage) -> None:
        actors = await stage.actors(3)
        fences: list[int] = []
        for turn in range(12):
            actor = actors[turn % len(actors)]
            grant = await actor.acquire(NAME)
            fences.append(grant.fence)
            await actor.release(grant)
        assert fences == sorted(set(fences))
        assert fences[0] > 0
        assert fences[-1] < 2**53

    @driver_test
    async def test_a_fence_grows_over_expiry(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        grant = await one.acquire(NAME, ttl=0.1, renew=False)
        await wait_free(other, NAME)
        assert (await other.acquire(NAME, wait=0)).fence > grant.fence

    @driver_test
    async def test_a_fence_grows_over_a_forced_release(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        grant = await one.acquire(NAME)
        forced = await other.force_release(NAME)
        assert forced.fence > grant.fence
        assert (await other.inspect(NAME)).fence == forced.fence
        assert (await other.acquire(NAME, wait=0)).fence > forced.fence

    @driver_test
    async def test_every_permit_and_every_reader_has_a_fence_of_its_own(self, stage: Stage) -> None:
        actors = await stage.actors(3)
        permits = [(await actor.acquire("s", "semaphore", permits=3)).fence for actor in actors]
        assert permits == sorted(set(permits))
        reads = [(await actor.acquire("r", "read")).fence for actor in actors]
        assert reads == sorted(set(reads))

    @driver_test
    async def test_renewing_does_not_change_the_fence(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        grant = await one.acquire(NAME)
        assert (await one.renew(grant)).fence == grant.fence
        assert (await one.inspect(NAME)).fence == grant.fence
