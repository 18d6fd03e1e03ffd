"""Lost replies: a repeated exchange has one effect, and an outdated one is refused."""

from __future__ import annotations

import asyncio

import msgspec

from backstay.job.exchange import ExchangeCommand
from backstay.testing.conformance.job.bench import LEASE, SECOND, Bench, build_finish, store_test


def at(command: ExchangeCommand, **fields: object) -> ExchangeCommand:
    return msgspec.structs.replace(command, **fields)


class JobLostRepliesTests:
    """Tests of an `exchange` that is sent twice."""

    @store_test
    async def test_a_repeated_seq_returns_the_same_reply_and_claims_nothing_more(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add_many(6)
        done = await one.claim(2)
        command = one.command([build_finish(done[0]), build_finish(done[1]), build_finish(done[0])], want=2)
        first = await one.send(command)
        assert (first.verdicts, len(first.jobs)) == (("ok", "ok", "stale"), 2)
        for _ in range(3):
            again = await one.send(command)
            assert again.verdicts == first.verdicts
            assert again.jobs == first.jobs
        assert len(await one.claim(10)) == 2

    @store_test
    async def test_a_repeated_exchange_renews_the_jobs_that_it_returns_again(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        command = one.command(want=1)
        (job,) = (await one.send(command)).jobs
        bench.advance(LEASE - SECOND)
        (again,) = (await one.send(at(command, not_after=bench.now + LEASE))).jobs
        assert (again.id, again.fence, again.attempt, again.until) == (id_, job.fence, 1, bench.now + LEASE)
        bench.advance(LEASE - 1)
        assert await other.reap() == {}
        assert await other.finish(again) == "ok"

    @store_test
    async def test_a_repeated_exchange_leaves_out_jobs_whose_lease_has_ended(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add_many(3, retries=3)
        command = one.command(want=3)
        a, b, c = (await one.send(command)).jobs
        await one.exchange([build_finish(a), build_finish(b, "release")], channel=1)
        taken = await other.take()
        assert taken.id == b.id
        again = await one.send(command)
        assert [(job.id, job.fence) for job in again.jobs] == [(c.id, c.fence)]

    @store_test
    async def test_a_repeated_seq_after_reaping_returns_no_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=3)
        command = one.command(want=1, not_after=bench.now + 10 * LEASE)
        await one.send(command)
        bench.advance(LEASE)
        await other.reap()
        assert (await one.send(command)).jobs == ()
        assert (await other.take()).id == id_
        assert (await one.send(command)).jobs == ()

    @store_test
    async def test_a_lower_seq_is_stale_and_has_no_effect(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add_many(3)
        (job,) = await one.claim(1, seq=10)
        await one.exchange(seq=11)
        for seq in (10, 9, 0):
            reply = await one.exchange([build_finish(job)], want=5, seq=seq)
            assert (reply.stale, reply.jobs, reply.verdicts) == (True, (), ())
        assert await one.state(job.id) == "running"
        reply = await one.exchange([build_finish(job)], want=5, seq=12)
        assert (reply.stale, reply.verdicts, len(reply.jobs)) == (False, ("ok",), 2)

    @store_test
    async def test_sequence_numbers_are_separate_per_channel_worker_and_incarnation(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add_many(5)
        assert len(await one.claim(1, seq=7)) == 1
        assert len(await one.claim(1, seq=7, channel=1)) == 1
        assert len(await one.claim(1, seq=7, incarnation="two")) == 1
        assert len(await other.claim(1, seq=7)) == 1
        assert len(await one.claim(1, seq=3, incarnation="three")) == 1

    @store_test
    async def test_the_last_exchange_of_a_channel_is_stored_for_two_leases(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add_many(5, retries=5)
        command = one.command(want=1, not_after=bench.now + 10 * LEASE)
        first = await one.send(command)
        bench.advance(2 * LEASE - 1)
        assert (await one.exchange(seq=command.seq - 1)).stale
        again = await one.send(command)
        assert not again.stale
        assert {job.id for job in again.jobs} <= {job.id for job in first.jobs}

    @store_test
    async def test_a_command_after_its_not_after_has_no_effect(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add_many(3)
        (job,) = await one.claim(1)
        late = one.command([build_finish(job)], want=5, not_after=bench.now - 1)
        reply = await one.send(late)
        assert (reply.expired, reply.verdicts, reply.jobs, reply.now) == (True, (), (), bench.now)
        assert await one.state(job.id) == "running"
        # Sent again with the same seq after a clock correction: the first copy had no effect, so this one is applied.
        reply = await one.send(at(late, not_after=bench.now))
        assert (reply.expired, reply.verdicts, len(reply.jobs)) == (False, ("ok",), 2)

    @store_test
    async def test_an_exchange_without_effect_loses_no_announcement(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.exchange(seq=10)
        await one.add("timed", delay=SECOND)
        bench.advance(SECOND)
        ready: dict[str, int] = {}
        for reply in (
            await one.exchange(not_after=bench.now - 1, seq=11),
            await one.exchange(seq=9),
            await one.exchange(seq=10),
        ):
            ready |= reply.ready
        ready |= await other.reap()
        assert ready == {"timed": 1}

    @store_test
    async def test_an_exchange_sent_twice_at_once_happens_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        ids = await one.add_many(40)
        command = one.command(want=10)
        replies = await asyncio.gather(*[client.send(command) for client in (one, other) for _ in range(4)])
        assert {tuple(job.id for job in reply.jobs) for reply in replies} == {tuple(ids[:10])}
        assert {tuple(job.fence for job in reply.jobs) for reply in replies} == {
            tuple(job.fence for job in replies[0].jobs)
        }
        assert len(await other.claim(100)) == 30

    @store_test
    async def test_a_repeated_finish_with_a_next_job_creates_one_next_job(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add()
        job = await one.take()
        following = bench.job("next", chain=job.chain)
        command = one.command([build_finish(job, next=following)], want=1)
        first = await one.send(command)
        again = await one.send(command)
        assert [taken.id for taken in first.jobs] == [following.id]
        assert again.jobs == first.jobs
        assert await one.claim(10) == []
