"""Workers on Redis under lost replies, cut connections and restarts of the engine: each job runs once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import backstay
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.waiting import soon
from support.app import open_app, wait_for_state, wait_until, working
from support.event_loop import on_a_loop

pytestmark = [pytest.mark.redis, pytest.mark.chaos]


@pytest.fixture
def proxy(backstay_redis):
    with FaultProxy(backstay_redis.port) as proxy:
        yield proxy


def define_count(stay, runs):
    """Define a job that counts its runs by argument."""

    @stay.job(retries=0)
    async def count(n: int) -> int:
        runs[n] += 1
        await asyncio.sleep(0)
        return n

    return count


async def wait_all_done(worker, count):
    """Wait until the worker has completed or lost this many jobs."""

    async def all_done():
        return worker.counts["completed"] + worker.counts["lost"] >= count

    assert await soon(all_done, within=60), worker.counts


@pytest.mark.parametrize("action", ["cut-after", "cut-before"])
@on_a_loop
async def test_lost_replies_run_nothing_twice_and_leave_nothing_behind(proxy, backstay_redis, namespace, action):
    stay = open_app(proxy.instead_of(backstay_redis.url), namespace)
    direct = open_app(backstay_redis.url, namespace)
    runs = Counter()
    define_count(stay, runs)
    count = define_count(direct, Counter())
    async with direct, stay:
        await count.enqueue_many([(n,) for n in range(300)])
        proxy.rule(action, b"EVALSHA", chance=0.3)
        async with working(stay, concurrency=8) as worker:
            await wait_all_done(worker, 300)
            proxy.heal()
        assert proxy.applied[action] >= 3
        assert runs == dict.fromkeys(range(300), 1)
        assert worker.counts == {"completed": 300}
        queue = next(queue for queue in await direct.queues.list() if queue.name == "default")
        assert (queue.pending, queue.running, queue.completed) == (0, 0, 300)


@on_a_loop
async def test_a_silent_connection_only_delays_jobs(proxy, backstay_redis, namespace):
    url = proxy.instead_of(backstay_redis.url)
    stay = open_app(f"{url}{'&' if '?' in url else '?'}timeout=0.5", namespace)
    direct = open_app(backstay_redis.url, namespace)
    runs = Counter()
    define_count(stay, runs)
    count = define_count(direct, Counter())
    async with direct, stay:
        async with working(stay, concurrency=4) as worker:
            for n in range(0, 60, 20):
                rule = proxy.once("drop", b"EVALSHA")
                await count.enqueue_many([(m,) for m in range(n, n + 20)])
                await wait_all_done(worker, n + 20)
                assert rule.applied.is_set()
        assert runs == dict.fromkeys(range(60), 1)
        assert worker.counts == {"completed": 60}


@on_a_loop
async def test_an_engine_restart_loses_no_job(namespace):
    server = RedisServer(aof=True)
    with server:
        stay = open_app(server.url, namespace)
        runs = Counter()
        release = asyncio.Event()

        @stay.job(retries=0)
        async def held(n: int) -> int:
            runs[n] += 1
            await release.wait()
            return n

        async with stay:
            handles = await held.enqueue_many([(n,) for n in range(10)])
            async with working(stay, concurrency=5, lease=30) as worker:
                await wait_until(lambda: len(runs) == 5)
                server.kill()
                release.set()
                await asyncio.sleep(0.3)
                server.start()
                await wait_all_done(worker, 10)
            assert runs == dict.fromkeys(range(10), 1)
            for handle in handles:
                await wait_for_state(stay, handle, "completed")


@on_a_loop
async def test_a_worker_waits_for_an_engine_that_starts_later(namespace):
    server = RedisServer()
    with server:
        url = server.url
        server.kill()
        stay = open_app(url, namespace)

        @stay.job()
        async def one() -> int:
            return 1

        worker = stay.worker(signals=False)
        task = asyncio.create_task(worker.run())
        await asyncio.sleep(0.3)
        assert not task.done()
        server.start()

        async def is_enqueued():
            try:
                await one.enqueue()
            except backstay.EngineError:
                return False
            return True

        assert await soon(is_enqueued)
        await wait_all_done(worker, 1)
        worker.stop()
        await task
        await stay.close()
