"""Tests for common defects of job queues. Each test is named after the correct behaviour."""

from __future__ import annotations

import msgspec

from backstay.job.model import Concurrency, Failure, StartRate
from backstay.testing.conformance.job.bench import LEASE, MINUTE, SECOND, Bench, build_finish, store_test

OOPS = Failure("OSError", "disk full")


class JobTrapsTests:
    """One test for each common defect, such as head-of-line blocking or a lost job after a crash."""

    @store_test
    async def test_a_claim_looks_behind_the_head(self, bench: Bench) -> None:
        """A worker finds the one job that it can claim behind a thousand that it cannot, for every reason that prevents
        a claim.
        """
        one, other = await bench.clients(2)
        await one.add_many(400, labels=("gpu",), priority=9)
        await one.add_many(400, labels=("eu", "gpu"), priority=9)
        await one.add_many(100, concurrency=Concurrency(bench.key(), 1), priority=9)
        await one.add_many(100, rate=StartRate("slow", MINUTE, 1), priority=9)
        await one.add_many(100, queue="paused", priority=9)
        await one.call("pause", "paused", paused=True)
        mine = await one.add(priority=-9)
        both = [["default", "paused"]]
        assert len(await one.claim(2, queues=both)) == 2  # now the concurrency key and the rate are exhausted
        assert [job.id for job in await other.claim(5, queues=both)] == [mine]

    @store_test
    async def test_a_stale_head_entry_hides_no_work(self, bench: Bench) -> None:
        """A job that was cancelled, triggered, purged or reaped leaves no stale entry at the head of the queue."""
        one, other = await bench.clients(2)
        heads = await one.add_many(8, priority=9)
        for id_ in heads[:4]:
            await other.call("cancel", id_, "enough")
        await other.call("purge", "cancelled", limit=2)
        (running,) = await one.claim(1)
        await one.finish(running)
        for id_ in heads[2:4]:
            await other.call("trigger", id_)
            await other.call("cancel", id_, "enough")
        await one.claim(1)
        bench.advance(LEASE)
        await other.reap()
        mine = await one.add()
        assert [job.id for job in await other.claim(1)] == heads[6:7]
        assert [job.id for job in await other.claim(2)] == [heads[7], mine]

    @store_test
    async def test_a_claimed_job_is_stored_before_it_leaves_the_queue(self, bench: Bench) -> None:
        """A job that is claimed and then retried or reaped keeps all its fields, several times in a row."""
        one, other = await bench.clients(2)
        new = bench.job(
            "größe\u2028",
            args=b"\xc1\xff\x00" * 9,
            meta=b"\x93\x01",
            labels=("日本", "{x}"),
            run="r:{1}",
            priority=-100,
            retries=2**31 - 1,
            keep=2**53 - 1 - bench.now,
        )
        await one.enqueue(new)
        for attempt in range(1, 6):
            job = await other.take(labels=new.labels)
            assert (job.id, job.type, job.args, job.meta, job.labels) == (
                new.id,
                new.type,
                new.args,
                new.meta,
                new.labels,
            )
            assert (job.attempt, job.priority, job.retries, job.run) == (attempt, -100, 2**31 - 1, "r:{1}")
            if attempt % 2:
                await other.finish(job, "retry", error=Failure("E", "größe\u2028\x00"))
            else:
                bench.advance(LEASE)
                await one.reap()

    @store_test
    async def test_a_renewal_needs_the_current_lease(self, bench: Bench) -> None:
        """A renewal needs the current lease of the job; with an earlier or an expired lease it is refused."""
        one, other = await bench.clients(2)
        id_ = await one.add(retries=5)
        old = await one.take()
        bench.advance(LEASE)
        new = await other.take()
        assert new.id == id_
        bench.advance(LEASE - SECOND)
        assert await one.renew(old, lease=MINUTE) == ["lost"]
        assert (await one.get(id_)).lease_until == new.until
        bench.advance(SECOND)
        await one.reap()
        assert await one.state(id_) == "pending"
        assert await other.renew(new) == ["lost"]
        assert await one.state(id_) == "pending"
        assert (await one.exchange()).next_in is None

    @store_test
    async def test_a_reaped_job_can_be_claimed_exactly_once(self, bench: Bench) -> None:
        """A reaped job has no lease, its concurrency key is free, and it can be claimed exactly once."""
        one, other = await bench.clients(2)
        key = Concurrency(bench.key(), 1)
        ids = await one.add_many(3, retries=1, concurrency=key)
        (job,) = await one.claim(10)
        bench.advance(LEASE)
        await other.reap()
        assert await other.reap() == {}
        assert (await other.exchange()).next_in is None
        (queue,) = await other.call("queues")
        assert (queue.pending, queue.running) == (3, 0)
        (again,) = await other.claim(10)
        assert again.id == ids[0] == job.id
        order: list[str] = []
        jobs = [again]
        while jobs:
            order += [job.id for job in jobs]
            jobs = list((await other.exchange([build_finish(job) for job in jobs], want=10)).jobs)
        assert order == ids

    @store_test
    async def test_a_cancel_flag_does_not_outlive_its_execution(self, bench: Bench) -> None:
        """A cancel request applies to one execution of the job and not to its retry."""
        one, other = await bench.clients(2)
        id_ = await one.add(retries=5)
        job = await one.take()
        await other.call("cancel", id_, "enough")
        await one.finish(job, "cancel")
        await other.call("trigger", id_)
        assert not (await one.get(id_)).cancel_requested
        job = await one.take()
        assert await one.renew(job) == ["ok"]
        assert await one.finish(job, "retry", error=OOPS) == "ok"
        assert await one.state(id_) == "pending"

    @store_test
    async def test_a_late_failure_does_not_requeue_a_cancelled_job(self, bench: Bench) -> None:
        """A job that fails, snoozes or is released after a cancel request ends cancelled, even with attempts left."""
        one, other = await bench.clients(2)
        for kind in ("retry", "snooze", "release", "fail"):
            id_ = await one.add(retries=5)
            job = await one.take()
            assert await other.call("cancel", id_, "enough") == "running"
            assert await one.finish(job, kind, error=OOPS, delay=SECOND) == "ok"
            assert await one.state(id_) == "cancelled", kind
        silent = await one.add(retries=5)
        await one.take()
        await other.call("cancel", silent, "enough")
        bench.advance(LEASE)
        await other.reap()
        assert await one.state(silent) == "cancelled"
        bench.advance(MINUTE)
        assert await one.claim(5) == []
        late = await one.add(retries=5)
        job = await one.take()
        await one.finish(job, "cancel")
        assert await one.finish(job, "retry", error=OOPS) == "stale"
        assert await one.state(late) == "cancelled"

    @store_test
    async def test_a_lost_notification_loses_no_outcome(self, bench: Bench) -> None:
        """No client listens when the job ends. Later, a read returns its end, and its dependents are pending."""
        one, other = await bench.clients(2)
        id_ = await one.add()
        dependent = await one.add("after", after=(id_,))
        await other.call("watch", id_, chain=True)
        await one.finish(await one.take(), result=b"R")
        for chain in (False, True):
            seen = await other.call("watch", id_, chain=chain)
            assert (seen.state, seen.result) == ("completed", b"R")
        assert (await other.take()).id == dependent

    @store_test
    async def test_results_posted_twice_count_once(self, bench: Bench) -> None:
        """A finish that is sent again, over the same or another worker channel, by the same or another worker, has one
        effect: one result, one release of dependents, one next job.
        """
        one, other = await bench.clients(2)
        a = await one.add()
        b = await one.add("after", after=(a,))
        job = await one.take()
        command = one.command([build_finish(job, result=b"first")])
        first = await one.send(command)
        assert (first.verdicts, first.ready) == (("ok",), {"after": 1})
        again = await one.send(command)
        assert (again.verdicts, again.ready) == (("ok",), {})
        for reply in (
            await one.exchange([build_finish(job, result=b"second")], channel=1),
            await other.exchange([build_finish(job, result=b"third"), build_finish(job, "fail", error=OOPS)]),
        ):
            assert set(reply.verdicts) == {"stale"}
            assert reply.ready == {}
        assert (await one.get(a)).result == b"first"
        (dependent,) = await other.claim(10)
        assert (dependent.id, dependent.upstream, dependent.attempt) == (b, {a: b"first"}, 1)

    @store_test
    async def test_fences_are_exact(self, bench: Bench) -> None:
        """Some number formats round integers from 10**14 on: adjacent fences must stay distinct."""
        one, other = await bench.clients(2)
        await one.add_many(50)
        jobs = await one.claim(50)
        assert len({job.fence for job in jobs}) == 50
        assert jobs[0].fence >= bench.now
        for job in jobs:
            assert (await other.get(job.id)).fence == job.fence
            shifted = msgspec.structs.replace(job, fence=job.fence + 1)
            assert await one.renew(job, shifted) == ["ok", "lost"]
