"""Only the current lease may finish an attempt; a stale finish changes nothing."""

from __future__ import annotations

import msgspec

from backstay.job.model import Failure
from backstay.testing.conformance.job.bench import LEASE, SECOND, Bench, build_finish, store_test

WRONG = Failure("ValueError", "no such file", "Traceback …", attempt=1, at=5)


class JobFinishingTests:
    """Tests of the finishes in `exchange`, and of `renew`."""

    @store_test
    async def test_a_completed_job_keeps_its_result(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await other.take()
        bench.advance(SECOND)
        assert await other.finish(job, result=b"\x00\xff") == "ok"
        seen = await one.get(id_)
        assert (seen.state, seen.result, seen.finished, seen.attempt) == ("completed", b"\x00\xff", bench.now, 1)
        assert await one.claim(5) == []
        assert (await one.exchange()).next_in is None

    @store_test
    async def test_an_empty_result_is_a_result(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add()
        await one.finish(await one.take(), result=b"")
        assert (await one.get(id_)).result == b""

    @store_test
    async def test_a_failed_job_is_a_dead_letter_with_its_cause(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=5)
        assert await other.finish(await other.take(), "fail", error=WRONG) == "ok"
        seen = await one.get(id_)
        assert (seen.state, seen.error, seen.result, seen.finished) == ("failed", WRONG, None, bench.now)
        assert await one.claim(5) == []

    @store_test
    async def test_a_job_may_end_itself(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add(retries=5)
        assert await one.finish(await one.take(), "cancel", error=Failure("Cancel", "not needed")) == "ok"
        seen = await one.get(id_)
        assert (seen.state, seen.finished) == ("cancelled", bench.now)
        assert seen.error is not None
        assert seen.error.message == "not needed"

    @store_test
    async def test_finishing_twice_is_stale_and_changes_nothing(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        assert await one.finish(job, result=b"first") == "ok"
        for kind in ("complete", "fail", "retry", "snooze", "release", "cancel"):
            assert await other.finish(job, kind, result=b"second", error=WRONG) == "stale"
        seen = await one.get(id_)
        assert (seen.state, seen.result) == ("completed", b"first")
        assert await one.claim(5) == []

    @store_test
    async def test_a_wrong_fence_is_stale(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        for fence in (job.fence - 1, job.fence + 1, 0):
            assert await other.finish(msgspec.structs.replace(job, fence=fence)) == "stale"
        assert await one.state(id_) == "running"
        assert await one.finish(job) == "ok"

    @store_test
    async def test_a_finish_of_a_job_that_does_not_run_or_exist_is_stale(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add("ran")
        job = await one.take()
        waiting, scheduled = await one.add(), await one.add(delay=SECOND)
        for id_ in (waiting, scheduled, bench.job().id):
            assert await one.finish(msgspec.structs.replace(job, id=id_)) == "stale"
        assert (await one.state(waiting), await one.state(scheduled)) == ("pending", "scheduled")

    @store_test
    async def test_a_batch_of_finishes_is_answered_in_order(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add_many(5, retries=1)
        a, b, c, d, e = await one.claim(5)
        await one.finish(b)
        reply = await other.exchange(
            [
                build_finish(a, result=b"a"),
                build_finish(b),
                build_finish(c, "fail", error=WRONG),
                build_finish(a),
                build_finish(d, "retry", error=WRONG, delay=SECOND),
                build_finish(e, "snooze", delay=SECOND),
            ]
        )
        assert reply.verdicts == ("ok", "stale", "ok", "stale", "ok", "ok")
        states = [await one.state(job.id) for job in (a, b, c, d, e)]
        assert states == ["completed", "completed", "failed", "scheduled", "scheduled"]

    @store_test
    async def test_one_exchange_finishes_and_claims(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        ids = await one.add_many(3)
        jobs = await one.claim(1)
        done = [jobs[0].id]
        while jobs:
            reply = await one.exchange([build_finish(job) for job in jobs], want=1)
            assert set(reply.verdicts) == {"ok"}
            jobs = list(reply.jobs)
            done += [job.id for job in jobs]
        assert done == ids
        assert {await one.state(id_) for id_ in ids} == {"completed"}

    @store_test
    async def test_a_released_job_can_be_claimed_in_the_same_exchange(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add()
        job = await one.take()
        reply = await one.exchange([build_finish(job, "release")], want=1)
        assert [again.id for again in reply.jobs] == [job.id]
        assert reply.jobs[0].fence > job.fence
        assert reply.ready == {}

    @store_test
    async def test_a_released_job_is_claimed_by_rank_in_the_same_exchange(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        first = await one.add(priority=5)
        await one.add(priority=1)
        job = (await one.claim(1))[0]
        assert job.id == first
        reply = await one.exchange([build_finish(job, "release")], want=1)
        assert [again.id for again in reply.jobs] == [first]
        await one.add(priority=9)
        reply = await one.exchange([build_finish(reply.jobs[0], "release")], want=3)
        assert [again.priority for again in reply.jobs] == [9, 5, 1]

    @store_test
    async def test_a_renewed_lease_does_not_expire(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        for _ in range(4):
            bench.advance(LEASE - 1)
            assert await one.renew(job) == ["ok"]
            assert (await one.get(id_)).lease_until == bench.now + LEASE
            assert await other.claim(5) == []
        assert await one.finish(job) == "ok"

    @store_test
    async def test_a_renewal_stores_progress(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add()
        job = await one.take()
        await one.renew(job, progress=0.25)
        await one.renew(job)
        assert (await other.get(id_)).progress == 0.25

    @store_test
    async def test_a_new_attempt_begins_without_progress(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add(retries=1)
        job = await one.take()
        await one.renew(job, progress=0.75)
        await one.finish(job, "retry")
        await one.take()
        assert (await one.get(id_)).progress == 0.0

    @store_test
    async def test_a_lease_is_renewed_by_its_owner_alone(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add()
        job = await one.take()
        bench.advance(SECOND)
        assert await other.renew(job) == ["lost"]
        assert (await one.get(job.id)).lease_until == job.until
        assert await one.renew(job) == ["ok"]

    @store_test
    async def test_a_renewal_is_answered_for_each_lease(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await one.add_many(3)
        a, b, c = await one.claim(3)
        await one.finish(b)
        await other.call("cancel", c.id, "enough")
        never = msgspec.structs.replace(a, id=bench.job().id)
        assert await one.renew(a, b, c, never) == ["ok", "lost", "cancelled", "lost"]
        assert await one.renew() == []
