"""A worker over several shards: it finds every job, delivers chain ends across shards and polls no shard too often."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from backstay import Backstay
from backstay.job.flows import send
from backstay.job.ids import shard_of
from backstay.job.store import JOB_STORE
from backstay.job.worker import producer
from backstay.job.worker.outbox_relay import OutboxRelay
from backstay.testing.waiting import WITHIN
from support.app import wait_for_state, working
from support.event_loop import on_a_loop

pytestmark = pytest.mark.redis


@on_a_loop
async def test_jobs_of_every_shard_are_done_once(backstay_redis, namespace):
    stay = Backstay(backstay_redis.url, namespace=namespace, shards=4)
    ran = Counter()

    @stay.job()
    async def count(n: int) -> None:
        ran[n] += 1

    async with stay:
        handles = await count.enqueue_many([(n,) for n in range(200)])
        assert {shard_of(handle.id) for handle in handles} == {0, 1, 2, 3}
        await stay.worker(signals=False, concurrency=10).run(burst=True)
    assert ran == dict.fromkeys(range(200), 1)


@on_a_loop
async def test_a_worker_with_one_slot_sees_every_shard(backstay_redis, namespace):
    stay = Backstay(backstay_redis.url, namespace=namespace, shards=4)

    @stay.job()
    async def one() -> None: ...

    async with stay, working(stay, concurrency=1):
        await asyncio.sleep(0.2)
        for _ in range(12):
            await wait_for_state(stay, await one.enqueue(), "completed")


@on_a_loop
async def test_a_job_of_any_shard_begins_when_a_slot_becomes_free(backstay_redis, namespace, monkeypatch):
    """A free slot does not reveal which shard has work, and the next poll is too late."""
    monkeypatch.setattr(producer, "POLL", 600.0)
    stay = Backstay(backstay_redis.url, namespace=namespace, shards=4)
    gate = asyncio.Event()

    @stay.job()
    async def hold() -> None:
        await gate.wait()

    @stay.job()
    async def quick() -> None: ...

    async with stay, working(stay, concurrency=1, lease=600):
        for _ in range(12):
            gate.clear()
            await wait_for_state(stay, await hold.enqueue(), "running")
            handle = await quick.enqueue()
            gate.set()
            await wait_for_state(stay, handle, "completed")


@on_a_loop
async def test_blockers_in_other_shards_release_their_dependents(backstay_redis, namespace):
    stay = Backstay(backstay_redis.url, namespace=namespace, shards=4)
    ran = []

    @stay.job()
    async def before(n: int) -> int:
        ran.append(n)
        return n

    @stay.job()
    async def after() -> None:
        ran.append("after")

    async with stay:
        handles = await before.enqueue_many([(n,) for n in range(12)])
        assert len({shard_of(handle.id) for handle in handles}) > 1
        last = await after.options(after=handles).enqueue()
        async with working(stay):
            await wait_for_state(stay, last, "completed")
    assert sorted(ran[:-1]) == list(range(12))
    assert ran[-1] == "after"


@on_a_loop
async def test_a_burst_does_not_end_before_dependents_in_other_shards_are_done(backstay_redis, namespace, monkeypatch):
    """Also if the delivery to the other shards takes long."""
    stay = Backstay(backstay_redis.url, namespace=namespace, shards=4)
    release, deliver = asyncio.Event(), OutboxRelay.deliver

    async def deliver_slowly(relay, shard, deliveries):
        await asyncio.sleep(0.05)
        await deliver(relay, shard, deliveries)

    monkeypatch.setattr(OutboxRelay, "deliver", deliver_slowly)

    @stay.job()
    async def before() -> None: ...

    @stay.job()
    async def last() -> None:
        await release.wait()

    @stay.job()
    async def after() -> None: ...

    async with stay:
        blocker = await last.enqueue()
        in_other_shards = [
            handle for handle in await before.enqueue_many([()] * 40) if shard_of(handle.id) != shard_of(blocker.id)
        ]
        dependents = [await after.options(after=[handle, blocker]).enqueue() for handle in in_other_shards]
        burst = asyncio.create_task(stay.worker(signals=False).run(burst=True))
        for handle in in_other_shards:
            await wait_for_state(stay, handle, "completed")
        release.set()
        await burst
        assert [await handle.status() for handle in dependents] == ["completed"] * len(dependents)


@pytest.mark.parametrize("limited", ["type", "queue"])
@on_a_loop
async def test_a_rate_holds_over_all_shards_and_no_job_starves(backstay_redis, namespace, limited):
    """Three workers claim jobs of four shards, in each of which their concurrency keys place some. At any two starts,
    the time between them allows as many as there were. All jobs run.
    """
    interval, burst, number = 25_000, 3, 40
    stay = Backstay(backstay_redis.url, namespace=namespace, shards=4)
    rate = {"rate": "40/second", "burst": burst} if limited == "type" else {}

    @stay.job(concurrency_key="n:{n}", **rate)
    async def work(n: int) -> None: ...

    async with stay:
        if limited == "queue":
            await stay.queues.rate("default", "40/second", burst=burst)
        handles = await work.enqueue_many([(n,) for n in range(number)])
        assert {shard_of(handle.id) for handle in handles} == {0, 1, 2, 3}
        async with working(stay), working(stay), working(stay):
            await asyncio.gather(*(handle.result(WITHIN) for handle in handles))
        store = stay._core.services.get(JOB_STORE)
        starts = sorted([(await send(stay._core, store.get(handle.id))).started for handle in handles])
    for first in range(number):
        for last in range(first + 1, number):
            assert last - first + 1 <= burst + (starts[last] - starts[first]) / interval
