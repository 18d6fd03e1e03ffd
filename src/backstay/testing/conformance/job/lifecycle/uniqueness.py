"""Unique keys: concurrent enqueues with one key create one job. The key is taken until that job starts, until it is
done, or for a given time (its scope). After that, the next enqueue creates a new job.
"""

from __future__ import annotations

import asyncio
from typing import Any

from backstay.job.model import Enqueued, Failure, Unique
from backstay.testing.conformance.job.bench import LEASE, MINUTE, SECOND, Bench, StoreClient, store_test

OOPS = Failure("OSError", "disk full")


async def enqueue_unique(client: StoreClient, unique: Unique, **fields: Any) -> tuple[str, Enqueued]:
    """Enqueue a job with this unique key. Returns the new job's id, and the store's reply."""
    new = client.bench.job(unique=unique, **fields)
    (answer,) = await client.enqueue(new)
    return new.id, answer


class JobUniquenessTests:
    """Tests of the option `unique` in its three scopes."""

    @store_test
    async def test_a_duplicate_enqueue_returns_the_existing_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for scope in ("until_start", "until_done", "window"):
            unique = Unique(bench.key(scope), scope, MINUTE)
            id_, first = await enqueue_unique(one, unique)
            assert first == Enqueued(id_, "pending")
            asked, second = await enqueue_unique(other, unique)
            assert second == Enqueued(id_, "pending", deduplicated=True)
            assert await other.call("get", asked) is None
            assert (await other.get(id_)).unique == unique
        assert len(await one.claim(10)) == 3

    @store_test
    async def test_a_resend_of_the_first_enqueue_is_no_duplicate(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        new = bench.job(unique=Unique(bench.key(), "until_done"))
        await one.enqueue(new)
        assert await other.enqueue(new) == [Enqueued(new.id, "pending")]

    @store_test
    async def test_the_first_job_of_a_key_in_a_batch_is_created(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        unique = Unique(bench.key(), "until_done")
        jobs = [bench.job(unique=unique) for _ in range(3)]
        first, *others = await one.enqueue(*jobs)
        assert first == Enqueued(jobs[0].id, "pending")
        assert others == [Enqueued(jobs[0].id, "pending", deduplicated=True)] * 2

    @store_test
    async def test_fifty_concurrent_enqueues_create_one_job(self, bench: Bench) -> None:
        clients = await bench.clients(5)
        unique = Unique(bench.key(), "until_done")
        answers = await asyncio.gather(*[enqueue_unique(client, unique) for client in clients for _ in range(10)])
        assert len({answer.id for _, answer in answers}) == 1
        assert sum(not answer.deduplicated for _, answer in answers) == 1
        assert len(await clients[0].claim(100)) == 1

    @store_test
    async def test_until_start_ends_when_it_is_claimed(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        unique = Unique(bench.key(), "until_start")
        first, _ = await enqueue_unique(one, unique, retries=3)
        job = await one.take()
        second, answer = await enqueue_unique(other, unique)
        assert answer == Enqueued(second, "pending")
        # The retry of the first job does not release the second job's key.
        await one.finish(job, "retry", error=OOPS)
        assert (await enqueue_unique(one, unique))[1] == Enqueued(second, "pending", deduplicated=True)
        assert {job.id for job in await other.claim(5)} == {first, second}

    @store_test
    async def test_until_done_holds_through_retries_snoozes_and_lost_workers(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        unique = Unique(bench.key(), "until_done")
        id_, _ = await enqueue_unique(one, unique, retries=5)

        async def is_held() -> bool:
            return (await enqueue_unique(other, unique))[1].id == id_

        job = await one.take()
        assert await is_held()
        await one.finish(job, "retry", error=OOPS, delay=SECOND)
        assert await is_held()
        bench.advance(SECOND)
        await one.finish(await one.take(), "snooze", delay=SECOND)
        assert await is_held()
        bench.advance(SECOND)
        await one.take()
        bench.advance(LEASE)
        await other.reap()
        assert await is_held()
        await one.finish(await one.take())
        assert not await is_held()

    @store_test
    async def test_until_done_ends_with_any_final_state(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for kind in ("complete", "fail", "cancel"):
            unique = Unique(bench.key(kind), "until_done")
            await enqueue_unique(one, unique)
            await one.finish(await one.take(), kind)
            asked, answer = await enqueue_unique(other, unique)
            assert answer == Enqueued(asked, "pending"), kind
            await one.finish(await one.take())

    @store_test
    async def test_a_cancelled_job_gives_its_key_back(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for scope in ("until_start", "until_done"):
            unique = Unique(bench.key(scope), scope)
            id_, _ = await enqueue_unique(one, unique)
            await one.call("cancel", id_, "not needed")
            asked, answer = await enqueue_unique(other, unique)
            assert answer == Enqueued(asked, "pending"), scope

    @store_test
    async def test_a_window_ends_by_time_alone(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        unique = Unique(bench.key(), "window", MINUTE)
        id_, _ = await enqueue_unique(one, unique)
        await one.finish(await one.take())
        bench.advance(MINUTE - 1)
        assert (await enqueue_unique(other, unique))[1] == Enqueued(id_, "completed", deduplicated=True)
        bench.advance(2)
        asked, answer = await enqueue_unique(other, unique)
        assert answer == Enqueued(asked, "pending")

    @store_test
    async def test_the_end_of_an_earlier_job_does_not_free_a_later_ones_key(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        unique = Unique(bench.key(), "until_start")
        await enqueue_unique(one, unique)
        first = await one.take()
        second, _ = await enqueue_unique(one, unique)
        await one.finish(first)
        assert (await enqueue_unique(other, unique))[1] == Enqueued(second, "pending", deduplicated=True)

    @store_test
    async def test_different_keys_do_not_collide(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        answers = [
            await enqueue_unique(one, Unique(bench.key(word), "until_done")) for word in ("a", "a:b", "{a}", "*", "é")
        ]
        assert not any(answer.deduplicated for _, answer in answers)
