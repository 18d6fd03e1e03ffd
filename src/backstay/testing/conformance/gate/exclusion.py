"""A lock has one holder at a time and a semaphore at most n, under any contention."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.actor import Actor
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.cases import NAME

ROUNDS = 4


class HolderCounter:
    """Counts the concurrent holders, each from the receipt of its grant until it sends the release."""

    def __init__(self) -> None:
        self.now = self.peak = self.total = 0

    async def visit(self, actor: Actor, kind: str, rounds: int = ROUNDS, **options: object) -> None:
        for _ in range(rounds):
            grant = await actor.acquire(NAME, kind, **options)
            self.now += 1
            self.total += 1
            self.peak = max(self.peak, self.now)
            await asyncio.sleep(0.001)
            self.now -= 1
            await actor.release(grant)


class GateExclusionTests:
    """A lock has one holder, a semaphore at most as many as it has permits, and a writer is alone."""

    @driver_test
    async def test_a_lock_has_one_holder_at_a_time(self, stage: Stage) -> None:
        actors = await stage.actors(6)
        inside = HolderCounter()
        await asyncio.gather(*[inside.visit(actor, "lock") for actor in actors])
        assert inside.peak == 1
        assert inside.total == len(actors) * ROUNDS
        assert (await actors[0].inspect(NAME)).count == 0

    @driver_test
    async def test_a_semaphore_never_admits_more_than_its_permits(self, stage: Stage) -> None:
        actors = await stage.actors(6)
        inside = HolderCounter()
        await asyncio.gather(*[inside.visit(actor, "semaphore", permits=3) for actor in actors])
        assert inside.peak <= 3
        assert inside.total == len(actors) * ROUNDS
        assert (await actors[0].inspect(NAME)).count == 0

    @driver_test
    async def test_a_semaphore_admits_exactly_its_permits(self, stage: Stage) -> None:
        actors = await stage.actors(4)
        grants = [await actor.try_acquire(NAME, "semaphore", permits=3) for actor in actors[:3]]
        assert all(grants)
        assert await actors[3].try_acquire(NAME, "semaphore", permits=3) is None
        assert grants[1] is not None
        await actors[1].release(grants[1])
        assert await actors[3].try_acquire(NAME, "semaphore", permits=3) is not None
        assert await actors[1].try_acquire(NAME, "semaphore", permits=3) is None

    @driver_test
    async def test_a_writer_is_alone_under_contention(self, stage: Stage) -> None:
        actors = await stage.actors(6)
        writers, readers = HolderCounter(), HolderCounter()
        overlap = 0

        async def watch(task: asyncio.Future[list[None]]) -> None:
            nonlocal overlap
            while not task.done():
                overlap += bool(writers.now and readers.now)
                await asyncio.sleep(0)

        everybody = asyncio.gather(
            *[writers.visit(actor, "write") for actor in actors[:3]],
            *[readers.visit(actor, "read") for actor in actors[3:]],
        )
        await watch(everybody)
        await everybody
        assert overlap == 0
        assert writers.peak == 1

    @driver_test
    async def test_a_released_lock_is_free_at_once(self, stage: Stage) -> None:
        first, second = await stage.actors(2)
        for actor, other in ((first, second), (second, first), (first, second)):
            grant = await actor.acquire(NAME, wait=0)
            assert await other.try_acquire(NAME) is None
            await actor.release(grant)

    @driver_test
    async def test_different_names_do_not_exclude_each_other(self, stage: Stage) -> None:
        first, second = await stage.actors(2)
        await first.acquire("a", wait=0)
        await second.acquire("b", wait=0)
        assert await first.try_acquire("b") is None
