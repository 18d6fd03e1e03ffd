"""A final job is kept for its retention time and then deleted, with its logs, outputs and artifacts."""

from __future__ import annotations

from typing import Any

from backstay.job.model import Failure
from backstay.testing.conformance.job.bench import HOUR, MINUTE, SECOND, Bench, Client, claim

OOPS = Failure("OSError", "disk full")
MANY = 1_000_000


async def ended(client: Client, kind: Any = "complete", **fields: Any) -> str:
    id_ = await client.add(**fields)
    await client.finish(await client.take(), kind, error=OOPS if kind == "fail" else None)
    return id_


async def is_gone(client: Client, job: str) -> bool:
    return await client.ask("get", job) is None


class Pruning:
    """Tests of `prune` and `purge`."""

    @claim
    async def test_final_jobs_go_when_their_time_is_over(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        done = await ended(one, keep=MINUTE, keep_failed=HOUR)
        failed = await ended(one, "fail", keep=MINUTE, keep_failed=HOUR)
        bench.wait(MINUTE - SECOND)
        assert await other.ask("prune", bench.shard, MANY) == 0
        bench.wait(2 * SECOND)
        assert await other.ask("prune", bench.shard, MANY) == 1
        assert (await is_gone(one, done), await is_gone(one, failed)) == (True, False)
        bench.wait(HOUR)
        assert await other.ask("prune", bench.shard, MANY) == 1
        assert await is_gone(one, failed)
        assert await other.ask("list_jobs") == []

    @claim
    async def test_what_has_not_ended_is_never_pruned(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        running = await one.add(keep=1, keep_failed=1)
        await one.claim(1, lease=100 * HOUR)
        pending = await one.add(keep=1, keep_failed=1)
        scheduled = await one.add(keep=1, keep_failed=1, delay=50 * HOUR)
        blocked = await one.add(keep=1, keep_failed=1, after=(running,))
        bench.wait(HOUR)
        assert await one.ask("prune", bench.shard, 0) == 0
        states = [await one.state(id_) for id_ in (running, pending, scheduled, blocked)]
        assert states == ["running", "pending", "scheduled", "blocked"]

    @claim
    async def test_the_oldest_completed_above_a_number_go(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        ids: list[str] = []
        for _ in range(6):
            ids.append(await ended(one))
            bench.wait(1)
        failed = await ended(one, "fail")
        assert await one.ask("prune", bench.shard, 4) == 2
        assert [await is_gone(one, id_) for id_ in ids] == [True, True, False, False, False, False]
        assert not await is_gone(one, failed)
        assert await one.ask("prune", bench.shard, 0) == 4
        assert not await is_gone(one, failed)

    @claim
    async def test_pruning_is_bounded_and_comes_to_an_end(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add_many(25, keep=SECOND)
        for job in await one.claim(25):
            await one.finish(job)
        bench.wait(2 * SECOND)
        assert [await one.ask("prune", bench.shard, MANY, 10) for _ in range(4)] == [10, 10, 5, 0]

    @claim
    async def test_what_a_job_left_behind_goes_with_it(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add(keep=SECOND)
        job = await one.take()
        await one.ask("append_log", id_, job.fence, [(bench.now, "stdout", "x")], 1)
        await one.ask("put_outputs", id_, job.fence, {"a": "1"})
        await one.finish(job)
        bench.wait(2 * SECOND)
        await one.ask("prune", bench.shard, MANY)
        assert await one.ask("read_log", id_) == []
        assert await one.ask("get_outputs", id_) == {}
        assert [queue.completed for queue in await one.ask("queues")] in ([], [0])

    @claim
    async def test_dependents_keep_the_result_of_a_pruned_job(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        a = await one.add(keep=SECOND)
        dependent = await one.add("after", after=(a,))
        await one.finish(await one.take(), result=b"A")
        bench.wait(2 * SECOND)
        assert await one.ask("prune", bench.shard, MANY) == 1
        job = await one.take()
        assert (job.id, job.upstream) == (dependent, {a: b"A"})

    @claim
    async def test_a_job_that_was_tried_again_is_kept_from_its_new_end_on(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await ended(one, "fail", keep=MINUTE, keep_failed=MINUTE)
        bench.wait(MINUTE - SECOND)
        await one.ask("trigger", id_)
        bench.wait(HOUR)
        assert await one.ask("prune", bench.shard, MANY) == 0
        await one.finish(await one.take())
        assert await one.ask("prune", bench.shard, MANY) == 0
        bench.wait(MINUTE + SECOND)
        assert await one.ask("prune", bench.shard, MANY) == 1

    @claim
    async def test_a_purge_deletes_final_jobs_of_one_state(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        done, failed = await ended(one), await ended(one, "fail")
        waiting = await one.add()
        assert await other.ask("purge", "failed") == 1
        assert await is_gone(one, failed)
        assert not await is_gone(one, done)
        assert await one.state(waiting) == "pending"
        assert await other.ask("purge", "failed") == 0

    @claim
    async def test_a_purge_may_be_of_one_queue_and_is_bounded(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        for queue in ("a", "b"):
            await one.add_many(5, queue=queue)
            for job in await one.claim(5, queues=[[queue]]):
                await one.finish(job, "fail", error=OOPS)
                bench.wait(1)
        assert await one.ask("purge", "failed", queue="a", limit=3) == 3
        assert len(await one.ask("list_jobs", queue="a")) == 2
        assert await one.ask("purge", "failed", queue="a") == 2
        assert len(await one.ask("list_jobs", queue="b")) == 5
