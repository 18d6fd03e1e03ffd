"""On a single Redis, the enqueue script announces the jobs itself, and a claim consumes the hints that it names."""

from __future__ import annotations

import asyncio

import pytest
import redis

from backstay import Backstay
from backstay.job.model import Unique
from backstay.testing.servers.redis import say
from backstay.testing.waiting import WITHIN, soon
from support.store_client import finish

pytestmark = pytest.mark.redis


@pytest.fixture
def client(clients):
    return clients(announces=True)


@pytest.fixture
def announcements(backstay_redis, namespace):
    """`announcements(n)` waits for exactly n announcements and returns them as (hint, type)."""
    with redis.Redis.from_url(backstay_redis.url) as raw, raw.pubsub() as subscription:
        subscription.subscribe(f"{namespace}:sched")
        assert subscription.get_message(timeout=WITHIN)["type"] == "subscribe"

        def receive(count):
            texts = [subscription.get_message(timeout=WITHIN)["data"].decode() for _ in range(count)]
            assert subscription.get_message(timeout=0.05) is None
            return [tuple(text.split(":", 1)) for text in texts]

        yield receive


def remaining(server, namespace, hint):
    return int(say(server, "GET", f"{namespace}:hint:{hint}"))


def test_each_job_type_gets_one_announcement_with_its_job_count(client, announcements, backstay_redis, namespace):
    client.apply("enqueue", 0, [client.job(), client.job(type="other"), client.job()], announce=True)
    hints = {kind: hint for hint, kind in announcements(2)}
    assert {kind: remaining(backstay_redis, namespace, hint) for kind, hint in hints.items()} == {"work": 2, "other": 1}
    for hint in hints.values():
        assert 0 < int(say(backstay_redis, "PTTL", f"{namespace}:hint:{hint}")) <= 60_000


def test_a_job_that_is_not_pending_is_not_announced(client, announcements):
    client.apply("enqueue", 0, [client.job(delay=60_000_000)], announce=True)
    blocker = client.add()
    client.add(after=(blocker,))
    client.add(unique=Unique("one", "until_done"))
    assert [kind for _, kind in announcements(1)] == ["work"]


def test_a_claim_takes_no_more_than_its_hint_allows(client, announcements, backstay_redis, namespace):
    for _ in range(3):
        client.add()
    first, second, _ = [hint for hint, _ in announcements(3)]
    assert len(client.claim(10, hints=(first, second))) == 2
    assert remaining(backstay_redis, namespace, first) == remaining(backstay_redis, namespace, second) == 0


def test_a_claim_for_hints_that_are_used_up_is_denied_and_changes_nothing(client, announcements):
    client.add()
    ((hint, _),) = announcements(1)
    assert len(client.claim(1, hints=(hint,))) == 1
    client.add()
    denied = client.exchange(want=5, hints=(hint,))
    assert denied.denied
    assert not denied.jobs
    assert len(client.claim(5)) == 1, "a claim without a hint finds the job"


def test_a_claim_for_an_expired_hint_is_not_limited(client, announcements, backstay_redis, namespace):
    client.add()
    ((hint, _),) = announcements(1)
    say(backstay_redis, "DEL", f"{namespace}:hint:{hint}")
    assert len(client.claim(5, hints=(hint,))) == 1


def test_a_resent_claim_consumes_its_hint_once(client, announcements, backstay_redis, namespace):
    client.apply("enqueue", 0, [client.job() for _ in range(4)], announce=True)
    ((hint, _),) = announcements(1)
    command = client.command(want=2, hints=(hint,))
    first, again = client.apply("exchange", command), client.apply("exchange", command)
    assert [job.id for job in first.jobs] == [job.id for job in again.jobs]
    assert remaining(backstay_redis, namespace, hint) == 2


def test_finishes_are_applied_although_the_hint_denies_the_claim(client, announcements):
    client.add()
    ((hint, _),) = announcements(1)
    (job,) = client.claim(1, hints=(hint,))
    reply = client.exchange([finish(job)], want=1, hints=(hint,))
    assert reply.verdicts == ("ok",)
    assert not reply.denied
    assert client.apply("get", job.id).state == "completed"


def test_a_large_announcement_fills_all_slots(backstay_redis, namespace):
    """A claim asks for its channel's share of the slots. A worker that got all of it claims again for the others."""

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


def test_an_enqueue_reloads_scripts_that_the_server_lost(announcements, backstay_redis, namespace):
    async def main():
        async with Backstay(backstay_redis.url, namespace=namespace) as stay:

            @stay.job()
            async def work(number: int) -> int:
                return number

            handles = [await work.enqueue(1)]
            say(backstay_redis, "SCRIPT", "FLUSH")
            handles.append(await work.enqueue(2))
            assert len({hint for hint, _ in announcements(2)}) == 2
            say(backstay_redis, "SCRIPT", "FLUSH")
            await stay.worker().run(burst=True)
            assert [await handle.result(timeout=WITHIN) for handle in handles] == [1, 2]

    asyncio.run(main())
