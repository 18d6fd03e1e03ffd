"""Claims: which jobs a worker gets, and in which order. A claim lists groups of queues: jobs of an earlier group come
first, and within a group the order is that of priority and age. No job is claimed twice, and a job that a worker cannot
claim does not block the jobs after it (no head-of-line blocking).
"""

from __future__ import annotations

import asyncio

from backstay.job.model import AGEING
from backstay.testing.conformance.job.bench import LEASE, MINUTE, SECOND, Bench, store_test


class JobClaimingTests:
    """Tests of the claim in `exchange`."""

    @store_test
    async def test_a_claimed_job_is_handed_over_whole(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        new = bench.job("resize", args=b"\x00a", meta=b"m", priority=3, retries=2, run="r", labels=("gpu",))
        await one.enqueue(new)
        enqueued = bench.now
        bench.advance(SECOND)
        job = await other.take(labels=["eu", "gpu"])
        assert (job.id, job.type, job.queue, job.args, job.meta) == (new.id, "resize", "default", b"\x00a", b"m")
        assert (job.attempt, job.retries, job.snoozes, job.priority) == (1, 2, 0, 3)
        assert (job.chain, job.run, job.labels, job.upstream) == (new.id, "r", ("gpu",), {})
        assert (job.enqueued, job.due, job.until) == (enqueued, enqueued, bench.now + LEASE)
        seen = await one.get(new.id)
        assert (seen.state, seen.worker, seen.fence, seen.lease_until) == ("running", other.name, job.fence, job.until)
        assert (seen.attempt, seen.started, seen.finished) == (1, bench.now, 0)

    @store_test
    async def test_two_callers_never_get_the_same_job(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        ids = await clients[0].add_many(120)
        taken = await asyncio.gather(*[client.claim(7) for _ in range(6) for client in clients])
        got = [job.id for jobs in taken for job in jobs]
        assert len(got) == len(set(got))
        got += [job.id for job in await clients[0].claim(200)]
        assert sorted(got) == sorted(ids)

    @store_test
    async def test_a_claim_never_gives_more_than_was_wanted(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add_many(10)
        assert [len(await one.claim(want)) for want in (0, 3, 4, 5, 5)] == [0, 3, 4, 3, 0]

    @store_test
    async def test_the_oldest_due_job_is_claimed_first(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        late = await one.add(delay=20 * SECOND)
        early = await one.add(delay=10 * SECOND)
        first = await one.add()
        bench.advance(30 * SECOND)
        now = await one.add()
        assert [job.id for job in await one.claim(10)] == [first, early, late, now]

    @store_test
    async def test_a_job_of_higher_priority_is_claimed_first(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        ids = {priority: await one.add(priority=priority) for priority in (0, -100, 5, 100, -1, 1)}
        assert [job.id for job in await one.claim(10)] == [ids[priority] for priority in sorted(ids, reverse=True)]

    @store_test
    async def test_a_long_waiting_job_is_claimed_before_a_new_one_of_higher_priority(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        old = await one.add(priority=0)
        bench.advance(AGEING - 1)
        sooner = await one.add(priority=1)
        bench.advance(2)
        later = await one.add(priority=1)
        assert [job.id for job in await one.claim(10)] == [sooner, old, later]

    @store_test
    async def test_groups_of_queues_come_in_order(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        low = await one.add(queue="low", priority=100)
        bench.advance(1)
        b = await one.add(queue="b")
        bench.advance(1)
        a = await one.add(queue="a")
        await one.add(queue="elsewhere")
        got = await one.claim(10, queues=[["a", "b"], ["low"]])
        assert [job.id for job in got] == [b, a, low]

    @store_test
    async def test_within_a_group_the_smallest_rank_of_all_queues_is_claimed_first(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        ids: list[str] = []
        for nth in range(12):
            ids.append(await one.add(queue="abc"[nth % 3], labels=(("gpu",), ())[nth % 2]))
            bench.advance(1)
        got = [(await one.take(queues=[["c", "a", "b"]], labels=["gpu"])).id for _ in ids]
        assert got == ids

    @store_test
    async def test_a_queue_that_was_not_asked_for_is_left_alone(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add(queue="other")
        assert await one.claim(5) == []
        assert await one.claim(5, queues=[["nothing"], ["here"]]) == []
        assert len(await one.claim(5, queues=[["other"]])) == 1

    @store_test
    async def test_a_job_needs_all_its_labels_among_the_workers(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        both = await one.add(labels=("eu", "gpu"))
        assert await one.claim(5) == []
        assert await one.claim(5, labels=["gpu"]) == []
        assert await one.claim(5, labels=["eu", "gp", "gpux"]) == []
        assert (await one.take(labels=["arm", "eu", "gpu"])).id == both

    @store_test
    async def test_a_worker_with_labels_takes_jobs_without(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        plain = await one.add()
        assert (await one.take(labels=["gpu"])).id == plain

    @store_test
    async def test_fences_grow_with_every_claim(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add_many(20, retries=9)
        fences: list[int] = []
        for client in (one, other, one):
            jobs = await client.claim(5)
            fences += [job.fence for job in jobs]
            for job in jobs:
                await client.finish(job, "release")
        assert len(fences) == 15
        assert fences == sorted(set(fences))

    @store_test
    async def test_next_in_is_the_time_until_the_next_due_job_or_expiry(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        assert (await one.exchange()).next_in is None
        assert await one.call("next_due", bench.shard) is None
        await one.add(delay=MINUTE)
        assert (await one.exchange()).next_in == MINUTE
        assert await one.call("next_due", bench.shard) == MINUTE
        bench.advance(SECOND)
        assert (await other.exchange()).next_in == MINUTE - SECOND
        await one.add()
        reply = await one.exchange(want=1, lease=5 * SECOND)
        assert (len(reply.jobs), reply.next_in) == (1, 5 * SECOND)
        assert await other.call("next_due", bench.shard) == 5 * SECOND
        await one.finish(reply.jobs[0])
        assert (await other.exchange()).next_in == MINUTE - SECOND

    @store_test
    async def test_ready_counts_jobs_made_pending_and_not_claimed_by_the_exchange(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add_many(3, "a", delay=SECOND)
        await one.add_many(2, "b", delay=SECOND)
        await one.add("old")
        bench.advance(SECOND)
        reply = await other.exchange(want=2)
        assert [job.type for job in reply.jobs] == ["old", "a"]
        assert reply.ready == {"a": 2, "b": 2}
        assert (await one.exchange()).ready == {}

    @store_test
    async def test_an_exchange_returns_the_engines_time(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        bench.advance(SECOND)
        assert (await one.exchange()).now == bench.now
