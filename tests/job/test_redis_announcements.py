"""On one Redis, enqueueing calls the workers in the same step, and a claim takes from the hint that called it."""

from __future__ import annotations

import asyncio

import pytest
import redis
from redis_desk import RedisDesk

from backstay import Backstay
from backstay.job.model import Finish, Unique
from backstay.testing.redis_server import say
from backstay.testing.waiting import WITHIN, soon

pytestmark = pytest.mark.redis


@pytest.fixture
def desk(backstay_redis, namespace):
    made = RedisDesk(backstay_redis.url, namespace, announces=True)
    yield made
    made.close()


@pytest.fixture
def heard(backstay_redis, namespace):
    """Announcements, as a stranger hears them: hint and type."""
    with redis.Redis.from_url(backstay_redis.url) as client, client.pubsub() as ear:
        ear.subscribe(f"{namespace}:sched")
        assert ear.get_message(timeout=WITHIN)["type"] == "subscribe"

        def take(count):
            said = [ear.get_message(timeout=WITHIN)["data"].decode() for _ in range(count)]
            assert ear.get_message(timeout=0.05) is None
            return [tuple(text.split(":", 1)) for text in said]

        yield take


def left(server, namespace, hint):
    return int(say(server, "GET", f"{namespace}:hint:{hint}"))


def test_one_announcement_for_each_type_with_its_number(desk, heard, backstay_redis, namespace):
    desk.ask("enqueue", 0, [desk.job(), desk.job(type="other"), desk.job()], tell=True)
    said = {kind: hint for hint, kind in heard(2)}
    assert {kind: left(backstay_redis, namespace, hint) for kind, hint in said.items()} == {"work": 2, "other": 1}
    for hint in said.values():
        assert 0 < int(say(backstay_redis, "PTTL", f"{namespace}:hint:{hint}")) <= 60_000


def test_what_is_not_pending_at_once_is_not_announced(desk, heard):
    desk.ask("enqueue", 0, [desk.job(delay=60_000_000)], tell=True)
    blocker = desk.add()
    desk.add(after=(blocker,))
    desk.add(unique=Unique("one", "until_done"))
    assert [kind for _, kind in heard(1)] == ["work"]


def test_a_claim_takes_no_more_than_its_hint_allows(desk, heard, backstay_redis, namespace):
    for _ in range(3):
        desk.add()
    first, second, _ = [hint for hint, _ in heard(3)]
    assert len(desk.take(10, hints=(first, second))) == 2
    assert left(backstay_redis, namespace, first) == left(backstay_redis, namespace, second) == 0


def test_a_claim_for_hints_that_are_used_up_is_denied_and_changes_nothing(desk, heard):
    desk.add()
    ((hint, _),) = heard(1)
    assert len(desk.take(1, hints=(hint,))) == 1
    desk.add()
    denied = desk.step(want=5, hints=(hint,))
    assert denied.denied
    assert not denied.jobs
    assert len(desk.take(5)) == 1, "who looks for itself finds it"


def test_a_claim_for_a_hint_that_is_gone_takes_freely(desk, heard, backstay_redis, namespace):
    desk.add()
    ((hint, _),) = heard(1)
    say(backstay_redis, "DEL", f"{namespace}:hint:{hint}")
    assert len(desk.take(5, hints=(hint,))) == 1


def test_a_claim_that_is_sent_again_takes_from_its_hint_once(desk, heard, backstay_redis, namespace):
    desk.ask("enqueue", 0, [desk.job() for _ in range(4)], tell=True)
    ((hint, _),) = heard(1)
    command = desk.command(want=2, hints=(hint,))
    first, again = desk.ask("step", command), desk.ask("step", command)
    assert [job.id for job in first.jobs] == [job.id for job in again.jobs]
    assert left(backstay_redis, namespace, hint) == 2


def test_finishes_are_taken_although_the_hint_denies(desk, heard):
    desk.add()
    ((hint, _),) = heard(1)
    (job,) = desk.take(1, hints=(hint,))
    said = desk.step([Finish(job=job.id, fence=job.fence, kind="complete")], want=1, hints=(hint,))
    assert said.verdicts == ("ok",)
    assert not said.denied
    assert desk.ask("get", job.id).state == "completed"


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


def test_a_server_that_forgot_its_scripts_is_told_them_by_whoever_enqueues(heard, backstay_redis, namespace):
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
