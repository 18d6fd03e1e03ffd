"""Reaping: a job whose lease has expired is retried. The lost attempt counts, and a job without attempts left fails."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.job.bench import LEASE, MINUTE, SECOND, Bench, store_test


class JobReapingTests:
    """Tests of `reap`, and of the reaping inside `exchange`."""

    @store_test
    async def test_an_expired_lease_makes_its_job_pending(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add("fragile", retries=1)
        job = await one.take()
        bench.advance(LEASE - 1)
        assert await other.reap() == {}
        assert await other.claim(5) == []
        bench.advance(1)
        assert await other.reap() == {"fragile": 1}
        seen = await other.get(id_)
        assert (seen.state, seen.attempt, seen.due) == ("pending", 1, job.due)
        assert seen.error is not None
        again = await other.take()
        assert (again.id, again.attempt) == (id_, 2)
        assert again.fence > job.fence

    @store_test
    async def test_an_exchange_reaps_expired_leases(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=1)
        await one.take()
        bench.advance(LEASE)
        assert (await other.take()).id == id_

    @store_test
    async def test_a_job_that_kills_its_workers_ends_in_the_dead_letter(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        poison = await one.add(retries=2)
        bench.advance(1)
        behind = await one.add()
        for attempt in (1, 2, 3):
            job = await other.take()
            assert (job.id, job.attempt) == (poison, attempt)
            bench.advance(LEASE)
        assert (await one.take()).id == behind
        seen = await one.get(poison)
        assert (seen.state, seen.attempt, seen.finished) == ("failed", 3, bench.now)
        assert seen.error is not None

    @store_test
    async def test_after_reaping_the_earlier_lease_is_refused(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=5)
        job = await one.take()
        bench.advance(LEASE)
        await other.reap()
        assert await one.renew(job) == ["lost"]
        for kind in ("complete", "fail", "retry", "snooze", "release", "cancel"):
            assert await one.finish(job, kind) == "stale"
        assert await one.call("append_log", job.id, job.fence, [(bench.now, "stdout", "late")], 1) is False
        assert await one.call("put_outputs", job.id, job.fence, {"late": "1"}) is False
        assert await one.state(id_) == "pending"

    @store_test
    async def test_a_reaped_job_keeps_its_rank(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        first = await one.add(retries=1)
        await one.take()
        bench.advance(SECOND)
        second = await one.add()
        bench.advance(LEASE)
        assert [job.id for job in await other.claim(5)] == [first, second]

    @store_test
    async def test_many_reapers_at_once_reap_each_job_once(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        await clients[0].add_many(40, retries=9)
        assert len(await clients[0].claim(40)) == 40
        bench.advance(LEASE)
        answers = await asyncio.gather(*[client.reap() for client in clients for _ in range(3)])
        assert sum(answer.get("work", 0) for answer in answers) == 40
        jobs = await clients[1].claim(100)
        assert [job.attempt for job in jobs] == [2] * 40

    @store_test
    async def test_reaping_is_bounded_and_terminates(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add_many(30, retries=1)
        await one.claim(30)
        bench.advance(LEASE)
        assert [(await other.reap(limit=12)).get("work", 0) for _ in range(4)] == [12, 12, 6, 0]

    @store_test
    async def test_the_bound_of_a_reap_counts_all_expired_leases(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        ids = [await one.add(retries=retries) for retries in (0, 1, 0, 1, 0)]
        await one.claim(5)
        bench.advance(LEASE)
        states: list[list[str]] = []
        for _ in range(3):
            await other.reap(limit=2)
            states.append([await other.state(id_) for id_ in ids])
        assert states == [
            ["failed", "pending", "running", "running", "running"],
            ["failed", "pending", "failed", "pending", "running"],
            ["failed", "pending", "failed", "pending", "failed"],
        ]

    @store_test
    async def test_reaping_also_makes_due_jobs_pending(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        ids = await one.add_many(5, "timed", delay=MINUTE)
        bench.advance(MINUTE)
        assert await one.state(ids[0]) in ("scheduled", "pending")
        assert await other.reap() == {"timed": 5}
        assert {await one.state(id_) for id_ in ids} == {"pending"}
        assert await other.reap() == {}

    @store_test
    async def test_each_lease_has_its_own_ttl(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        brief, long = await one.add_many(2, retries=1)
        await one.claim(1, lease=SECOND)
        await one.claim(1, lease=MINUTE)
        bench.advance(SECOND)
        await other.reap()
        assert (await one.state(brief), await one.state(long)) == ("pending", "running")

    @store_test
    async def test_a_worker_that_lost_a_job_is_notified(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen("owls")
        id_ = await one.add(retries=1)
        await one.take()
        bench.advance(LEASE)
        await other.reap()
        assert await heard.soon(id_)
