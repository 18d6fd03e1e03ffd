"""A worker on a Redis Cluster: eight shards on three masters, and ends of chains that travel between them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from holdfast import Holdfast
from holdfast.job.ids import shard_of

pytestmark = pytest.mark.redis


def test_a_worker_serves_every_shard_of_a_cluster(cluster, namespace):
    async def scene():
        hf = Holdfast(cluster.url, namespace=namespace, shards=8)
        ran = Counter()

        @hf.job()
        async def count(n: int) -> int:
            ran[n] += 1
            return n

        @hf.job()
        async def last() -> None:
            ran["last"] += 1

        async with hf:
            handles = await count.enqueue_many([(n,) for n in range(200)])
            assert {shard_of(handle.id) for handle in handles} == set(range(8))
            end = await last.options(after=handles[:20]).enqueue()
            worker = hf.worker(signals=False, concurrency=20)
            task = asyncio.create_task(worker.run())
            await end.result(timeout=60)
            for handle in handles:
                await handle.result(timeout=60)
            worker.stop()
            await asyncio.wait_for(task, 30)
        assert ran == {**dict.fromkeys(range(200), 1), "last": 1}

    asyncio.run(scene())
