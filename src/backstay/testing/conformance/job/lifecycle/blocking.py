"""Jobs with blockers: each starts once, when its blockers have ended, and gets their results."""

from __future__ import annotations

import asyncio

from backstay.job.model import Enqueued, Failure
from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.job.bench import LEASE, MINUTE, Bench, build_finish, store_test

OOPS = Failure("OSError", "disk full")


class JobBlockingTests:
    """Tests of the options `after` and `when`."""

    @store_test
    async def test_a_blocked_job_starts_when_all_its_blockers_have_completed(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a, b = await one.add("a"), await one.add("b")
        new = bench.job("after", after=(a, b))
        assert await one.enqueue(new) == [Enqueued(new.id, "blocked")]
        seen = await one.get(new.id)
        assert (set(seen.waits_for), set(seen.after)) == ({a, b}, {a, b})
        first, second = await other.claim(5)
        await other.finish(first, result=b"A")
        seen = await one.get(new.id)
        assert (seen.state, seen.waits_for, set(seen.after)) == ("blocked", (b,), {a, b})
        assert await one.claim(5) == []
        reply = await other.exchange([build_finish(second, result=b"B")])
        assert reply.ready == {"after": 1}
        job = await one.take()
        assert (job.id, job.upstream) == (new.id, {a: b"A", b: b"B"})

    @store_test
    async def test_two_blockers_that_end_in_one_exchange_start_their_dependent_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a, b = await one.add_many(2)
        dependent = await one.add("after", after=(a, b))
        jobs = await other.claim(2)
        reply = await other.exchange([build_finish(job) for job in jobs], want=5)
        assert [job.id for job in reply.jobs] == [dependent]
        assert reply.ready == {}
        assert await one.claim(5) == []

    @store_test
    async def test_blockers_that_end_at_once_in_other_processes_start_a_job_once(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        for _ in range(10):
            blockers = await clients[0].add_many(4)
            dependent = await clients[0].add("after", after=tuple(blockers))
            jobs = [(await client.claim(1))[0] for client in clients]
            replies = await asyncio.gather(
                *[client.exchange([build_finish(job)]) for client, job in zip(clients, jobs, strict=True)]
            )
            assert [reply.ready for reply in replies if reply.ready] == [{"after": 1}]
            taken = await asyncio.gather(*[client.claim(5) for client in clients])
            (job,) = [job for jobs in taken for job in jobs]
            assert (job.id, set(job.upstream)) == (dependent, set(blockers))
            await clients[0].finish(job)

    @store_test
    async def test_a_blocker_that_has_ended_already_blocks_nothing(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        a = await one.add()
        await one.finish(await one.take(), result=b"A")
        new = bench.job(after=(a,))
        assert await one.enqueue(new) == [Enqueued(new.id, "pending")]
        assert (await one.take()).upstream == {a: b"A"}

    @store_test
    async def test_a_blocker_may_come_in_the_same_call(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        a = bench.job("a")
        b = bench.job("b", after=(a.id,))
        assert [answer.state for answer in await one.enqueue(a, b)] == ["pending", "blocked"]
        await one.finish(await one.take())
        assert (await one.take()).id == b.id

    @store_test
    async def test_an_unknown_blocker_is_refused(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        failure = await assert_refused(one.enqueue(bench.job(after=(bench.job().id,))), "ConfigError")
        assert failure.message

    @store_test
    async def test_a_failed_blocker_skips_its_dependents_and_theirs(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a = await one.add("a")
        b = await one.add("b", after=(a,))
        c = await one.add("c", after=(b,))
        unrelated = await one.add("d")
        job, *_ = await other.claim(1)
        reply = await other.exchange([build_finish(job, "fail", error=OOPS)])
        assert reply.ready == {}
        for id_ in (b, c):
            seen = await one.get(id_)
            assert (seen.state, seen.finished) == ("skipped", bench.now)
        assert [job.id for job in await one.claim(5)] == [unrelated]

    @store_test
    async def test_a_job_enqueued_behind_a_failure_is_skipped_at_once(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        a = await one.add()
        await one.finish(await one.take(), "fail", error=OOPS)
        new = bench.job(after=(a,))
        assert await one.enqueue(new) == [Enqueued(new.id, "skipped")]
        anyway = bench.job(after=(a, new.id), when="all_done")
        assert await one.enqueue(anyway) == [Enqueued(anyway.id, "pending")]
        assert (await one.take()).upstream == {a: None, new.id: None}

    @store_test
    async def test_all_done_starts_however_its_blockers_ended(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        ids = {kind: await one.add(kind) for kind in ("complete", "fail", "cancel")}
        skipped = await one.add("skipped", after=(ids["fail"],))
        gone = await one.add("gone", delay=MINUTE)
        dependent = await one.add("after", after=(*ids.values(), skipped, gone), when="all_done")
        for job in await other.claim(3):
            await other.finish(job, job.type, result=b"R")
        assert await one.state(dependent) == "blocked"
        await one.call("cancel", gone, "not needed")
        job = await other.take()
        assert job.id == dependent
        assert job.upstream == {
            ids["complete"]: b"R",
            ids["fail"]: None,
            ids["cancel"]: None,
            skipped: None,
            gone: None,
        }

    @store_test
    async def test_a_blocker_that_is_tried_again_has_not_ended(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a = await one.add(retries=5)
        dependent = await one.add("after", after=(a,))
        await one.finish(await one.take(), "retry", error=OOPS)
        assert await one.state(dependent) == "blocked"
        await one.finish(await one.take(), "snooze")
        assert await one.state(dependent) == "blocked"
        await one.take()
        bench.advance(LEASE)
        await other.reap()
        assert await one.state(dependent) == "blocked"
        await one.finish(await one.take())
        assert await one.state(dependent) == "pending"

    @store_test
    async def test_a_blocker_whose_worker_died_for_the_last_time_skips_its_dependents(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a = await one.add(retries=0)
        b = await one.add("after", after=(a,))
        c = await one.add("cleanup", after=(a,), when="all_done")
        await one.take()
        bench.advance(LEASE)
        assert await other.reap() == {"cleanup": 1}
        assert (await one.state(b), await one.state(c)) == ("skipped", "pending")

    @store_test
    async def test_a_blocked_job_may_have_a_delay_too(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        a = await one.add()
        new = bench.job(after=(a,), delay=MINUTE)
        assert await one.enqueue(new) == [Enqueued(new.id, "blocked")]
        await one.finish(await one.take())
        assert await one.state(new.id) == "scheduled"
        bench.advance(MINUTE)
        assert (await one.take()).id == new.id

    @store_test
    async def test_a_wide_fan_in_and_fan_out_start_each_job_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        blockers = await one.add_many(60)
        waiting = await one.add_many(60, "after", after=tuple(blockers))
        jobs = await other.claim(60)
        ready = 0
        for at in range(0, 60, 7):
            reply = await other.exchange([build_finish(job) for job in jobs[at : at + 7]])
            ready += reply.ready.get("after", 0)
        assert ready == 60
        assert [job.id for job in await one.claim(100)] == waiting

    @store_test
    async def test_a_diamond_runs_in_order(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        top = await one.add("top")
        left, right = await one.add("left", after=(top,)), await one.add("right", after=(top,))
        await one.add("bottom", after=(left, right))
        order: list[str] = []
        while jobs := await one.claim(1):
            order.append(jobs[0].type)
            await one.finish(jobs[0])
        assert order in (["top", "left", "right", "bottom"], ["top", "right", "left", "bottom"])
