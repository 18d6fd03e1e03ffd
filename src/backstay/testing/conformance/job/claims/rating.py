"""Rate limits of job starts: per bucket (a name in the job option `rate`) and per queue. A job that is delayed by its
rate does not block other jobs, and the reply to a claim contains the time when the delayed job is due.
"""

from __future__ import annotations

import asyncio

from backstay.job.model import StartRate
from backstay.testing.conformance.job.bench import LEASE, MINUTE, SECOND, Bench, store_test


class JobRatingTests:
    """Tests of the job option `rate` and of `limit_queue`."""

    @store_test
    async def test_a_bucket_lets_a_burst_go_and_then_one_an_interval(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        ids = await one.add_many(6, rate=StartRate("api", SECOND, 3))
        assert [job.id for job in await one.claim(10)] == ids[:3]
        assert await other.claim(10) == []
        bench.advance(SECOND - 1)
        assert await other.claim(10) == []
        bench.advance(1)
        assert [job.id for job in await other.claim(10)] == ids[3:4]
        bench.advance(10 * SECOND)
        assert [job.id for job in await one.claim(10)] == ids[4:]

    @store_test
    async def test_next_in_is_the_time_when_a_bucket_admits_the_next_job(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add_many(3, rate=StartRate("api", 4 * SECOND, 1))
        assert (await one.exchange(want=10)).next_in == 4 * SECOND
        bench.advance(SECOND)
        assert (await one.exchange(want=10)).next_in == 3 * SECOND
        bench.advance(3 * SECOND)
        assert len(await one.claim(10)) == 1

    @store_test
    async def test_an_exhausted_bucket_hides_no_other_job(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add_many(50, rate=StartRate("slow", MINUTE, 1), priority=50)
        other_bucket = await one.add(rate=StartRate("other", MINUTE, 1))
        plain = await one.add()
        assert len(await one.claim(1)) == 1
        assert [job.id for job in await one.claim(10)] == [other_bucket, plain]

    @store_test
    async def test_rated_jobs_keep_their_place_among_the_others(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.call("limit_queue", "slow", StartRate("slow", MINUTE, 9))
        ids: list[str] = []
        for nth in range(12):
            rate = StartRate("api", MINUTE, 9) if nth % 3 == 1 else None
            ids.append(await one.add(queue="slow" if nth % 3 == 2 else "default", rate=rate))
            bench.advance(1)
        both = [["slow", "default"]]
        assert [job.id for job in await one.claim(4, queues=both)] == ids[:4]
        assert [(await one.take(queues=both)).id for _ in range(4)] == ids[4:8]
        assert [job.id for job in await one.claim(9, queues=both)] == ids[8:]

    @store_test
    async def test_a_bucket_is_shared_by_types_queues_and_labels(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        rate = StartRate("api", MINUTE, 2)
        await one.add("a", rate=rate)
        await one.add("b", rate=rate, queue="second")
        await one.add("c", rate=rate, labels=("gpu",))
        jobs = await one.claim(10, queues=[["default", "second"]], labels=["gpu"])
        assert len(jobs) == 2

    @store_test
    async def test_claims_at_once_stay_within_the_rate(self, bench: Bench) -> None:
        """With several shards, claims at once may start fewer than the rate allows. A later claim starts the rest."""
        clients = await bench.clients(8)
        await clients[0].add_many(40, rate=StartRate("api", MINUTE, 5))
        taken = await asyncio.gather(*[client.claim(3) for client in clients])
        started = sum(len(jobs) for jobs in taken)
        assert 3 <= started <= 5
        assert bench.shards > 1 or started == 5
        bench.advance(2 * SECOND)
        assert started + len(await clients[0].claim(10)) == 5

    @store_test
    async def test_only_a_start_is_charged(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        rate = StartRate("api", SECOND, 1)
        await one.add_many(2, rate=rate)
        await one.claim(1)
        for _ in range(5):
            assert await one.claim(10) == []
        bench.advance(SECOND)
        assert len(await one.claim(10)) == 1

    @store_test
    async def test_a_queue_with_a_limit_lets_so_many_start(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.call("limit_queue", "slow", StartRate("slow", 10 * SECOND, 2))
        ids = await one.add_many(4, queue="slow")
        plain = await one.add()
        both = [["slow", "default"]]
        assert {job.id for job in await other.claim(10, queues=both)} == {*ids[:2], plain}
        assert (await one.exchange(want=10, queues=both)).next_in == 10 * SECOND
        bench.advance(10 * SECOND)
        assert [job.id for job in await one.claim(10, queues=both)] == ids[2:3]
        await other.call("limit_queue", "slow", None)
        assert [job.id for job in await one.claim(10, queues=both)] == ids[3:]

    @store_test
    async def test_a_job_starts_only_when_both_rates_let_it(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.call("limit_queue", "default", StartRate("default", 10 * SECOND, 1))
        ids = await one.add_many(3, rate=StartRate("api", 15 * SECOND, 1))
        assert [job.id for job in await one.claim(10, lease=MINUTE)] == ids[:1]
        bench.advance(10 * SECOND)
        assert await one.claim(10, lease=MINUTE) == []
        bench.advance(5 * SECOND)
        assert [job.id for job in await one.claim(10, lease=MINUTE)] == ids[1:2]

    @store_test
    async def test_a_queue_shows_its_rate_limit(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        rate = StartRate("slow", LEASE, 7)
        await one.call("limit_queue", "slow", rate)
        await one.add(queue="slow")
        (queue,) = await other.call("queues")
        assert queue.rate is not None
        assert (queue.name, queue.rate.interval, queue.rate.burst) == ("slow", LEASE, 7)
