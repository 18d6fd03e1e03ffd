"""`rerun_failed` retries all failed jobs in one transaction, in dependency order, and no others."""

from __future__ import annotations

from backstay.testing.conformance.job.bench import LEASE, MINUTE, Bench, long_store_test, store_test
from backstay.testing.conformance.run.cases import begin, default_finish, run_jobs

LINE = {"a": {}, "b": {"after": "a"}, "c": {"after": "b"}}


class RunRerunningTests:
    """Tests of `rerun_failed`."""

    @store_test
    async def test_all_failed_jobs_are_rerun_in_one_transaction(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {"good": {}, "x": {"retries": 1}, "y": {}, "after x": {"after": "x"}, "all": {"after": "good x y"}}
        run = await begin(one, wishes)
        await run_jobs(one, {"x": "fail", "y": "fail"})
        failed = await run.audit()
        assert failed.counts == {"completed": 1, "failed": 2, "skipped": 2}
        bench.advance(MINUTE)
        seen = await other.call("rerun_failed", run.id)
        assert seen == await run.audit()
        assert (seen.status, seen.counts) == ("running", {"completed": 1, "pending": 2, "blocked": 2})
        kinds_and_keys = await run.event_list(failed.events)
        assert kinds_and_keys[0] == ("run_reopened", "")
        assert sorted(kinds_and_keys[1:]) == [("ready", "x"), ("ready", "y")]
        jobs = await one.claim(5)
        assert [(job.type, job.attempt) for job in jobs] == [("x", 1), ("y", 1)]
        await one.exchange([default_finish(job) for job in jobs])
        assert sorted(await run_jobs(one)) == ["after x", "all"]
        assert (await run.audit()).status == "success"

    @store_test
    async def test_cancelled_jobs_are_rerun_in_dependency_order(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {**LINE, "always": {"after": "b", "when": "all_done"}, "tell": {"after": "a", "when": "any_failure"}}
        run = await begin(one, wishes)
        await other.call("cancel_run", run.id, "enough")
        bench.advance(1)
        seen = await other.call("rerun_failed", run.id)
        assert (seen.status, seen.cancel_requested) == ("running", False)
        states = {"a": "pending", "b": "blocked", "c": "blocked", "always": "blocked", "tell": "blocked"}
        assert await run.states() == states
        order = await run_jobs(other)
        assert (order[:2], sorted(order[2:])) == (["a", "b"], ["always", "c"])
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("success", {"completed": 4, "skipped": 1})

    @store_test
    async def test_results_of_completed_jobs_are_kept(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {}, "c": {"after": "a b"}})
        await run_jobs(one, {"b": "fail"})
        await other.call("rerun_failed", run.id)
        await one.exchange([default_finish(await one.take(), result=b"second")])
        job = await one.take()
        assert job.upstream == {run.ids["a"]: b"a", run.ids["b"]: b"second"}

    @store_test
    async def test_a_failed_job_waits_again_for_a_blocker_that_failed_too(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {}, "always": {"after": "a", "when": "all_done"}})
        await run_jobs(one, {"a": "fail", "always": "fail"})
        await one.call("rerun_failed", run.id)
        assert await run.states() == {"a": "pending", "always": "blocked"}
        await one.exchange([default_finish(await one.take())])
        job = await one.take()
        assert (job.type, job.upstream) == ("always", {run.ids["a"]: b"a"})
        await one.exchange([default_finish(job)])
        assert (await run.audit()).status == "success"

    @store_test
    async def test_jobs_that_ran_because_of_the_failure_are_not_rerun(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {}, "tell": {"after": "a", "when": "any_failure"}})
        await run_jobs(one, {"a": "fail"})
        await one.call("rerun_failed", run.id)
        assert await run.states() == {"a": "pending", "tell": "completed"}
        assert await run_jobs(one) == ["a"]
        assert (await run.audit()).status == "success"

    @store_test
    async def test_a_rerun_may_fail_repeatedly(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, LINE)
        for _ in range(4):
            await run_jobs(one, {"b": "fail"})
            assert (await run.audit()).counts == {"completed": 1, "failed": 1, "skipped": 1}
            assert await run.status() == "failure"
            bench.advance(1)
            await one.call("rerun_failed", run.id)
        await run_jobs(one)
        assert (await run.audit()).status == "success"
        kinds = [kind for kind, _ in await run.event_list()]
        assert (kinds.count("run_finished"), kinds.count("run_reopened")) == (5, 4)

    @store_test
    async def test_a_run_without_failures_or_an_unfinished_run_is_not_rerun(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        assert await one.call("rerun_failed", bench.new_id()) is None
        run = await begin(one, {"a": {}, "b": {"after": "a"}, "slow": {}})
        a, slow = await one.claim(2)
        await one.exchange([default_finish(a, "fail")])
        before = await run.audit()
        assert await other.call("rerun_failed", run.id) == before
        assert await run.run() == before
        await one.exchange([default_finish(slow)])
        done = await begin(one, {"a": {}, "b": {"after": "a"}})
        await run_jobs(one, {"a": "skip"})
        before = await done.audit()
        bench.advance(1)
        assert await other.call("rerun_failed", done.id) == before
        assert await done.run() == before

    @store_test
    async def test_a_job_that_skipped_itself_is_not_rerun(self, bench: Bench) -> None:
        """A re-run does not retry a job whose own handler skipped it, nor the dependents of that job."""
        (one,) = await bench.clients(1)
        wishes = {"decide": {}, "behind": {"after": "decide"}, "bad": {}, "both": {"after": "decide bad"}}
        run = await begin(one, wishes)
        await run_jobs(one, {"decide": "skip", "bad": "fail"})
        await one.call("rerun_failed", run.id)
        states = {"decide": "skipped", "behind": "skipped", "bad": "pending", "both": "skipped"}
        assert await run.states() == states
        await run_jobs(one)
        assert (await run.audit()).status == "success"

    @store_test
    async def test_an_earlier_failure_does_not_count_in_a_rerun(self, bench: Bench) -> None:
        """When the re-run succeeds, the earlier failure no longer counts: a job with `when="any_failure"` is
        skipped.
        """
        (one,) = await bench.clients(1)
        run = await begin(one, {**LINE, "tell": {"after": "c", "when": "any_failure"}})
        await run_jobs(one, {"a": "fail", "tell": "cancel"})
        assert (await run.states())["tell"] == "cancelled"
        await one.call("rerun_failed", run.id)
        assert await run_jobs(one) == ["a", "b", "c"]
        assert (await run.states())["tell"] == "skipped"
        assert (await run.audit()).status == "success"

    @store_test
    async def test_a_soft_failure_may_be_tried_again(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"lint": {"soft": True}, "build": {"after": "lint"}})
        await run_jobs(one, {"lint": "fail"})
        assert await run.status() == "success"
        seen = await one.call("rerun_failed", run.id)
        assert (seen.status, seen.counts) == ("running", {"completed": 1, "pending": 1})
        assert await run_jobs(one) == ["lint"]
        assert (await run.audit()).counts == {"completed": 2}

    @store_test
    async def test_the_last_job_of_a_chain_is_tried_again_alone(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"first": {}, "then": {"after": "first"}})
        job = await one.take()
        await one.exchange([default_finish(job, next=bench.job("second", chain=job.chain))])
        await run_jobs(one, {"second": "fail"})
        await one.call("rerun_failed", run.id)
        assert await run.states() == {"first": "completed", "second": "pending", "then": "blocked"}
        assert await run_jobs(one) == ["second", "then"]
        assert (await run.audit()).status == "success"

    @store_test
    async def test_a_rerun_ignores_the_late_finish_of_a_dead_worker(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])
        old = await one.take()
        bench.advance(LEASE)
        await other.reap()
        await other.call("rerun_failed", run.id)
        new = await other.take()
        assert (await one.exchange([default_finish(old, "fail")])).verdicts == ("stale",)
        assert (await other.exchange([default_finish(new)])).verdicts == ("ok",)
        assert (await run.audit()).status == "success"

    @long_store_test
    async def test_thousands_of_jobs_are_rerun_in_one_transaction(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        middle = {str(nth): {"after": "first"} for nth in range(3000)}
        run = await begin(one, {"first": {}, **middle, "last": {"after": list(middle)}})
        await run_jobs(one, {"first": "fail"})
        assert (await run.audit()).counts == {"failed": 1, "skipped": 3001}
        seen = await other.call("rerun_failed", run.id)
        assert seen.counts == {"pending": 1, "blocked": 3001}
        await run_jobs(other, dict.fromkeys(middle, "fail"))
        assert (await run.audit()).counts == {"completed": 1, "failed": 3000, "skipped": 1}
        assert (await other.call("rerun_failed", run.id)).counts == {"completed": 1, "pending": 3000, "blocked": 1}
        await run_jobs(one)
        assert (await run.audit()).status == "success"
