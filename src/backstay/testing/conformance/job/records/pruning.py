"""A final job is kept for its retention time and then deleted, with its logs, outputs and artifacts."""

from __future__ import annotations

from typing import Any

from backstay.job.model import Failure
from backstay.testing.conformance.job.bench import HOUR, MINUTE, SECOND, Bench, StoreClient, store_test

OOPS = Failure("OSError", "disk full")
MANY = 1_000_000


async def ended(client: StoreClient, kind: Any = "complete", **fields: Any) -> str:
    id_ = await client.add(**fields)
    await client.finish(await client.take(), kind, error=OOPS if kind == "fail" else None)
    return id_


async def is_gone(client: StoreClient, job: str) -> bool:
    return await client.call("get", job) is None


class JobPruningTests:
    """Tests of `prune` and `purge`."""

    @store_test
    async def test_final_jobs_are_pruned_after_their_retention_time(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        done = await ended(one, keep=MINUTE, keep_failed=HOUR)
        failed = await ended(one, "fail", keep=MINUTE, keep_failed=HOUR)
        bench.advance(MINUTE - SECOND)
        assert await other.call("prune", bench.shard, MANY) == 0
        bench.advance(2 * SECOND)
        assert await other.call("prune", bench.shard, MANY) == 1
        assert (await is_gone(one, done), await is_gone(one, failed)) == (True, False)
        bench.advance(HOUR)
        assert await other.call("prune", bench.shard, MANY) == 1
        assert await is_gone(one, failed)
        assert await other.call("list_jobs") == []

    @store_test
    async def test_unfinished_jobs_are_never_pruned(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        running = await one.add(keep=1, keep_failed=1)
        await one.claim(1, lease=100 * HOUR)
        pending = await one.add(keep=1, keep_failed=1)
        scheduled = await one.add(keep=1, keep_failed=1, delay=50 * HOUR)
        blocked = await one.add(keep=1, keep_failed=1, after=(running,))
        bench.advance(HOUR)
        assert await one.call("prune", bench.shard, 0) == 0
        states = [await one.state(id_) for id_ in (running, pending, scheduled, blocked)]
        assert states == ["running", "pending", "scheduled", "blocked"]

    @store_test
    async def test_the_oldest_completed_jobs_above_the_maximum_are_pruned(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        ids: list[str] = []
        for _ in range(6):
            ids.append(await ended(one))
            bench.advance(1)
        failed = await ended(one, "fail")
        assert await one.call("prune", bench.shard, 4) == 2
        assert [await is_gone(one, id_) for id_ in ids] == [True, True, False, False, False, False]
        assert not await is_gone(one, failed)
        assert await one.call("prune", bench.shard, 0) == 4
        assert not await is_gone(one, failed)

    @store_test
    async def test_pruning_is_bounded_and_terminates(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add_many(25, keep=SECOND)
        for job in await one.claim(25):
            await one.finish(job)
        bench.advance(2 * SECOND)
        assert [await one.call("prune", bench.shard, MANY, 10) for _ in range(4)] == [10, 10, 5, 0]

    @store_test
    async def test_logs_and_outputs_are_pruned_with_their_job(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add(keep=SECOND)
        job = await one.take()
        await one.call("append_log", id_, job.fence, [(bench.now, "stdout", "x")], 1)
        await one.call("put_outputs", id_, job.fence, {"a": "1"})
        await one.finish(job)
        bench.advance(2 * SECOND)
        await one.call("prune", bench.shard, MANY)
        assert await one.call("read_log", id_) == []
        assert await one.call("get_outputs", id_) == {}
        assert [queue.completed for queue in await one.call("queues")] in ([], [0])

    @store_test
    async def test_dependents_keep_the_result_of_a_pruned_job(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        a = await one.add(keep=SECOND)
        dependent = await one.add("after", after=(a,))
        await one.finish(await one.take(), result=b"A")
        bench.advance(2 * SECOND)
        assert await one.call("prune", bench.shard, MANY) == 1
        job = await one.take()
        assert (job.id, job.upstream) == (dependent, {a: b"A"})

    @store_test
    async def test_the_retention_of_a_retried_job_begins_at_its_new_end(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await ended(one, "fail", keep=MINUTE, keep_failed=MINUTE)
        bench.advance(MINUTE - SECOND)
        await one.call("trigger", id_)
        bench.advance(HOUR)
        assert await one.call("prune", bench.shard, MANY) == 0
        await one.finish(await one.take())
        assert await one.call("prune", bench.shard, MANY) == 0
        bench.advance(MINUTE + SECOND)
        assert await one.call("prune", bench.shard, MANY) == 1

    @store_test
    async def test_a_purge_deletes_final_jobs_of_one_state(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        done, failed = await ended(one), await ended(one, "fail")
        waiting = await one.add()
        assert await other.call("purge", "failed") == 1
        assert await is_gone(one, failed)
        assert not await is_gone(one, done)
        assert await one.state(waiting) == "pending"
        assert await other.call("purge", "failed") == 0

    @store_test
    async def test_a_purge_may_be_of_one_queue_and_is_bounded(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        for queue in ("a", "b"):
            await one.add_many(5, queue=queue)
            for job in await one.claim(5, queues=[[queue]]):
                await one.finish(job, "fail", error=OOPS)
                bench.advance(1)
        assert await one.call("purge", "failed", queue="a", limit=3) == 3
        assert len(await one.call("list_jobs", queue="a")) == 2
        assert await one.call("purge", "failed", queue="a") == 2
        assert len(await one.call("list_jobs", queue="b")) == 5
