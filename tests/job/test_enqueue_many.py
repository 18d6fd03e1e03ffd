"""Many jobs at once, in batches: each is stored whole or not at all, whatever happens to whoever asked."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from on_a_loop import on_a_loop
from workshop import ONE_PLACE, shop, url_of

from backstay import EngineRefused
from backstay.job.flows import ABREAST, BATCH
from backstay.testing.waiting import WITHIN

BATCHES = 6


@pytest.fixture(params=ONE_PLACE)
def stay(request, namespace):
    return shop(url_of(request.param, request), namespace)


def counter_of(stay):
    @stay.job()
    async def count(n: int) -> None: ...

    return count


async def stored(stay):
    """How many jobs of each batch there are."""
    queue = await stay.queues.get("default")
    found, before = Counter(), ""
    while page := await stay.jobs.list(before=before, limit=1000):
        found.update(job.args["n"] // BATCH for job in page)
        before = page[-1].id
    assert found.total() == queue.pending
    return found


@on_a_loop
async def test_whoever_is_cancelled_with_two_batches_under_way_leaves_whole_ones(stay):
    async with stay:
        count = counter_of(stay)
        core = stay._core
        sent = []
        under_way = asyncio.Event()
        apply = core.port.apply

        def noted(op):
            sent.append(op)
            if len(sent) == ABREAST:
                under_way.set()
            return apply(op)

        core.port.apply = noted
        asking = asyncio.create_task(count.enqueue_many([(n,) for n in range(BATCHES * BATCH)]))
        await asyncio.wait_for(under_way.wait(), WITHIN)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        del core.port.apply
        await count.enqueue(BATCHES * BATCH)  # answers are still those of who asked
        found = await stored(stay)
        assert found.pop(BATCHES) == 1
        assert set(found.values()) <= {BATCH}
        assert set(found) <= set(range(ABREAST))


@on_a_loop
async def test_the_first_batch_that_is_refused_ends_it(request, namespace):
    async with shop("memory://", namespace) as stay:
        count = counter_of(stay)
        store, batches = stay._core.store, []
        enqueue = store.enqueue

        def refusing(shard, jobs, *, tell=False):
            batches.append(len(jobs))
            if len(batches) == 1:
                raise EngineRefused("no")
            return enqueue(shard, jobs, tell=tell)

        store.enqueue = refusing
        with pytest.raises(EngineRefused):
            await count.enqueue_many([(n,) for n in range(BATCHES * BATCH)])
        del store.enqueue
        assert len(batches) <= ABREAST
        assert len(await stored(stay)) < ABREAST
