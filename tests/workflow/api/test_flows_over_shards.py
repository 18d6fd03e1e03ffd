"""Runs on a store with several shards: each run is stored in one shard."""

import asyncio
from uuid import uuid4

import pytest

from backstay import Backstay, ConfigError
from backstay.job.ids import hash_shard, shard_of

pytestmark = pytest.mark.redis
SHARDS = 8


def test_a_run_is_stored_in_the_shard_of_its_jobs_concurrency_key(backstay_redis):
    async def whole():
        async with Backstay(backstay_redis.url, namespace=f"flow-{uuid4().hex}", shards=SHARDS) as stay:

            @stay.job(concurrency_key="all", concurrency=2)
            async def work(n: int) -> int:
                return n * n

            @stay.job()
            async def items() -> list[int]:
                return [4, 5]

            @stay.job(concurrency_key="other")
            async def other() -> None: ...

            @stay.workflow
            def together(flow):
                flow.map(work, [1, 2, 3])
                flow.map(work, flow.add(items).output, key="later")

            apart = next(name for name in map(str, range(100)) if hash_shard(name, SHARDS) != hash_shard("all", SHARDS))

            @stay.workflow
            def torn(flow):
                flow.add(work, 1)
                flow.add(other.options(concurrency_key=apart))

            runs = [await together.start() for _ in range(5)]
            assert {shard_of(run.id) for run in runs} == {hash_shard("all", SHARDS)}
            worker = stay.worker(signals=False)
            task = asyncio.create_task(worker.run())
            for run in runs:
                assert await run.wait(timeout=30) == "success"
                assert run.outputs["work"] == [1, 4, 9]
                assert run.outputs["later"] == [16, 25]
            worker.stop()
            await task
            with pytest.raises(ConfigError, match="a job has one shard"):
                await torn.start()

    asyncio.run(whole())


def test_runs_spread_over_the_shards(backstay_redis):
    async def whole():
        async with Backstay(backstay_redis.url, namespace=f"flow-{uuid4().hex}", shards=SHARDS) as stay:

            @stay.job()
            async def work(n: int) -> int:
                return n + 1

            @stay.workflow
            def line(flow, n: int):
                first = flow.add(work, n)
                flow.add(work, first.output, key="second", when="needs.work.result == 'success'")

            runs = [await line.start(n) for n in range(20)]
            assert len({shard_of(run.id) for run in runs}) > 1
            worker = stay.worker(signals=False)
            task = asyncio.create_task(worker.run())
            for n, run in enumerate(runs):
                assert await run.wait(timeout=30) == "success"
                assert run.outputs["second"] == n + 2
            assert len(await stay.runs.list(limit=100)) == 20
            worker.stop()
            await task

    asyncio.run(whole())
