"""Further attempts after a retry, a snooze or a release: which of them count, and when a job is out of attempts."""

from __future__ import annotations

from backstay.job.model import Failure
from backstay.testing.conformance.job.bench import MINUTE, SECOND, Bench, build_finish, store_test

OOPS = Failure("OSError", "disk full", attempt=1, at=5)


class JobRetryingTests:
    """Tests of the finish kinds `retry`, `snooze` and `release`."""

    @store_test
    async def test_a_retry_waits_for_its_delay_and_counts_attempts(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=2)
        for attempt in (1, 2):
            job = await other.take()
            assert job.attempt == attempt
            assert await other.finish(job, "retry", error=OOPS, delay=MINUTE) == "ok"
            seen = await one.get(id_)
            assert (seen.state, seen.due, seen.error) == ("scheduled", bench.now + MINUTE, OOPS)
            assert (seen.finished, seen.worker) == (0, "")
            bench.advance(MINUTE - 1)
            assert await one.claim(5) == []
            bench.advance(1)
        last = await one.take()
        assert (last.attempt, last.retries) == (3, 2)

    @store_test
    async def test_a_retry_with_no_attempts_left_is_a_dead_letter(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add(retries=1)
        await one.finish(await one.take(), "retry", error=OOPS)
        assert await one.finish(await one.take(), "retry", error=OOPS, delay=SECOND) == "ok"
        seen = await one.get(id_)
        assert (seen.state, seen.attempt, seen.error, seen.finished) == ("failed", 2, OOPS, bench.now)
        bench.advance(MINUTE)
        assert await one.claim(5) == []

    @store_test
    async def test_a_retry_at_once_is_pending_and_announced(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add("again", retries=1)
        reply = await one.exchange([build_finish(await one.take(), "retry", error=OOPS)])
        assert reply.ready == {"again": 1}
        assert await one.state(id_) == "pending"

    @store_test
    async def test_a_snooze_costs_no_attempt(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=0)
        for nth in range(1, 5):
            job = await other.take()
            assert (job.attempt, job.snoozes) == (1, nth - 1)
            assert await other.finish(job, "snooze", delay=SECOND) == "ok"
            seen = await one.get(id_)
            assert (seen.state, seen.attempt, seen.snoozes, seen.due) == ("scheduled", 0, nth, bench.now + SECOND)
            bench.advance(SECOND)
        assert await other.finish(await other.take()) == "ok"

    @store_test
    async def test_a_release_costs_no_attempt_and_keeps_the_place_in_the_queue(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        first = await one.add("first", retries=0)
        bench.advance(SECOND)
        second = await one.add("second")
        for _ in range(4):
            job = await other.take()
            assert (job.id, job.attempt, job.snoozes) == (first, 1, 0)
            reply = await other.exchange([build_finish(job, "release")])
            assert reply.ready == {"first": 1}
            assert (await one.get(first)).attempt == 0
        assert [job.id for job in await one.claim(5)] == [first, second]

    @store_test
    async def test_a_retried_job_takes_its_place_by_its_new_due_time(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        failing = await one.add(retries=1)
        await one.finish(await one.take(), "retry", error=OOPS, delay=10 * SECOND)
        bench.advance(5 * SECOND)
        meanwhile = await one.add()
        bench.advance(10 * SECOND)
        after = await one.add()
        assert [job.id for job in await one.claim(5)] == [meanwhile, failing, after]

    @store_test
    async def test_the_lease_of_an_earlier_attempt_is_stale(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        id_ = await one.add(retries=3)
        old = await one.take()
        await one.finish(old, "retry", error=OOPS)
        assert await one.renew(old) == ["lost"]
        new = await other.take()
        assert new.fence > old.fence
        assert await one.renew(old) == ["lost"]
        assert await one.finish(old, result=b"old") == "stale"
        assert await other.finish(new, result=b"new") == "ok"
        assert (await one.get(id_)).result == b"new"
