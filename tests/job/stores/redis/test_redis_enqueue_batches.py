"""Enqueues on Redis: those of many tasks share scripts, and one call may have thousands of jobs or dependents."""

from __future__ import annotations

import asyncio

import pytest
from redis_store_client import RedisStoreClient

from backstay.errors import EngineError
from backstay.testing.servers import RedisServer
from backstay.testing.servers.redis import say
from support.store_client import finish

pytestmark = pytest.mark.redis


def test_enqueues_of_many_tasks_take_few_scripts(clients, backstay_redis):
    client = clients()
    client.add()
    before = int(say(backstay_redis, "INFO", "commandstats").partition(b"evalsha:calls=")[2].partition(b",")[0])

    async def enqueue_concurrently():
        jobs = [client.job() for _ in range(500)]
        made = await asyncio.gather(*[client.engine.submit(client.store.enqueue(0, [job])) for job in jobs])
        assert [each.id for (each,) in made] == [job.id for job in jobs]
        await client.engine.close()

    asyncio.run(enqueue_concurrently())
    after = int(say(backstay_redis, "INFO", "commandstats").partition(b"evalsha:calls=")[2].partition(b",")[0])
    assert after - before < 100


def test_a_cancelled_task_does_not_cancel_others_of_its_batch(clients):
    client = clients()

    async def cancel_some():
        jobs = [client.job() for _ in range(100)]
        tasks = [asyncio.ensure_future(client.engine.submit(client.store.enqueue(0, [job]))) for job in jobs]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        await client.engine.close()
        return [job.id for job, reply in zip(jobs, done, strict=True) if not isinstance(reply, BaseException)]

    kept = asyncio.run(cancel_some())
    assert len(kept) >= 66
    reader = clients()
    assert all(reader.apply("get", id_) for id_ in kept)


def test_every_waiting_task_fails_when_the_server_is_gone(namespace):
    with RedisServer() as server:
        client = RedisStoreClient(server.url, namespace)

        async def enqueue_during_the_outage():
            await client.engine.submit(client.store.enqueue(0, [client.job()]))
            server.kill()
            tasks = [client.engine.submit(client.store.enqueue(0, [client.job()])) for _ in range(100)]
            replies = await asyncio.gather(*tasks, return_exceptions=True)
            server.start()
            (made,) = await client.engine.submit(client.store.enqueue(0, [client.job()]))
            await client.engine.close()
            return replies, made

        replies, made = asyncio.run(enqueue_during_the_outage())
        assert all(isinstance(reply, EngineError) for reply in replies)
        assert made.state == "pending"


@pytest.mark.parametrize("fields", [{}, {"run": "r"}], ids=["plain", "with a run"])
def test_more_jobs_than_a_script_call_takes_arguments(clients, fields):
    client = clients()
    jobs = [client.job(**fields) for _ in range(7001)]
    made = client.apply("enqueue", 0, [*jobs, jobs[0]])
    assert [each.id for each in made] == [job.id for job in jobs] + [jobs[0].id]
    assert [job.id for job in client.claim(7001)] == [job.id for job in jobs]
    (queue,) = client.apply("queues")
    assert (queue.pending, queue.running) == (0, 7001)


def test_a_thousand_wait_for_one_and_one_for_a_thousand(clients):
    client = clients()
    first = client.add()
    waiting = [client.job(after=(first,)) for _ in range(1000)]
    client.apply("enqueue", 0, waiting)
    client.finish(client.claim()[0], result=b"r")
    jobs = client.claim(1000)
    assert [job.id for job in jobs] == [job.id for job in waiting]
    assert all(job.upstream == {first: b"r"} for job in jobs)
    last = client.add(after=tuple(job.id for job in jobs), queue="last")
    client.exchange([finish(job) for job in jobs])
    (job,) = client.claim(queues=(("last",),))
    assert (job.id, len(job.upstream)) == (last, 1000)
