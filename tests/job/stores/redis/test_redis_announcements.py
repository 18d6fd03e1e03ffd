"""On one Redis, enqueueing calls the workers in the same step, and a claim takes from the hint that called it."""

from __future__ import annotations

import asyncio

import pytest
import redis
from redis_store_client import RedisStoreClient

from backstay import Backstay
from backstay.job.model import Finish, Unique
from backstay.testing.servers.redis import say
from backstay.testing.waiting import WITHIN, soon

pytestmark = pytest.mark.redis


@pytest.fixture
def client(backstay_redis, namespace):
    made = RedisStoreClient(backstay_redis.url, namespace, announces=True)
    yield made
    made.close()


@pytest.fixture
def heard(backstay_redis, namespace):
    """Announcements, as any subscriber receives them: hint and type."""
    with redis.Redis.from_url(backstay_redis.url) as raw, raw.pubsub() as ear:
        ear.subscribe(f"{namespace}:sched")
        assert ear.get_message(timeout=WITHIN)["type"] == "subscribe"

        def take(count):
            said = [ear.get_message(timeout=WITHIN)["data"].decode() for _ in range(count)]
            assert ear.get_message(timeout=0.05) is None
            return [tuple(text.split(":", 1)) for text in said]

        yield take


def left(server, namespace, hint):
    return int(say(server, "GET", f"{namespace}:hint:{hint}"))


def test_each_job_type_gets_one_announcement_with_its_job_count(client, heard, backstay_redis, namespace):
    client.ask("enqueue", 0, [client.job(), client.job(type="other"), client.job()], announce=True)
    said = {kind: hint for hint, kind in heard(2)}
    assert {kind: left(backstay_redis, namespace, hint) for kind, hint in said.items()} == {"work": 2, "other": 1}
    for hint in said.values():
        assert 0 < int(say(backstay_redis, "PTTL", f"{namespace}:hint:{hint}")) <= 60_000


def test_a_job_that_is_not_pending_is_not_announced(client, heard):
    client.ask("enqueue", 0, [client.job(delay=60_000_000)], announce=True)
    blocker = client.add()
    client.add(after=(blocker,))
    client.add(unique=Unique("one", "until_done"))
    assert [kind for _, kind in heard(1)] == ["work"]


def test_a_claim_takes_no_more_than_its_hint_allows(client, heard, backstay_redis, namespace):
    for _ in range(3):
        client.add()
    first, second, _ = [hint for hint, _ in heard(3)]
    assert len(client.take(10, hints=(first, second))) == 2
    assert left(backstay_redis, namespace, first) == left(backstay_redis, namespace, second) == 0


def test_a_claim_for_hints_that_are_used_up_is_denied_and_changes_nothing(client, heard):
    client.add()
    ((hint, _),) = heard(1)
    assert len(client.take(1, hints=(hint,))) == 1
    client.add()
    denied = client.exchange(want=5, hints=(hint,))
    assert denied.denied
    assert not denied.jobs
    assert len(client.take(5)) == 1, "who looks for itself finds it"


def test_a_claim_for_an_expired_hint_is_not_limited(client, heard, backstay_redis, namespace):
    client.add()
    ((hint, _),) = heard(1)
    say(backstay_redis, "DEL", f"{namespace}:hint:{hint}")
    assert len(client.take(5, hints=(hint,))) == 1


def test_a_resent_claim_consumes_its_hint_once(client, heard, backstay_redis, namespace):
    client.ask("enqueue", 0, [client.job() for _ in range(4)], announce=True)
    ((hint, _),) = heard(1)
    command = client.command(want=2, hints=(hint,))
    first, again = client.ask("exchange", command), client.ask("exchange", command)
    assert [job.id for job in first.jobs] == [job.id for job in again.jobs]
    assert left(backstay_redis, namespace, hint) == 2


def test_finishes_are_applied_although_the_hint_denies_the_claim(client, heard):
    client.add()
    ((hint, _),) = heard(1)
    (job,) = client.take(1, hints=(hint,))
    said = client.exchange([Finish(job=job.id, fence=job.fence, kind="complete")], want=1, hints=(hint,))
    assert said.verdicts == ("ok",)
    assert not said.denied
    assert client.ask("get", job.id).state == "completed"


def test_a_large_announcement_fills_all_slots(backstay_redis, namespace):
    """A claim asks for one lane's share; one that came back full goes again for the rest."""

    async def main():
        running = 0
        enough = asyncio.Event()
        async with Backstay(backstay_redis.url, namespace=namespace) as stay:

            @stay.job()
            async def wait():
                nonlocal running
                running += 1
                await enough.wait()

            worker = asyncio.create_task(stay.worker(concurrency=8).run())
            try:
                await asyncio.sleep(0)

                async def idle():
                    return len(await stay.jobs.workers()) == 1

                assert await soon(idle)
                await wait.enqueue_many([()] * 30)

                async def full():
                    return running == 8

                assert await soon(full)
                enough.set()

                async def done():
                    return running == 30

                assert await soon(done)
            finally:
                worker.cancel()
                await asyncio.gather(worker, return_exceptions=True)

    asyncio.run(main())


def test_an_enqueue_reloads_scripts_that_the_server_lost(heard, backstay_redis, namespace):
    async def main():
        async with Backstay(backstay_redis.url, namespace=namespace) as stay:

            @stay.job()
            async def work(number: int) -> int:
                return number

            handles = [await work.enqueue(1)]
            say(backstay_redis, "SCRIPT", "FLUSH")
            handles.append(await work.enqueue(2))
            assert len({hint for hint, _ in heard(2)}) == 2
            say(backstay_redis, "SCRIPT", "FLUSH")
            await stay.worker().run(burst=True)
            assert [await handle.result(timeout=WITHIN) for handle in handles] == [1, 2]

    asyncio.run(main())
