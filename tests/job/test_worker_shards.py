"""A worker over several shards: everything is found, ends of chains are carried over, nobody is asked too often."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from on_a_loop import on_a_loop
from workshop import reaches, working

from holdfast import Holdfast
from holdfast.job import dispatch
from holdfast.job.courier import Courier
from holdfast.job.ids import shard_of

pytestmark = pytest.mark.redis


@on_a_loop
async def test_jobs_of_every_shard_are_done_once(holdfast_redis, namespace):
    hf = Holdfast(holdfast_redis.url, namespace=namespace, shards=4)
    ran = Counter()

    @hf.job()
    async def count(n: int) -> None:
        ran[n] += 1

    async with hf:
        handles = await count.enqueue_many([(n,) for n in range(200)])
        assert {shard_of(handle.id) for handle in handles} == {0, 1, 2, 3}
        await hf.worker(signals=False, concurrency=10).run(burst=True)
    assert ran == dict.fromkeys(range(200), 1)


@on_a_loop
async def test_a_worker_with_one_slot_sees_every_shard(holdfast_redis, namespace):
    hf = Holdfast(holdfast_redis.url, namespace=namespace, shards=4)

    @hf.job()
    async def one() -> None: ...

    async with hf, working(hf, concurrency=1):
        await asyncio.sleep(0.2)
        for _ in range(12):
            await reaches(hf, await one.enqueue(), "completed")


@on_a_loop
async def test_what_came_while_all_places_were_taken_begins_when_one_is_free_in_whatever_shard_it_is(
    holdfast_redis, namespace, monkeypatch
):
    """Whose place becomes free says nothing of where there is work; and the next poll is too late."""
    monkeypatch.setattr(dispatch, "POLL", 600.0)
    hf = Holdfast(holdfast_redis.url, namespace=namespace, shards=4)
    gate = asyncio.Event()

    @hf.job()
    async def hold() -> None:
        await gate.wait()

    @hf.job()
    async def quick() -> None: ...

    async with hf, working(hf, concurrency=1, lease=600):
        for _ in range(12):
            gate.clear()
            await reaches(hf, await hold.enqueue(), "running")
            handle = await quick.enqueue()
            gate.set()
            await reaches(hf, handle, "completed")


@on_a_loop
async def test_blockers_in_other_shards_release_their_dependents(holdfast_redis, namespace):
    hf = Holdfast(holdfast_redis.url, namespace=namespace, shards=4)
    ran = []

    @hf.job()
    async def before(n: int) -> int:
        ran.append(n)
        return n

    @hf.job()
    async def after() -> None:
        ran.append("after")

    async with hf:
        handles = await before.enqueue_many([(n,) for n in range(12)])
        assert len({shard_of(handle.id) for handle in handles}) > 1
        last = await after.options(after=handles).enqueue()
        async with working(hf):
            await reaches(hf, last, "completed")
    assert sorted(ran[:-1]) == list(range(12))
    assert ran[-1] == "after"


@on_a_loop
async def test_a_burst_does_not_end_before_what_its_ends_release_in_other_shards_is_done(
    holdfast_redis, namespace, monkeypatch
):
    """Also where it takes a while to tell them."""
    hf = Holdfast(holdfast_redis.url, namespace=namespace, shards=4)
    release, deliver = asyncio.Event(), Courier.deliver

    async def slowly(courier, shard, deliveries):
        await asyncio.sleep(0.05)
        await deliver(courier, shard, deliveries)

    monkeypatch.setattr(Courier, "deliver", slowly)

    @hf.job()
    async def before() -> None: ...

    @hf.job()
    async def last() -> None:
        await release.wait()

    @hf.job()
    async def after() -> None: ...

    async with hf:
        blocker = await last.enqueue()
        elsewhere = [
            handle for handle in await before.enqueue_many([()] * 40) if shard_of(handle.id) != shard_of(blocker.id)
        ]
        dependents = [await after.options(after=[handle, blocker]).enqueue() for handle in elsewhere]
        burst = asyncio.create_task(hf.worker(signals=False).run(burst=True))
        for handle in elsewhere:
            await reaches(hf, handle, "completed")
        release.set()
        await burst
        assert [await handle.status() for handle in dependents] == ["completed"] * len(dependents)
