"""Direct handoffs from Redis to running workers."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest
from redis_store_client import LEASE

from backstay import Backstay
from backstay.errors import OutcomeUnknown
from backstay.job.exchange import Claim
from backstay.job.worker.channel import WorkerChannel, WorkerIdentity
from backstay.telemetry import Telemetry
from backstay.testing.servers.redis import say
from backstay.testing.waiting import soon
from support.app import working

pytestmark = pytest.mark.redis


@pytest.fixture
def open_app(backstay_redis, namespace):
    return lambda: Backstay(backstay_redis.url, namespace=namespace)


def count_waiting_claims(server, namespace):
    """Return the number of claims that wait in the shard for the default queue."""
    return int(say(server, "ZCARD", f"{{{namespace}:s0}}:idle:default"))


async def until_idle(server, namespace):
    """Wait until the claim of the worker waits in the shard."""

    async def is_waiting():
        return count_waiting_claims(server, namespace) == 1

    assert await soon(is_waiting)


def test_an_idle_worker_begins_a_handed_off_job_without_an_exchange(open_app, backstay_redis, namespace):
    async def main():
        async with open_app() as stay:

            @stay.job()
            async def work(number: int) -> int:
                return number

            async with working(stay) as worker:
                await until_idle(backstay_redis, namespace)
                for number in range(5):
                    before = worker.exchanges
                    handle = await work.enqueue(number)
                    assert await handle.result(timeout=5) == number
                    await until_idle(backstay_redis, namespace)
                    assert worker.exchanges == before + 1, "the one that finished the job and left the next claim"
                assert not await stay._core.port.apply(stay.internals.job_store.next_due(0))
            assert worker.counts["completed"] == 5

    asyncio.run(main())


def test_a_busy_worker_receives_no_handoff(open_app, backstay_redis, namespace):
    """A running handler may block the worker's event loop, and another worker may be idle."""

    async def main():
        async with open_app() as stay:
            proceed = asyncio.Event()

            @stay.job()
            async def wait() -> None:
                await proceed.wait()

            async with working(stay):
                await until_idle(backstay_redis, namespace)
                first = await wait.enqueue()
                assert count_waiting_claims(backstay_redis, namespace) == 0
                second = await wait.enqueue()

                async def both_run():
                    return [await first.status(), await second.status()] == ["running", "running"]

                assert await soon(both_run)
                assert count_waiting_claims(backstay_redis, namespace) == 0
                proceed.set()
                await first.result(timeout=5)
                await second.result(timeout=5)
                await until_idle(backstay_redis, namespace)

    asyncio.run(main())


def test_a_stopping_worker_withdraws_its_waiting_claim(open_app, backstay_redis, namespace):
    async def main():
        async with open_app() as stay:

            @stay.job()
            async def work() -> None: ...

            async with working(stay):
                await until_idle(backstay_redis, namespace)
            handle = await work.enqueue()
            assert await handle.status() == "pending"

    asyncio.run(main())


def test_a_job_whose_handoff_message_was_lost_begins_with_the_next_poll(
    open_app, backstay_redis, namespace, monkeypatch
):
    async def main():
        async with open_app() as stay:

            @stay.job()
            async def work(number: int) -> int:
                return number

            async with working(stay) as worker:
                await until_idle(backstay_redis, namespace)
                monkeypatch.setattr(worker._producer, "on_handoff", lambda _: None)
                handle = await work.enqueue(1)
                assert await handle.status() == "running"
                worker._producer.poll_all()
                assert await handle.result(timeout=5) == 1
                await until_idle(backstay_redis, namespace)

    asyncio.run(main())


def test_a_handoff_message_that_overtakes_the_exchange_reply_counts(open_app, backstay_redis, namespace, monkeypatch):
    """The message and the reply of the exchange that left the claim arrive over different connections."""

    async def main():
        async with open_app() as stay, open_app() as enqueuer:

            @stay.job()
            async def work(number: int) -> int:
                return number

            @enqueuer.job(name=work.name)
            async def same_job(number: int) -> int: ...

            async with working(stay) as worker:
                await until_idle(backstay_redis, namespace)
                port = stay._core.port
                apply, handles = port.apply, []

                async def enqueue_before_the_reply(op):
                    reply = await apply(op)
                    if type(reply).__name__ == "ExchangeReply" and not handles:
                        handles.append(await same_job.enqueue(7))
                        assert await handles[0].status() == "running"
                    return reply

                monkeypatch.setattr(
                    type(port), "apply", lambda self, op: enqueue_before_the_reply(op) if self is port else apply(op)
                )
                worker._producer.poll_all()

                async def is_enqueued():
                    return bool(handles)

                assert await soon(is_enqueued)
                monkeypatch.undo()
                before = worker.exchanges
                assert await handles[0].result(timeout=1) == 7
                assert worker.exchanges <= before + 1

    asyncio.run(main())


def test_a_handoff_message_for_a_reaped_job_starts_nothing(client, inbox):
    """The message arrives at once; the reply of the exchange that left the claim arrives after the lease has ended."""

    async def main():
        identity, started, handed_off = WorkerIdentity("worker", "i"), [], []

        class Port:
            """Loses the reply of the first operation, after its handoff was received and reaped."""

            async def apply(self, op):
                if handed_off:
                    return client.engine.apply(op)
                client.engine.apply(op)
                client.add()
                handed = inbox.receive()
                handed_off.append(handed.reply.jobs[0].id)
                assert channel.accept_handoff(handed) is False
                client.now += LEASE + 1
                client.apply("reap", 0)
                raise OutcomeUnknown("no reply")

        core = SimpleNamespace(engine=client.engine, port=Port(), telemetry=Telemetry())
        channel = WorkerChannel(core, client.store, identity, 0, 0, lambda reply, _: started.append(reply))
        channel.busy = True
        claim = Claim(want=1, queues=(("default",),), labels=(), lease=LEASE, waiting=inbox.waiting())
        reply, _ = await channel.exchange([], claim)
        assert reply.jobs == ()
        assert started == []
        assert client.apply("get", handed_off[0]).state == "failed"

    asyncio.run(main())


def test_a_broken_subscription_only_delays_jobs(open_app, backstay_redis, namespace):
    async def main():
        async with open_app() as stay:

            @stay.job()
            async def work(number: int) -> int:
                return number

            async with working(stay):
                await until_idle(backstay_redis, namespace)
                say(backstay_redis, "CLIENT", "KILL", "TYPE", "pubsub")
                handles = [await work.enqueue(number) for number in range(3)]
                assert [await handle.result(timeout=10) for handle in handles] == [0, 1, 2]

    asyncio.run(main())


def test_one_slot_is_filled_once(open_app, backstay_redis, namespace):
    """A waiting claim and the claim of an exchange together never ask for more jobs than there are free slots."""

    async def main():
        async with open_app() as stay:
            running = most = 0

            @stay.job()
            async def work() -> None:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await asyncio.sleep(0)
                running -= 1

            async with working(stay, concurrency=1):
                for _ in range(30):
                    handles = [await work.enqueue() for _ in range(random.randrange(1, 4))]
                    handles += await work.enqueue_many([()] * random.randrange(1, 3))
                    for handle in handles:
                        await handle.result(timeout=5)
            assert most == 1

    asyncio.run(main())
