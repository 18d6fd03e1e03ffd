"""enqueue_many stores each batch completely or not at all, also when the caller is cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from backstay import EngineRefused
from backstay.job.flows import BATCH, CONCURRENT_BATCHES
from backstay.testing.waiting import WITHIN
from support.app import UNSHARDED, open_app, url_of
from support.event_loop import on_a_loop

BATCHES = 6


@pytest.fixture(params=UNSHARDED)
def stay(request, namespace):
    return open_app(url_of(request.param, request), namespace)


def counter_of(stay):
    @stay.job()
    async def count(n: int) -> None: ...

    return count


async def count_stored(stay):
    """Count the stored jobs of each batch."""
    queue = await stay.queues.get("default")
    found, before = Counter(), ""
    while page := await stay.jobs.list(before=before, limit=1000):
        found.update(job.args["n"] // BATCH for job in page)
        before = page[-1].id
    assert found.total() == queue.pending
    return found


@on_a_loop
async def test_a_cancelled_enqueue_many_leaves_only_whole_batches(stay):
    async with stay:
        count = counter_of(stay)
        core = stay._core
        sent = []
        batches_sent = asyncio.Event()
        apply = core.port.apply

        def count_and_apply(op):
            sent.append(op)
            if len(sent) == CONCURRENT_BATCHES:
                batches_sent.set()
            return apply(op)

        core.port.apply = count_and_apply
        enqueueing = asyncio.create_task(count.enqueue_many([(n,) for n in range(BATCHES * BATCH)]))
        await asyncio.wait_for(batches_sent.wait(), WITHIN)
        enqueueing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await enqueueing
        del core.port.apply
        await count.enqueue(BATCHES * BATCH)  # replies still match their requests
        found = await count_stored(stay)
        assert found.pop(BATCHES) == 1
        assert set(found.values()) <= {BATCH}
        assert set(found) <= set(range(CONCURRENT_BATCHES))


@on_a_loop
async def test_the_first_refused_batch_stops_enqueue_many(request, namespace):
    async with open_app("memory://", namespace) as stay:
        count = counter_of(stay)
        store, batches = stay.internals.job_store, []
        enqueue = store.enqueue

        def refusing(shard, jobs, *, announce=False):
            batches.append(len(jobs))
            if len(batches) == 1:
                raise EngineRefused("no")
            return enqueue(shard, jobs, announce=announce)

        store.enqueue = refusing
        with pytest.raises(EngineRefused):
            await count.enqueue_many([(n,) for n in range(BATCHES * BATCH)])
        del store.enqueue
        assert len(batches) <= CONCURRENT_BATCHES
        assert len(await count_stored(stay)) < CONCURRENT_BATCHES
