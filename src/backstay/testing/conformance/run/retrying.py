"""Retrying one job reopens its run and clears the run's cancel request."""

from __future__ import annotations

from backstay.testing.conformance.job.bench import HOUR, MINUTE, Bench, store_test
from backstay.testing.conformance.run.cases import begin, default_finish, run_jobs

LINE = {"a": {}, "b": {"after": "a"}, "c": {"after": "b"}}


class RunRetryingTests:
    """Tests of `trigger`."""

    @store_test
    async def test_a_job_that_is_tried_again_reopens_its_run(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, LINE)
        await run_jobs(one, {"b": "fail"})
        failed = await run.audit()
        assert failed.status == "failure"
        bench.advance(MINUTE)
        assert await other.call("trigger", run.ids["b"]) == "pending"
        seen = await run.audit()
        assert (seen.status, seen.finished, seen.started) == ("running", 0, failed.started)
        assert seen.counts == {"completed": 1, "pending": 1, "blocked": 1}
        assert await run.event_list(failed.events) == [("run_reopened", ""), ("ready", "b")]
        assert await run_jobs(one) == ["b", "c"]
        seen = await run.audit()
        assert (seen.status, seen.finished) == ("success", bench.now)

    @store_test
    async def test_an_unfinished_run_is_not_reopened(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {}, "slow": {}})
        a, _ = await one.claim(2)
        await one.exchange([default_finish(a, "fail")])
        before = await run.audit()
        await one.call("trigger", a.id)
        seen = await run.audit()
        assert (seen.status, seen.events) == ("running", before.events + 1)
        assert (await run.event_list())[-1] == ("ready", "a")

    @store_test
    async def test_a_cancelled_run_that_is_reopened_is_not_cancelled_any_more(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {"retries": 1}, "b": {"after": "a"}})
        await other.call("cancel_run", run.id, "enough")
        assert await other.call("trigger", run.ids["a"]) == "pending"
        seen = await run.audit()
        assert (seen.status, seen.cancel_requested, seen.reason) == ("running", False, "")
        job = await one.take()
        assert await one.renew(job) == ["ok"]
        await one.exchange([default_finish(job, "retry", adds=())])
        job = await one.take()
        await one.exchange([default_finish(job, adds=(bench.job("more"),))])
        assert (await run.states())["more"] == "pending"
        assert await run_jobs(one) == ["more"]
        assert (await run.audit()).counts == {"completed": 2, "cancelled": 1}

    @store_test
    async def test_a_job_of_a_run_that_is_being_cancelled_is_not_retried(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {}})
        job = await one.take()
        await other.call("cancel_run", run.id, "enough")
        before = await run.audit()
        assert await other.call("trigger", run.ids["b"]) == "cancelled"
        assert await other.call("rerun_failed", run.id) == before
        assert await run.run() == before
        await one.exchange([default_finish(job)])
        assert (await run.audit()).status == "cancelled"

    @store_test
    async def test_a_reopened_run_that_had_not_started_starts_with_its_first_claim(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])
        await other.call("cancel_run", run.id, "enough")
        await other.call("trigger", run.ids["a"])
        assert (await run.audit()).started == 0
        bench.advance(1)
        await one.take()
        assert (await run.audit()).started == bench.now

    @store_test
    async def test_a_retried_job_waits_for_a_blocker_that_was_retried_before(self, bench: Bench) -> None:
        """A retried blocker counts as open again, also for a job that had already recorded the blocker's end."""
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}, "always": {"after": "a", "when": "all_done"}})
        await other.call("cancel_run", run.id, "enough")
        for name, state in (("a", "pending"), ("b", "blocked"), ("always", "blocked")):
            assert await other.call("trigger", run.ids[name]) == state
        await one.exchange([default_finish(await one.take())])
        assert [job.upstream for job in await one.claim(5)] == [{run.ids["a"]: b"a"}] * 2
        await run.audit()

    @store_test
    async def test_a_retried_job_does_not_wait_for_a_chain_that_waits_for_it(self, bench: Bench) -> None:
        """The chain of `a` ended because its last job `e` was skipped: `e` waits for `c`, which was cancelled. Retrying
        `c` makes `e` wait for it again. If `c` also waited for the chain of `a` again, neither would ever start.
        """
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {}, "c": {"after": "a", "when": "all_done"}})
        job = await one.take()
        following = bench.job("e", chain=job.chain, after=(run.ids["c"],))
        await one.exchange([default_finish(job, next=following)])
        await one.call("cancel", run.ids["c"], "enough")
        assert await one.call("trigger", run.ids["c"]) == "pending"
        assert await run_jobs(one) == ["c", "e"]
        assert (await run.audit()).status == "success"

    @store_test
    async def test_a_retried_job_gets_the_latest_results_of_its_blockers(self, bench: Bench) -> None:
        """A retried job starts with the latest result of each blocker, also if the blocker ended while the job was
        cancelled.
        """
        (one,) = await bench.clients(1)
        wishes = {name: {"after": "a", "when": name} for name in ("all_success", "all_done", "any_failure")}
        run = await begin(one, {"a": {}, **wishes})
        await one.call("cancel_run", run.id, "enough")
        await one.call("trigger", run.ids["a"])
        assert await run_jobs(one) == ["a"]
        for name, state in (("all_success", "pending"), ("all_done", "pending"), ("any_failure", "cancelled")):
            assert await one.call("trigger", run.ids[name]) == state
        jobs = await one.claim(5)
        assert [job.upstream for job in jobs] == [{run.ids["a"]: b"a"}] * 2
        await one.exchange([default_finish(job) for job in jobs])
        assert (await run.audit()).counts == {"completed": 3, "cancelled": 1}

    @store_test
    async def test_a_blocker_that_fails_again_still_blocks_a_cancelled_job(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {**LINE, "tell": {"after": "a", "when": "any_failure"}})
        await one.call("cancel_run", run.id, "enough")
        await one.call("trigger", run.ids["a"])
        await run_jobs(one, {"a": "fail"})
        assert await one.call("trigger", run.ids["b"]) == "cancelled"
        assert await one.call("trigger", run.ids["tell"]) == "pending"
        assert await run_jobs(one) == ["tell"]
        assert (await run.audit()).status == "failure"

    @store_test
    async def test_a_failed_any_failure_job_can_be_retried_after_its_blocker_succeeded(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {}, "tell": {"after": "a", "when": "any_failure"}})
        await run_jobs(one, {"a": "fail", "tell": "fail"})
        await one.call("trigger", run.ids["a"])
        assert await run_jobs(one) == ["a"]
        assert await one.call("trigger", run.ids["tell"]) == "pending"
        assert await run_jobs(one) == ["tell"]
        assert (await run.audit()).status == "success"

    @store_test
    async def test_a_gather_job_gets_the_results_of_every_retried_job(self, bench: Bench) -> None:
        """A gather job (it waits for many jobs and collects their results) gets the latest result of each of them,
        after `trigger` and after `rerun_failed`.
        """
        (one,) = await bench.clients(1)
        for verb in ("trigger", "rerun_failed"):
            for size in (3, 70):
                parts = [f"part-{nth}" for nth in range(size)]
                gather = {"after": " ".join(parts), "when": "all_done"}
                run = await begin(one, {**{name: {} for name in parts}, "gather": gather, "next": {"after": "gather"}})
                await run_jobs(one, {"part-0": "fail", "part-2": "fail", "gather": "fail"})
                for name in ("part-0", "part-2"):
                    await one.call("trigger", run.ids[name])
                    assert await run_jobs(one) == [name]
                await one.call(verb, run.id if verb == "rerun_failed" else run.ids["gather"])
                job = await one.take()
                assert job.upstream == {run.ids[name]: name.encode() for name in parts}
                await one.exchange([default_finish(job)])
                assert await run_jobs(one) == ["next"]
                assert (await run.audit()).status == "success"

    @store_test
    async def test_a_job_added_to_a_cancelled_run_can_be_retried(self, bench: Bench) -> None:
        """A job added to a cancelled run gets the results of all its blockers when it is retried, whether they ended
        before or after it was added.
        """
        one, other = await bench.clients(2)
        for verb in ("trigger", "rerun_failed"):
            run = await begin(one, {"early": {}, "maker": {}, "late": {}})
            early, maker, late = await one.claim(3)
            await one.exchange([default_finish(early)])
            await other.call("cancel_run", run.id, "enough")
            new = bench.job("made", after=(early.id, late.id), when="all_done")
            await one.exchange([default_finish(maker, adds=(new,))])
            await one.exchange([default_finish(late, "fail")])
            assert (await run.states())["made"] == "cancelled"
            if verb == "trigger":
                assert await other.call("trigger", new.id) == "pending"
                upstream = {early.id: b"early", late.id: None}
            else:
                await other.call("rerun_failed", run.id)
                await one.exchange([default_finish(await one.take())])
                upstream = {early.id: b"early", late.id: b"late"}
            job = await one.take()
            assert (job.id, job.upstream) == (new.id, upstream)
            await one.exchange([default_finish(job)])
            # `trigger` leaves the job `late` cancelled.
            assert (await run.audit()).status == ("cancelled" if verb == "trigger" else "success")

    @store_test
    async def test_a_job_that_another_blocker_keeps_skipped_reopens_with_that_blocker(self, bench: Bench) -> None:
        """The job `both` waits for `decide`, whose handler skips it, and for `bad`, which fails; so `both` is skipped.
        When `bad` is retried and succeeds, `both` stays skipped because of `decide`. When `decide` is retried, `both`
        is blocked again and then runs.
        """
        (one,) = await bench.clients(1)
        for verb in ("trigger", "rerun_failed"):
            run = await begin(one, {"decide": {}, "bad": {}, "both": {"after": "decide bad"}})
            await run_jobs(one, {"decide": "skip", "bad": "fail"})
            await one.call(verb, run.id if verb == "rerun_failed" else run.ids["bad"])
            assert await run_jobs(one) == ["bad"]
            assert (await run.states())["both"] == "skipped"
            await one.call("trigger", run.ids["decide"])
            assert (await run.states())["both"] == "blocked"
            assert await run_jobs(one) == ["decide", "both"]
            assert (await run.audit()).status == "success"

    @store_test
    async def test_a_decision_over_a_failure_is_made_again(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        wishes = {"bad": {}, "decide": {"after": "bad", "when": "all_done"}, "behind": {"after": "decide"}}
        for verb in ("rerun_failed", "trigger"):
            run = await begin(one, wishes)
            await run_jobs(one, {"bad": "fail", "decide": "skip"})
            assert await run.states() == {"bad": "failed", "decide": "skipped", "behind": "skipped"}
            await one.call(verb, run.id if verb == "rerun_failed" else run.ids["bad"])
            assert await run.states() == {"bad": "pending", "decide": "blocked", "behind": "blocked"}
            await one.exchange([default_finish(await one.take())])
            job = await one.take()
            assert (job.type, job.attempt, job.upstream) == ("decide", 1, {run.ids["bad"]: b"bad"})
            await one.exchange([default_finish(job)])
            assert await run_jobs(one) == ["behind"]
            assert (await run.audit()).status == "success"

    @store_test
    async def test_a_reopened_job_waits_for_every_reopened_blocker(self, bench: Bench) -> None:
        """A retry of `a` also reopens its skipped dependents: they leave their final state. A reopened job waits for
        all its reopened blockers, also for one that depends on `a` only through other jobs.
        """
        (one,) = await bench.clients(1)
        for after in ("a b", "c a", "a c"):
            for verb in ("rerun_failed", "trigger"):
                run = await begin(one, {**LINE, "decide": {"after": after, "when": "all_done"}})
                await run_jobs(one, {"a": "fail", "decide": "skip"})
                assert await run.states() == {"a": "failed", "b": "skipped", "c": "skipped", "decide": "skipped"}
                await one.call(verb, run.id if verb == "rerun_failed" else run.ids["a"])
                await one.exchange([default_finish(await one.take())])
                assert await run.states() == {"a": "completed", "b": "pending", "c": "blocked", "decide": "blocked"}
                await one.exchange([default_finish(await one.take())])
                jobs = {job.type: job for job in await one.claim(5)}
                if "c" in after:
                    assert list(jobs) == ["c"]
                    await one.exchange([default_finish(jobs.pop("c"))])
                    jobs = {job.type: job for job in await one.claim(5)}
                assert jobs["decide"].upstream == {run.ids[name]: name.encode() for name in after.split()}
                await one.exchange([default_finish(job) for job in jobs.values()])
                assert (await run.audit()).status == "success"

    @store_test
    async def test_an_any_failure_condition_is_evaluated_again_on_retry(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {"delay": HOUR}, "tell": {"after": "a", "when": "any_failure"}})
        await one.call("cancel", run.ids["a"], "not now")
        assert await run.states() == {"a": "cancelled", "tell": "skipped"}
        await one.call("trigger", run.ids["a"])
        assert await run.states() == {"a": "pending", "tell": "blocked"}
        assert await run_jobs(one, {"a": "fail"}) == ["a", "tell"]
        assert (await run.audit()).status == "failure"

    @store_test
    async def test_a_job_with_an_unsuccessful_blocker_is_not_retried(self, bench: Bench) -> None:
        """`trigger` has no effect on a job while one of its direct or indirect blockers has not succeeded."""
        one, other = await bench.clients(2)
        run = await begin(one, {**LINE, "always": {"after": "a", "when": "all_done"}})
        await run_jobs(one, {"a": "fail"})
        before = await run.audit()
        for name in ("b", "c"):
            assert await other.call("trigger", run.ids[name]) == "skipped"
        assert await run.run() == before
        assert await one.claim(5) == []
        assert await other.call("trigger", run.ids["a"]) == "pending"
        assert await run_jobs(one) == ["a", "b", "c"]
        assert (await run.audit()).status == "success"
        run = await begin(one, LINE)
        await other.call("cancel_run", run.id, "enough")
        assert await other.call("trigger", run.ids["b"]) == "cancelled"
        assert (await run.audit()).status == "cancelled"

    @store_test
    async def test_a_job_is_not_retried_before_the_last_of_its_failed_blockers(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for count in (2, 20):
            needs = [f"need{nth}" for nth in range(count)]
            run = await begin(one, {**{name: {} for name in needs}, "after": {"after": " ".join(needs)}})
            await run_jobs(one, {needs[0]: "fail", needs[-1]: "fail"})
            assert await other.call("trigger", run.ids[needs[0]]) == "pending"
            assert await other.call("trigger", run.ids["after"]) == "skipped"
            assert await other.call("trigger", run.ids[needs[-1]]) == "pending"
            assert await other.call("trigger", run.ids["after"]) == "blocked"
            assert await run_jobs(one) == [needs[0], needs[-1], "after"]
            assert (await run.audit()).status == "success"

    @store_test
    async def test_an_any_failure_job_is_not_retried_without_a_failure(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "tell": {"after": "a", "when": "any_failure"}})
        await run_jobs(one)
        assert await other.call("trigger", run.ids["tell"]) == "skipped"
        assert (await run.audit()).status == "success"
        run = await begin(one, {"a": {}, "tell": {"after": "a", "when": "any_failure"}})
        await run_jobs(one, {"a": "fail", "tell": "fail"})
        assert await other.call("trigger", run.ids["tell"]) == "pending"

    @store_test
    async def test_a_job_that_skipped_itself_can_be_retried(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}, "c": {"after": "b"}})
        await run_jobs(one, {"b": "skip"})
        assert await other.call("trigger", run.ids["c"]) == "skipped"
        assert await other.call("trigger", run.ids["b"]) == "pending"
        assert await run_jobs(one) == ["b", "c"]
        assert (await run.audit()).status == "success"

    @store_test
    async def test_a_pending_job_keeps_the_results_of_a_blocker_that_is_retried(self, bench: Bench) -> None:
        """Once a job is pending, a retry of its blocker does not change the results it gets, in any of its attempts."""
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "late": {"after": "a", "when": "all_done", "retries": 3}})
        heard = {run.ids["a"]: None}
        await one.exchange([default_finish(await one.take(), "fail")])
        assert await other.call("trigger", run.ids["a"]) == "pending"
        late, a = sorted(await one.claim(2), key=lambda job: job.id == run.ids["a"])
        assert (late.id, late.upstream) == (run.ids["late"], heard)
        await one.exchange([default_finish(a, result=b"well")])
        bench.advance(HOUR)
        again = await other.take()
        assert (again.id, again.attempt, again.upstream) == (late.id, 2, heard)
        await other.exchange([default_finish(again)])
        assert (await run.audit()).status == "success"
