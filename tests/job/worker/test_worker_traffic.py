"""Claim traffic: an idle worker sends little, a hint wakes about one slot, no worker claims more than it can run."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from backstay import sync
from backstay.job.reserved import INTERNAL
from backstay.job.worker.slots import QueueOrder
from backstay.testing.servers.redis import say
from backstay.testing.waiting import WITHIN, eventually, soon
from support.app import KINDS, REDIS, UNSHARDED, open_app, url_of, wait_for_state, wait_until, working
from support.event_loop import on_a_loop

SHARED = [kind for kind in KINDS if kind != "memory"]


@pytest.fixture(params=SHARED)
def shared(request):
    return url_of(request.param, request)


def scripts_run(server):
    """Return the number of scripts that the server has run."""
    stats = say(server, "INFO", "commandstats").decode()
    return sum(
        int(line.partition("calls=")[2].partition(",")[0])
        for line in stats.splitlines()
        if line.startswith(("cmdstat_evalsha:", "cmdstat_eval:"))
    )


@pytest.mark.timed
@pytest.mark.redis
@pytest.mark.slow
@on_a_loop
async def test_an_idle_worker_sends_at_most_one_command_a_second_and_uses_little_cpu(backstay_redis, namespace):
    stay = open_app(backstay_redis.url, namespace)

    @stay.job()
    async def never() -> None: ...

    async with stay, working(stay, concurrency=100):
        await asyncio.sleep(1.0)  # until the worker is idle
        before, computed, began = scripts_run(backstay_redis), time.process_time(), time.monotonic()
        await asyncio.sleep(5.0)
        seconds = time.monotonic() - began
        assert scripts_run(backstay_redis) - before <= seconds
        assert time.process_time() - computed <= 0.02 * seconds  # includes the CPU time of the test itself


@pytest.mark.timed
@pytest.mark.parametrize("shared", [kind for kind in UNSHARDED if kind != "memory"], indirect=True)
@on_a_loop
async def test_jobs_that_come_one_by_one_cause_about_one_claim_each(shared, namespace):
    apps = [open_app(shared, namespace) for _ in range(3)]
    ran = Counter()

    def define(stay):
        @stay.job()
        async def count(n: int) -> None:
            ran[n] += 1

        return count

    jobs = [define(stay) for stay in apps]
    async with contextlib.AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(working(await stack.enter_async_context(stay))) for stay in apps]
        await asyncio.sleep(0.3)
        before, began = sum(worker._producer.exchanges for worker in workers), time.monotonic()
        for n in range(40):
            handle = await jobs[0].enqueue(n)
            await wait_for_state(apps[0], handle, "completed")
        exchanges = sum(worker._producer.exchanges for worker in workers) - before
        polls = 3 * (time.monotonic() - began + 1)
    assert ran == dict.fromkeys(range(40), 1)
    assert exchanges <= 2 * 40 + polls + 10  # a claim and a finish for each


@on_a_loop
async def test_a_worker_takes_no_more_than_it_can_run(shared, namespace):
    hoarder, other = open_app(shared, namespace), open_app(shared, namespace)
    release = asyncio.Event()
    running = Counter()

    def define(stay, name):
        @stay.job(name="hold")
        async def hold(n: int) -> None:
            running[name] += 1
            await release.wait()

        return hold

    job = define(hoarder, "first")
    define(other, "second")
    async with hoarder, other:
        handles = await job.enqueue_many([(n,) for n in range(6)])
        async with working(hoarder, concurrency=2):

            async def two():
                return running["first"] == 2

            assert await soon(two)
            async with working(other, concurrency=10):

                async def four():
                    return running["second"] == 4

                assert await soon(four)
                assert running["first"] == 2
                release.set()
                for handle in handles:
                    await wait_for_state(hoarder, handle, "completed")


@on_a_loop
async def test_delayed_jobs_start_when_they_are_due(url, namespace, monkeypatch):
    monkeypatch.setattr("backstay.job.worker.producer.POLL", 60.0)  # waiting for the next poll would be too late
    stay = open_app(url, namespace)
    started = []

    @stay.job()
    async def later() -> None:
        started.append(time.monotonic())

    async with stay, working(stay):
        await asyncio.sleep(0.2)
        asked = time.monotonic()
        handle = await later.options(delay=0.5).enqueue()
        await wait_for_state(stay, handle, "completed")
        at = later.options(at=datetime.now(UTC) + timedelta(seconds=0.5))
        for handle in await at.enqueue_many([(), ()]):
            await wait_for_state(stay, handle, "completed")
    assert started[0] - asked >= 0.45
    assert len(started) == 3


@pytest.mark.timed
@pytest.mark.parametrize("kind", [REDIS])
@on_a_loop
async def test_an_idle_worker_picks_up_at_once(kind, request, namespace):
    stay = open_app(url_of(kind, request), namespace)
    started = {}

    @stay.job()
    async def when(n: int) -> None:
        started[n] = time.perf_counter()

    async with stay, working(stay):
        await asyncio.sleep(0.3)
        waits = []
        for n in range(50):
            asked = time.perf_counter()
            handle = await when.enqueue(n)
            await wait_for_state(stay, handle, "completed")
            waits.append(started[n] - asked)
    print(f"median {statistics.median(waits) * 1000:.2f} ms")
    assert statistics.median(waits) < 0.1  # a poll would take 0.6 s


@pytest.mark.timed
@on_a_loop
async def test_a_job_enqueued_to_another_queue_is_picked_up_before_the_poll(url, namespace):
    stay = open_app(url, namespace)

    @stay.job(queue="default")
    async def moved() -> None: ...

    async with stay, working(stay, queues=["low"]):
        await asyncio.sleep(0.3)
        began = time.monotonic()
        for _ in range(6):
            await wait_for_state(stay, await moved.options(queue="low").enqueue(), "completed")
        assert (
            time.monotonic() - began < 4
        )  # each finish postpones the next poll: with polls alone this would take seven seconds


@on_a_loop
async def test_heavier_queues_go_first_more_often_and_none_starves(namespace):
    stay = open_app("memory://", namespace)
    order = []

    @stay.job()
    async def take(queue: str) -> None:
        order.append(queue)

    async with stay:
        for queue in ("heavy", "light"):
            await take.options(queue=queue).enqueue_many([(queue,)] * 200)
        async with working(stay, concurrency=1, queues={"heavy": 9, "light": 1}):
            await wait_until(lambda: len(order) >= 200, within=30)
    first = Counter(order[:150])
    assert first["heavy"] > 100
    assert first["light"] > 0


def test_the_queue_order_follows_the_weights():
    order = QueueOrder({"a": 3, "b": 1})
    first = Counter(order.draw()[0][0] for _ in range(4000))
    assert 0.70 < first["a"] / 4000 < 0.80
    # Backstay's own queue is in the first group.
    assert {tuple(map(len, order.draw())) for _ in range(100)} == {(2, 1)}
    assert QueueOrder(["a", "b", "a"]).draw() == (("a", "b", INTERNAL),)
    assert QueueOrder("a").draw() == (("a", INTERNAL),)
    assert QueueOrder({"a": 5}).draw() == (("a", INTERNAL),)


@on_a_loop
async def test_a_burst_ends_when_nothing_is_left(url, namespace):
    stay = open_app(url, namespace)
    ran = []

    @stay.job()
    async def more(n: int) -> None:
        ran.append(n)
        if n:
            await more.enqueue(n - 1)

    async with stay:
        await more.enqueue_many([(3,)] * 20)
        await stay.worker(signals=False, concurrency=4).run(burst=True)
    assert len(ran) == 80


def test_a_blocking_backstay_has_a_worker_with_a_loop_of_its_own(url, namespace):
    stay = sync.Backstay(url, namespace=namespace)
    threads = set()

    @stay.job()
    def plain(n: int) -> int:
        threads.add(threading.current_thread().name)
        return n

    @stay.job()
    async def fancy(n: int) -> int:
        await asyncio.sleep(0)
        return -n

    with stay:
        handles = [plain.enqueue(1), fancy.enqueue(2)]
        stay.worker(signals=False).run(burst=True)
        assert [handle.result(timeout=WITHIN) for handle in handles] == [1, -2]
        worker = stay.worker(signals=False)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert plain.enqueue(3).result(timeout=WITHIN) == 3
        worker.stop()
        thread.join(WITHIN)
        assert not thread.is_alive()
    assert eventually(lambda: threads == {"backstay-handler"})


@on_a_loop
async def test_a_worker_is_listed_while_it_runs(url, namespace):
    stay = open_app(url, namespace)

    @stay.job()
    async def never() -> None: ...

    async with stay:
        async with working(stay, concurrency=7, labels=["gpu"], queues=["a", "b"]) as worker:

            async def listed():
                return [w for w in await stay.jobs.workers() if w.id == worker.id]

            assert await soon(listed)
            (found,) = await listed()
            assert (found.concurrency, found.labels, set(found.queues)) == (7, ("gpu",), {"a", "b"})
        assert not [w for w in await stay.jobs.workers() if w.id == worker.id]
