"""Chains: a job's finish may name a next job, which continues the chain. Jobs that wait for the chain wait until its
last job has ended.
"""

from __future__ import annotations

from backstay.job.model import Failure
from backstay.testing.conformance.job.bench import MINUTE, Bench, build_finish, store_test

OOPS = Failure("OSError", "disk full")


class JobChainingTests:
    """Tests of `Finish.next`."""

    @store_test
    async def test_a_chain_continues_in_the_same_exchange(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        first = await one.add("first")
        job = await one.take()
        new = bench.job("second", chain=job.chain, args=b"more")
        reply = await one.exchange([build_finish(job, result=b"one", next=new)])
        assert reply.ready == {"second": 1}
        seen = await other.get(first)
        assert (seen.state, seen.result, seen.followed_by) == ("completed", b"one", new.id)
        second = await other.take()
        assert (second.id, second.type, second.chain, second.args, second.attempt) == (
            new.id,
            "second",
            first,
            b"more",
            1,
        )
        assert (await other.get(new.id)).chain == first

    @store_test
    async def test_the_next_job_can_be_claimed_in_the_same_exchange(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add()
        job = await one.take()
        for _ in range(5):
            new = bench.job(chain=job.chain)
            reply = await one.exchange([build_finish(job, next=new)], want=1)
            assert ([taken.id for taken in reply.jobs], reply.ready) == ([new.id], {})
            (job,) = reply.jobs

    @store_test
    async def test_the_next_job_may_be_delayed(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add()
        job = await one.take()
        new = bench.job(chain=job.chain, delay=MINUTE)
        assert (await one.exchange([build_finish(job, next=new)], want=1)).jobs == ()
        assert await one.state(new.id) == "scheduled"
        bench.advance(MINUTE)
        assert (await one.take()).id == new.id

    @store_test
    async def test_a_stale_finish_makes_no_next_job(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add()
        job = await one.take()
        await one.finish(job)
        new = bench.job(chain=job.chain)
        assert await one.finish(job, next=new) == "stale"
        assert await one.call("get", new.id) is None
        assert (await one.get(job.id)).followed_by == ""

    @store_test
    async def test_the_next_job_may_wait_for_others(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        chain, blocker = await one.add_many(2)
        first, second = await one.claim(2)
        new = bench.job("next", chain=chain, after=(blocker,))
        await one.finish(first, next=new)
        assert (await other.get(new.id)).waits_for == (blocker,)
        await one.finish(second, result=b"b")
        assert (await other.take()).upstream == {blocker: b"b"}

    @store_test
    async def test_a_next_job_behind_an_unknown_blocker_is_skipped_and_the_attempt_still_ends(
        self, bench: Bench
    ) -> None:
        one, other = await bench.clients(2)
        chain = await one.add("first")
        unrelated = await one.add("other")
        waits = await one.add("after", after=(chain,))
        job, beside = await one.claim(2)
        new = bench.job("next", chain=chain, after=(bench.job().id,))
        reply = await one.exchange([build_finish(job, result=b"one", next=new), build_finish(beside)])
        assert reply.verdicts == ("ok", "ok")
        assert [await other.state(id_) for id_ in (chain, unrelated, new.id, waits)] == [
            "completed",
            "completed",
            "skipped",
            "skipped",
        ]
        assert (await other.get(chain)).followed_by == new.id

    @store_test
    async def test_a_next_job_with_an_unknown_blocker_starts_if_its_condition_is_all_done(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        chain = await one.add()
        unknown = bench.job().id
        new = bench.job("next", chain=chain, after=(unknown,), when="all_done")
        await one.finish(await one.take(), next=new)
        assert (await one.take()).upstream == {unknown: None}

    @store_test
    async def test_waiting_for_a_chain_waits_for_its_last_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        chain = await one.add("first")
        dependent = await one.add("after", after=(chain,))
        job = await one.take()
        new = bench.job("second", chain=chain)
        await one.finish(job, result=b"one", next=new)
        assert await other.state(dependent) == "blocked"
        late = await other.add("after", after=(chain,))
        assert await other.state(late) == "blocked"
        await one.finish(await one.take(), result=b"two")
        assert [job.upstream for job in await other.claim(5)] == [{chain: b"two"}] * 2

    @store_test
    async def test_a_chain_that_fails_later_skips_its_dependents(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        chain = await one.add()
        dependent = await one.add("after", after=(chain,))
        job = await one.take()
        await one.finish(job, next=bench.job(chain=chain))
        await one.finish(await one.take(), "fail", error=OOPS)
        assert await other.state(dependent) == "skipped"

    @store_test
    async def test_one_blockers_chain_continues_while_another_ends(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        a, b = await one.add_many(2)
        dependent = await one.add("after", after=(a, b))
        first, second = await one.claim(2)
        new = bench.job("next", chain=a)
        reply = await one.exchange([build_finish(first, result=b"a1", next=new), build_finish(second, result=b"b")])
        assert reply.ready == {"next": 1}
        assert (await other.get(dependent)).waits_for == (a,)
        await one.finish(await one.take(), result=b"a2")
        assert (await other.take()).upstream == {a: b"a2", b: b"b"}

    @store_test
    async def test_a_chain_that_has_ended_blocks_nothing(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        chain = await one.add()
        job = await one.take()
        await one.finish(job, result=b"one", next=bench.job(chain=chain))
        await one.finish(await one.take(), result=b"two")
        await other.add("after", after=(chain,))
        assert (await other.take()).upstream == {chain: b"two"}
