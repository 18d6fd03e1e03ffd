"""Tests of `check_runs`, which cancels the runs that have exceeded their deadline. It also repairs wrong job counts of
a run. Such counts would be a bug in the store, so the tests check that it finds none.
"""

from __future__ import annotations

from backstay.testing.conformance.job.bench import HOUR, LEASE, MINUTE, SECOND, Bench, store_test
from backstay.testing.conformance.run.cases import begin, default_finish, run_jobs


class RunDeadlinesTests:
    """Tests of `check_runs` and a run's timeout."""

    @store_test
    async def test_check_runs_changes_no_healthy_run(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {"a": {"retries": 1}, "b": {"after": "a"}, "c": {"after": "b", "when": "any_failure"}, "d": {}}
        run = await begin(one, wishes)
        for kind in ("retry", "release", "snooze", "fail", "complete"):
            assert await other.call("check_runs", bench.shard) == []
            for job in await one.claim(1):
                await one.exchange([default_finish(job, kind)])
        await one.take()
        bench.advance(LEASE)
        assert await other.call("check_runs", bench.shard) == []
        await other.reap()
        before = await run.audit()
        assert await other.call("check_runs", bench.shard) == []
        assert await run.run() == before

    @store_test
    async def test_a_run_past_its_deadline_is_cancelled(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}}, timeout=MINUTE)
        unlimited = await begin(one, {"x": {"queue": "elsewhere"}})
        job = await one.take(lease=HOUR)
        bench.advance(MINUTE - 1)
        assert await other.call("check_runs", bench.shard) == []
        assert (await run.audit()).counts == {"running": 1, "blocked": 1}
        bench.advance(1)
        assert await other.call("check_runs", bench.shard) == []
        seen = await run.audit()
        assert (seen.status, seen.cancel_requested, seen.counts) == ("running", True, {"running": 1, "cancelled": 1})
        assert seen.reason
        assert await one.renew(job) == ["cancelled"]
        await one.exchange([default_finish(job, "cancel")])
        assert (await run.audit()).status == "cancelled"
        bench.advance(HOUR)
        await other.call("check_runs", bench.shard)
        assert (await unlimited.audit()).status == "queued"
        assert [kind for kind, _ in await run.event_list()].count("run_cancelling") == 1

    @store_test
    async def test_queues_count_each_cancelled_job_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await begin(one, {"a": {"delay": HOUR}, "b": {"after": "a"}})
        for how in ("deadline", "by hand"):
            run = await begin(one, {"a": {}, "b": {"after": "a"}, "c": {"delay": HOUR}}, timeout=MINUTE)
            await one.take(lease=HOUR)
            if how == "deadline":
                bench.advance(MINUTE)
                await other.call("check_runs", bench.shard)
            else:
                await other.call("cancel_run", run.id, "enough")
            await run.audit()
        (queue,) = await other.call("queues")
        assert (queue.scheduled, queue.blocked, queue.running, queue.cancelled) == (1, 1, 2, 4)

    @store_test
    async def test_an_unclaimed_run_is_cancelled_at_its_deadline(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, ["a"], timeout=SECOND)
        bench.advance(SECOND)
        await one.call("check_runs", bench.shard)
        seen = await run.audit()
        assert (seen.status, seen.finished) == ("cancelled", bench.now)
        assert await one.claim(5) == []

    @store_test
    async def test_a_run_that_ended_before_its_deadline_is_not_cancelled(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, ["a"], timeout=MINUTE)
        await run_jobs(one)
        before = await run.audit()
        bench.advance(HOUR)
        await one.call("check_runs", bench.shard)
        assert await run.run() == before

    @store_test
    async def test_a_reopened_run_has_its_full_timeout_again(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        for verb in ("rerun_failed", "trigger"):
            run = await begin(one, ["a"], timeout=MINUTE)
            bench.advance(MINUTE)
            await one.call("check_runs", bench.shard)
            assert await run.status() == "cancelled"
            bench.advance(HOUR)
            await one.call(verb, run.id if verb == "rerun_failed" else run.ids["a"])
            assert (await run.run()).deadline == bench.now + MINUTE
            bench.advance(MINUTE - 1)
            await one.call("check_runs", bench.shard)
            assert (await run.audit()).counts == {"pending": 1}
            bench.advance(1)
            await one.call("check_runs", bench.shard)
            assert (await run.audit()).status == "cancelled"

    @store_test
    async def test_check_runs_is_bounded_and_terminates(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for _ in range(3):
            await begin(one, {"x": {"queue": "elsewhere"}})
        runs = [await begin(one, ["a"], timeout=MINUTE) for _ in range(12)]
        bench.advance(MINUTE)
        for _ in range(3):
            assert await other.call("check_runs", bench.shard, 5) == []
        assert {await run.status() for run in runs} == {"cancelled"}
        assert len(await one.call("list_runs", status="queued")) == 3
