"""Tests of common defects of job queues; each test is named after the behaviour that avoids one."""

from __future__ import annotations

import msgspec

from backstay.job.model import Concurrency, Failure, Rate
from backstay.testing.conformance.job.bench import LEASE, MINUTE, SECOND, Bench, claim, end

OOPS = Failure("OSError", "disk full")


class Traps:
    """One test for each defect."""

    @claim
    async def test_a_claim_looks_behind_the_head(self, bench: Bench) -> None:
        """A worker finds its one claimable job behind a thousand that it cannot claim, for all possible reasons."""
        one, other = await bench.clients(2)
        await one.add_many(400, labels=("gpu",), priority=9)
        await one.add_many(400, labels=("eu", "gpu"), priority=9)
        await one.add_many(100, concurrency=Concurrency(bench.key(), 1), priority=9)
        await one.add_many(100, rate=Rate("slow", MINUTE, 1), priority=9)
        await one.add_many(100, queue="paused", priority=9)
        await one.ask("pause", "paused", paused=True)
        mine = await one.add(priority=-9)
        both = [["default", "paused"]]
        assert len(await one.claim(2, queues=both)) == 2  # now the concurrency key and the rate are exhausted
        assert [job.id for job in await other.claim(5, queues=both)] == [mine]

    @claim
    async def test_a_stale_head_entry_hides_no_work(self, bench: Bench) -> None:
        """A job that was cancelled, triggered, purged or reaped leaves no stale entry at the head of the queue."""
        one, other = await bench.clients(2)
        heads = await one.add_many(8, priority=9)
        for id_ in heads[:4]:
            await other.ask("cancel", id_, "enough")
        await other.ask("purge", "cancelled", limit=2)
        (running,) = await one.claim(1)
        await one.finish(running)
        for id_ in heads[2:4]:
            await other.ask("trigger", id_)
            await other.ask("cancel", id_, "enough")
        await one.claim(1)
        bench.wait(LEASE)
        await other.reap()
        mine = await one.add()
        assert [job.id for job in await other.claim(1)] == heads[6:7]
        assert [job.id for job in await other.claim(2)] == [heads[7], mine]

    @claim
    async def test_a_claimed_job_is_stored_before_it_leaves_the_queue(self, bench: Bench) -> None:
        """Claiming and releasing a job keeps all its fields: no encoding on the way loses any."""
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
                bench.wait(LEASE)
                await one.reap()

    @claim
    async def test_renewing_asks_who_the_owner_is(self, bench: Bench) -> None:
        """A renewal needs the current lease, not just one that existed; an expired lease is not revived."""
        one, other = await bench.clients(2)
        id_ = await one.add(retries=5)
        old = await one.take()
        bench.wait(LEASE)
        new = await other.take()
        assert new.id == id_
        bench.wait(LEASE - SECOND)
        assert await one.renew(old, lease=MINUTE) == ["lost"]
        assert (await one.get(id_)).lease_until == new.until
        bench.wait(SECOND)
        await one.reap()
        assert await one.state(id_) == "pending"
        assert await other.renew(new) == ["lost"]
        assert await one.state(id_) == "pending"
        assert (await one.exchange()).next_in is None

    @claim
    async def test_reaping_finishes_what_it_began(self, bench: Bench) -> None:
        """A reaped job has no lease, its concurrency key is free, and it can be claimed exactly once."""
        one, other = await bench.clients(2)
        key = Concurrency(bench.key(), 1)
        ids = await one.add_many(3, retries=1, concurrency=key)
        (job,) = await one.claim(10)
        bench.wait(LEASE)
        await other.reap()
        assert await other.reap() == {}
        assert (await other.exchange()).next_in is None
        (queue,) = await other.ask("queues")
        assert (queue.pending, queue.running) == (3, 0)
        (again,) = await other.claim(10)
        assert again.id == ids[0] == job.id
        order: list[str] = []
        jobs = [again]
        while jobs:
            order += [job.id for job in jobs]
            jobs = list((await other.exchange([end(job) for job in jobs], want=10)).jobs)
        assert order == ids

    @claim
    async def test_a_cancel_flag_does_not_outlive_its_run(self, bench: Bench) -> None:
        """A cancel request applies to one execution of the job and not to its retry."""
        one, other = await bench.clients(2)
        id_ = await one.add(retries=5)
        job = await one.take()
        await other.ask("cancel", id_, "enough")
        await one.finish(job, "cancel")
        await other.ask("trigger", id_)
        assert not (await one.get(id_)).cancel_requested
        job = await one.take()
        assert await one.renew(job) == ["ok"]
        assert await one.finish(job, "retry", error=OOPS) == "ok"
        assert await one.state(id_) == "pending"

    @claim
    async def test_a_late_failure_does_not_requeue_a_cancelled_job(self, bench: Bench) -> None:
        """A job that fails, snoozes or is released after a cancel request ends cancelled, even with attempts left."""
        one, other = await bench.clients(2)
        for kind in ("retry", "snooze", "release", "fail"):
            id_ = await one.add(retries=5)
            job = await one.take()
            assert await other.ask("cancel", id_, "enough") == "running"
            assert await one.finish(job, kind, error=OOPS, delay=SECOND) == "ok"
            assert await one.state(id_) == "cancelled", kind
        silent = await one.add(retries=5)
        await one.take()
        await other.ask("cancel", silent, "enough")
        bench.wait(LEASE)
        await other.reap()
        assert await one.state(silent) == "cancelled"
        bench.wait(MINUTE)
        assert await one.claim(5) == []
        late = await one.add(retries=5)
        job = await one.take()
        await one.finish(job, "cancel")
        assert await one.finish(job, "retry", error=OOPS) == "stale"
        assert await one.state(late) == "cancelled"

    @claim
    async def test_a_lost_notification_loses_no_outcome(self, bench: Bench) -> None:
        """Even if the announcement is lost, a read returns the job's end, and its dependents are pending."""
        one, other = await bench.clients(2)
        id_ = await one.add()
        dependent = await one.add("after", after=(id_,))
        await other.ask("watch", id_, chain=True)
        await one.finish(await one.take(), result=b"R")
        for chain in (False, True):
            seen = await other.ask("watch", id_, chain=chain)
            assert (seen.state, seen.result) == ("completed", b"R")
        assert (await other.take()).id == dependent

    @claim
    async def test_results_posted_twice_count_once(self, bench: Bench) -> None:
        """A finish that is sent again, over the same or another worker channel, by the same or another worker, has one
        effect: one result, one release of dependents, one next job.
        """
        one, other = await bench.clients(2)
        a = await one.add()
        b = await one.add("after", after=(a,))
        job = await one.take()
        command = one.command([end(job, result=b"first")])
        first = await one.send(command)
        assert (first.verdicts, first.ready) == (("ok",), {"after": 1})
        again = await one.send(command)
        assert (again.verdicts, again.ready) == (("ok",), {})
        for reply in (
            await one.exchange([end(job, result=b"second")], channel=1),
            await other.exchange([end(job, result=b"third"), end(job, "fail", error=OOPS)]),
        ):
            assert set(reply.verdicts) == {"stale"}
            assert reply.ready == {}
        assert (await one.get(a)).result == b"first"
        (dependent,) = await other.claim(10)
        assert (dependent.id, dependent.upstream, dependent.attempt) == (b, {a: b"first"}, 1)

    @claim
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
