"""A worker on a Redis Cluster: eight shards on three masters, and a job that waits for jobs of other shards."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from backstay import Backstay
from backstay.job.ids import shard_of

pytestmark = pytest.mark.redis


def test_a_worker_serves_every_shard_of_a_cluster(cluster, namespace):
    async def main():
        stay = Backstay(cluster.url, namespace=namespace, shards=8)
        ran = Counter()

        @stay.job()
        async def count(n: int) -> int:
            ran[n] += 1
            return n

        @stay.job()
        async def last() -> None:
            ran["last"] += 1

        async with stay:
            handles = await count.enqueue_many([(n,) for n in range(200)])
            assert {shard_of(handle.id) for handle in handles} == set(range(8))
            end = await last.options(after=handles[:20]).enqueue()
            worker = stay.worker(signals=False, concurrency=20)
            task = asyncio.create_task(worker.run())
            await end.result(timeout=60)
            for handle in handles:
                await handle.result(timeout=60)
            worker.stop()
            await asyncio.wait_for(task, 30)
        assert ran == {**dict.fromkeys(range(200), 1), "last": 1}

    asyncio.run(main())
