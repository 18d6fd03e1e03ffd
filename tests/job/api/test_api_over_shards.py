"""The jobs API with several shards works like with one."""

from __future__ import annotations

import asyncio
import uuid

import pytest

import backstay
from backstay import ConfigError, current_job
from backstay.job.ids import hash_shard, shard_of
from backstay.job.scheduler.cron_ticks import tick
from backstay.job.worker.producer import POLL
from backstay.testing.jobs import enqueued
from backstay.testing.waiting import WITHIN
from support.app import working
from support.event_loop import on_a_loop

pytestmark = pytest.mark.redis
SHARDS = 4


def new_app(server):
    return backstay.Backstay(server.url, namespace=f"sh{uuid.uuid4().hex[:10]}", shards=SHARDS)


def define(stay):
    @stay.job()
    async def double(n: int) -> int:
        return 2 * n

    @stay.job()
    async def total() -> int:
        return sum(current_job().results.values())

    return double, total


@on_a_loop
async def test_enqueue_many_spreads_over_shards_and_returns_every_result(backstay_redis):
    async with new_app(backstay_redis) as stay:
        double, _ = define(stay)
        handles = await double.enqueue_many([(n,) for n in range(60)])
        assert {shard_of(handle.id) for handle in handles} == set(range(SHARDS))
        async with working(stay):
            assert await asyncio.gather(*(handle.result(WITHIN) for handle in handles)) == [2 * n for n in range(60)]
        assert len(await stay.jobs.list(limit=100)) == 60
        assert (await stay.queues.get("default")).completed == 60


@on_a_loop
async def test_a_job_waits_for_jobs_of_other_shards(backstay_redis):
    async with new_app(backstay_redis) as stay:
        double, total = define(stay)
        parts = await double.enqueue_many([(n,) for n in range(12)])
        handle = await total.options(after=parts).enqueue()
        assert shard_of(handle.id) == shard_of(parts[0].id)
        assert await handle.status() == "blocked"
        async with working(stay):
            assert await handle.result(WITHIN) == sum(2 * n for n in range(12))


@on_a_loop
async def test_a_due_job_is_announced_before_its_shard_is_polled_again(backstay_redis):
    """An idle worker polls one shard after another, so each shard's interval grows with their number."""
    async with new_app(backstay_redis) as stay:
        double, _ = define(stay)
        async with stay.hub.listen_scheduled(["double"]) as notices:
            await double.options(delay=POLL * SHARDS).enqueue(1)
            async with asyncio.timeout(WITHIN):
                async for notice in notices:
                    if notice.hint_id:
                        break


@on_a_loop
async def test_a_unique_key_has_one_shard(backstay_redis):
    async with new_app(backstay_redis) as stay:
        double, _ = define(stay)
        once = double.options(unique="n:{n}")
        handles = await asyncio.gather(*(once.enqueue(7) for _ in range(50)))
        assert len({handle.id for handle in handles}) == 1
        assert sum(not handle.deduplicated for handle in handles) == 1
        assert shard_of(handles[0].id) == hash_shard("n:7", SHARDS)
        with pytest.raises(ConfigError, match="a job has one shard"):
            await asyncio.gather(*(double.options(unique="n:{n}", concurrency_key="k").enqueue(n) for n in range(50)))


@on_a_loop
async def test_a_tick_makes_one_job_across_shards(backstay_redis):
    async with new_app(backstay_redis) as stay:

        @stay.job(cron="* * * * *")
        async def each_minute() -> None: ...

        core = stay._core
        await tick(core)
        real = core.engine.now
        core.engine.now = lambda: real() + 60_000_000
        await asyncio.gather(*(tick(core) for _ in range(10)))
        assert len(await enqueued(each_minute)) == 1
