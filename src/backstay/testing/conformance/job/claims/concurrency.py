"""Concurrency keys: at most `limit` jobs of a key run at once. Further jobs of the key wait, are not lost, and do not
block jobs without the key.
"""

from __future__ import annotations

import asyncio

from backstay.job.model import Concurrency, Failure
from backstay.testing.conformance.job.bench import LEASE, SECOND, Bench, build_finish, store_test

OOPS = Failure("OSError", "disk full")


class JobPerKeyTests:
    """Tests of the option `concurrency`."""

    @store_test
    async def test_no_more_than_the_limit_of_a_key_run_at_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        key = Concurrency(bench.key(), 2)
        ids = await one.add_many(5, concurrency=key)
        first, second = await one.claim(10)
        assert [first.id, second.id] == ids[:2]
        assert await other.claim(10) == []
        assert {await one.state(id_) for id_ in ids[2:]} == {"pending"}
        assert (await one.get(ids[3])).concurrency == key
        reply = await one.exchange([build_finish(first)], want=10)
        assert [job.id for job in reply.jobs] == ids[2:3]
        await one.exchange([build_finish(second), build_finish(reply.jobs[0])])
        assert [job.id for job in await other.claim(10)] == ids[3:]

    @store_test
    async def test_many_claims_at_once_stay_within_the_limit(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        await clients[0].add_many(40, concurrency=Concurrency(bench.key(), 3))
        done = 0
        while done < 40:
            taken = [job for jobs in await asyncio.gather(*[client.claim(2) for client in clients]) for job in jobs]
            assert 1 <= len(taken) <= 3
            await clients[0].exchange([build_finish(job) for job in taken])
            done += len(taken)
        assert await clients[0].claim(10) == []

    @store_test
    async def test_a_full_concurrency_key_hides_no_other_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add_many(50, concurrency=Concurrency(bench.key("full"), 1), priority=50)
        open_ = await one.add(concurrency=Concurrency(bench.key("open"), 1))
        plain = await one.add()
        assert len(await one.claim(1)) == 1
        assert [job.id for job in await other.claim(10)] == [open_, plain]

    @store_test
    async def test_every_way_to_stop_running_makes_room(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for kind in ("complete", "fail", "retry", "snooze", "cancel"):
            key = Concurrency(bench.key(kind), 1)
            await one.add(concurrency=key, retries=1)
            waiting = await one.add(concurrency=key)
            (job,) = await one.claim(10)
            assert await one.finish(job, kind, delay=LEASE, error=OOPS) == "ok"
            (following,) = await other.claim(10)
            assert following.id == waiting, kind
            await other.finish(following)

    @store_test
    async def test_a_released_job_is_claimed_before_later_jobs_of_its_key(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        ids = await one.add_many(3, concurrency=Concurrency(bench.key(), 1))
        for _ in range(3):
            (job,) = await one.claim(10)
            assert job.id == ids[0]
            await one.finish(job, "release")
        order: list[str] = []
        while jobs := await other.claim(10):
            order += [job.id for job in jobs]
            await other.exchange([build_finish(job) for job in jobs])
        assert order == ids

    @store_test
    async def test_a_lost_worker_makes_room(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        key = Concurrency(bench.key(), 1)
        dying = await one.add(concurrency=key, retries=0)
        waiting = await one.add(concurrency=key)
        await one.claim(10)
        assert await other.claim(10) == []
        bench.advance(LEASE)
        assert [job.id for job in await other.claim(10)] == [waiting]
        assert await one.state(dying) == "failed"

    @store_test
    async def test_the_lowest_rank_of_a_key_is_claimed_first(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        key = Concurrency(bench.key(), 1)
        await one.add(concurrency=key)
        (running,) = await one.claim(10)
        low = await one.add(concurrency=key, priority=-1)
        middle = await one.add(concurrency=key)
        await one.claim(10)
        high = await one.add(concurrency=key, priority=5)
        order: list[str] = []
        while True:
            reply = await one.exchange([build_finish(running)], want=10)
            if not reply.jobs:
                break
            (running,) = reply.jobs
            order.append(running.id)
        assert order == [high, middle, low]

    @store_test
    async def test_when_the_next_job_of_a_key_is_cancelled_the_following_one_runs(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        key = Concurrency(bench.key(), 1)
        ids = await one.add_many(3, concurrency=key)
        (running,) = await one.claim(10)
        await one.finish(running)
        await other.call("cancel", ids[1], "not needed")
        assert [job.id for job in await other.claim(10)] == [ids[2]]

    @store_test
    async def test_a_waiting_job_of_the_key_can_be_cancelled(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        ids = await one.add_many(3, concurrency=Concurrency(bench.key(), 1))
        (running,) = await one.claim(10)
        assert await other.call("cancel", ids[1], "not needed") == "cancelled"
        await one.finish(running)
        assert [job.id for job in await other.claim(10)] == [ids[2]]

    @store_test
    async def test_an_unclaimable_job_of_a_key_hides_no_other_job_of_the_key(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        key = Concurrency(bench.key(), 1)
        await one.add(concurrency=key)
        (running,) = await one.claim(10)
        await one.add(concurrency=key, labels=("gpu",))
        await one.add(concurrency=key, queue="elsewhere")
        mine = await one.add(concurrency=key)
        assert await other.claim(10, labels=["gpu"], queues=[["default", "elsewhere"]]) == []
        await one.finish(running)
        assert [job.id for job in await other.claim(10)] == [mine]

    @store_test
    async def test_room_that_came_while_the_queue_was_paused_is_used_afterwards(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        key = Concurrency(bench.key(), 1)
        ids = await one.add_many(3, concurrency=key)
        (running,) = await one.claim(10)
        await other.claim(10)
        await one.call("pause", "default", paused=True)
        await one.finish(running)
        assert await other.claim(10) == []
        await one.call("pause", "default", paused=False)
        assert [job.id for job in await other.claim(10)] == ids[1:2]

    @store_test
    async def test_a_triggered_job_waits_for_its_key_like_any_other(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        key = Concurrency(bench.key(), 1)
        failed = await one.add(concurrency=key)
        await one.finish(await one.take(), "fail", error=OOPS)
        await one.add(concurrency=key)
        running = await one.take()
        assert await other.call("trigger", failed) == "pending"
        assert await other.claim(10) == []
        await one.finish(running)
        assert (await other.take()).id == failed

    @store_test
    async def test_a_renewed_job_keeps_its_place_of_the_key(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add_many(2, concurrency=Concurrency(bench.key(), 1))
        (job,) = await one.claim(10)
        for _ in range(3):
            bench.advance(LEASE - SECOND)
            assert await one.renew(job) == ["ok"]
            assert await other.claim(10) == []
