"""Lists of jobs, newest first and in pages; and the number of jobs in each queue."""

from __future__ import annotations

from backstay.job.model import Concurrency, Failure
from backstay.testing.conformance.job.bench import MINUTE, Bench, StoreClient, store_test

OOPS = Failure("OSError", "disk full")


async def create_one_per_state(client: StoreClient, queue: str) -> dict[str, str]:
    """Create a job in every state, all in one queue. Returns the ids by state."""
    ids: dict[str, str] = {}
    for state, kind in (("completed", "complete"), ("failed", "fail"), ("cancelled", "cancel")):
        ids[state] = await client.add(state, queue=queue)
        await client.finish(await client.take(queues=[[queue]]), kind)
    ids["skipped"] = await client.add("skipped", queue=queue, after=(ids["failed"],))
    ids["running"] = await client.add("running", queue=queue)
    await client.take(queues=[[queue]])
    ids["blocked"] = await client.add("blocked", queue=queue, after=(ids["running"],))
    ids["scheduled"] = await client.add("scheduled", queue=queue, delay=MINUTE)
    ids["pending"] = await client.add("pending", queue=queue)
    return ids


class JobListingTests:
    """Tests of `list_jobs` and `queues`."""

    @store_test
    async def test_jobs_are_listed_newest_first_and_in_pages(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        ids = (await one.add_many(25))[::-1]
        assert [job.id for job in await other.call("list_jobs")] == ids
        page = await other.call("list_jobs", limit=10)
        assert [job.id for job in page] == ids[:10]
        page = await other.call("list_jobs", limit=10, before=page[-1].id)
        assert [job.id for job in page] == ids[10:20]
        page = await other.call("list_jobs", limit=10, before=page[-1].id)
        assert [job.id for job in page] == ids[20:]
        assert await other.call("list_jobs", limit=10, before=page[-1].id) == []

    @store_test
    async def test_a_list_returns_the_same_job_as_get(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await create_one_per_state(one, "q")
        for job in await other.call("list_jobs"):
            assert job == await one.get(job.id)

    @store_test
    async def test_jobs_are_listed_by_state(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        ids = await create_one_per_state(one, "q")
        for state, id_ in ids.items():
            assert await one.state(id_) == state
            assert [job.id for job in await other.call("list_jobs", state=state)] == [id_], state
        assert {job.id for job in await other.call("list_jobs")} == set(ids.values())

    @store_test
    async def test_jobs_are_listed_by_queue_type_and_run(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        ids: dict[tuple[str, str, str], str] = {}
        for queue in ("a", "b"):
            for type_ in ("x", "y"):
                for run in ("", "r"):
                    ids[queue, type_, run] = await one.add(type_, queue=queue, run=run)

        async def found(**filters: object) -> set[str]:
            return {job.id for job in await other.call("list_jobs", **filters)}

        assert await found(queue="a") == {id_ for (queue, _, _), id_ in ids.items() if queue == "a"}
        assert await found(type="y") == {id_ for (_, type_, _), id_ in ids.items() if type_ == "y"}
        assert await found(run="r") == {id_ for (_, _, run), id_ in ids.items() if run == "r"}
        assert await found(queue="a", type="y", run="r", state="pending") == {ids["a", "y", "r"]}
        assert await found(queue="a", type="y", run="r", state="failed") == set()
        assert await found(queue="c") == set()

    @store_test
    async def test_a_filtered_list_has_pages_too(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        mine: list[str] = []
        for nth in range(20):
            id_ = await one.add("xy"[nth % 2])
            mine += [id_] * (nth % 2)
        seen: list[str] = []
        while page := await other.call("list_jobs", type="y", limit=3, before=seen[-1] if seen else ""):
            seen += [job.id for job in page]
        assert seen == mine[::-1]

    @store_test
    async def test_queues_count_their_jobs_by_state(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        assert await other.call("queues") == []
        await create_one_per_state(one, "full")
        start = bench.now
        bench.advance(MINUTE - 1)
        await one.add_many(3, queue="plain")
        full, plain = sorted(await other.call("queues"), key=lambda queue: queue.name)
        assert (full.name, full.paused, full.rate) == ("full", False, None)
        for state in ("completed", "failed", "cancelled", "skipped", "running", "blocked", "scheduled", "pending"):
            assert getattr(full, state) == 1, state
        assert full.oldest_due == start
        assert (plain.name, plain.pending, plain.running, plain.oldest_due) == ("plain", 3, 0, bench.now)

    @store_test
    async def test_counts_follow_every_change(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)

        async def counts() -> tuple[int, int, int, int]:
            (queue,) = await one.call("queues")
            return queue.scheduled, queue.pending, queue.running, queue.failed

        id_ = await one.add(delay=MINUTE, retries=1)
        assert await counts() == (1, 0, 0, 0)
        bench.advance(MINUTE)
        await one.reap()
        assert await counts() == (0, 1, 0, 0)
        await one.finish(await one.take(), "retry", delay=MINUTE, error=OOPS)
        assert await counts() == (1, 0, 0, 0)
        bench.advance(MINUTE)
        await one.take()
        assert await counts() == (0, 0, 1, 0)
        bench.advance(MINUTE)
        await one.reap()
        assert await counts() == (0, 0, 0, 1)
        await one.call("trigger", id_)
        assert await counts() == (0, 1, 0, 0)

    @store_test
    async def test_jobs_that_wait_for_their_key_are_pending(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add_many(5, concurrency=Concurrency(bench.key(), 1))
        await one.claim(10)
        await other.claim(10)
        (queue,) = await other.call("queues")
        assert (queue.pending, queue.running) == (4, 1)
        assert len(await other.call("list_jobs", state="pending")) == 4
        assert queue.oldest_due == bench.now
