"""`rerun_failed` retries all failed jobs in one transaction, in dependency order, and no others."""

from __future__ import annotations

from backstay.testing.conformance.job.bench import LEASE, MINUTE, Bench, claim, long_claim
from backstay.testing.conformance.run.cases import begin, outcome, play

LINE = {"a": {}, "b": {"after": "a"}, "c": {"after": "b"}}


class Rerunning:
    """Tests of `rerun_failed`."""

    @claim
    async def test_all_that_failed_begins_again_in_one_step(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {"good": {}, "x": {"retries": 1}, "y": {}, "after x": {"after": "x"}, "all": {"after": "good x y"}}
        run = await begin(one, wishes)
        await play(one, {"x": "fail", "y": "fail"})
        failed = await run.audit()
        assert failed.counts == {"completed": 1, "failed": 2, "skipped": 2}
        bench.wait(MINUTE)
        seen = await other.ask("rerun_failed", run.id)
        assert seen == await run.audit()
        assert (seen.status, seen.counts) == ("running", {"completed": 1, "pending": 2, "blocked": 2})
        kinds_and_keys = await run.event_list(failed.events)
        assert kinds_and_keys[0] == ("run_reopened", "")
        assert sorted(kinds_and_keys[1:]) == [("ready", "x"), ("ready", "y")]
        jobs = await one.claim(5)
        assert [(job.type, job.attempt) for job in jobs] == [("x", 1), ("y", 1)]
        await one.exchange([outcome(job) for job in jobs])
        assert sorted(await play(one)) == ["after x", "all"]
        assert (await run.audit()).status == "success"

    @claim
    async def test_what_was_cancelled_begins_again_too_in_its_order(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {**LINE, "always": {"after": "b", "when": "all_done"}, "tell": {"after": "a", "when": "any_failure"}}
        run = await begin(one, wishes)
        await other.ask("cancel_run", run.id, "enough")
        bench.wait(1)
        seen = await other.ask("rerun_failed", run.id)
        assert (seen.status, seen.cancel_requested) == ("running", False)
        states = {"a": "pending", "b": "blocked", "c": "blocked", "always": "blocked", "tell": "blocked"}
        assert await run.states() == states
        order = await play(other)
        assert (order[:2], sorted(order[2:])) == (["a", "b"], ["always", "c"])
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("success", {"completed": 4, "skipped": 1})

    @claim
    async def test_results_of_what_had_completed_are_still_there(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {}, "c": {"after": "a b"}})
        await play(one, {"b": "fail"})
        await other.ask("rerun_failed", run.id)
        await one.exchange([outcome(await one.take(), result=b"second")])
        job = await one.take()
        assert job.upstream == {run.ids["a"]: b"a", run.ids["b"]: b"second"}

    @claim
    async def test_a_failed_job_waits_again_for_a_blocker_that_failed_too(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {}, "always": {"after": "a", "when": "all_done"}})
        await play(one, {"a": "fail", "always": "fail"})
        await one.ask("rerun_failed", run.id)
        assert await run.states() == {"a": "pending", "always": "blocked"}
        await one.exchange([outcome(await one.take())])
        job = await one.take()
        assert (job.type, job.upstream) == ("always", {run.ids["a"]: b"a"})
        await one.exchange([outcome(job)])
        assert (await run.audit()).status == "success"

    @claim
    async def test_what_was_done_because_of_the_failure_stays_done(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {}, "tell": {"after": "a", "when": "any_failure"}})
        await play(one, {"a": "fail"})
        await one.ask("rerun_failed", run.id)
        assert await run.states() == {"a": "pending", "tell": "completed"}
        assert await play(one) == ["a"]
        assert (await run.audit()).status == "success"

    @claim
    async def test_it_may_fail_again_and_again(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, LINE)
        for _ in range(4):
            await play(one, {"b": "fail"})
            assert (await run.audit()).counts == {"completed": 1, "failed": 1, "skipped": 1}
            assert await run.status() == "failure"
            bench.wait(1)
            await one.ask("rerun_failed", run.id)
        await play(one)
        assert (await run.audit()).status == "success"
        kinds = [kind for kind, _ in await run.event_list()]
        assert (kinds.count("run_finished"), kinds.count("run_reopened")) == (5, 4)

    @claim
    async def test_a_run_without_failures_or_one_that_goes_on_is_left_as_it_is(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        assert await one.ask("rerun_failed", bench.new_id()) is None
        run = await begin(one, {"a": {}, "b": {"after": "a"}, "slow": {}})
        a, slow = await one.claim(2)
        await one.exchange([outcome(a, "fail")])
        before = await run.audit()
        assert await other.ask("rerun_failed", run.id) == before
        assert await run.run() == before
        await one.exchange([outcome(slow)])
        done = await begin(one, {"a": {}, "b": {"after": "a"}})
        await play(one, {"a": "skip"})
        before = await done.audit()
        bench.wait(1)
        assert await other.ask("rerun_failed", done.id) == before
        assert await done.run() == before

    @claim
    async def test_skipped_by_its_own_will_stays_skipped(self, bench: Bench) -> None:
        """A job that skipped itself independently of the failure is not retried, nor are its dependents."""
        (one,) = await bench.clients(1)
        wishes = {"decide": {}, "behind": {"after": "decide"}, "bad": {}, "both": {"after": "decide bad"}}
        run = await begin(one, wishes)
        await play(one, {"decide": "skip", "bad": "fail"})
        await one.ask("rerun_failed", run.id)
        states = {"decide": "skipped", "behind": "skipped", "bad": "pending", "both": "skipped"}
        assert await run.states() == states
        await play(one)
        assert (await run.audit()).status == "success"

    @claim
    async def test_blame_is_forgotten_with_the_failure(self, bench: Bench) -> None:
        """A job that was skipped because of a failure and is not skipped in the re-run appends no second skip event."""
        (one,) = await bench.clients(1)
        run = await begin(one, {**LINE, "tell": {"after": "c", "when": "any_failure"}})
        await play(one, {"a": "fail", "tell": "cancel"})
        assert (await run.states())["tell"] == "cancelled"
        await one.ask("rerun_failed", run.id)
        assert await play(one) == ["a", "b", "c"]
        assert (await run.states())["tell"] == "skipped"
        assert (await run.audit()).status == "success"

    @claim
    async def test_a_soft_failure_may_be_tried_again(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"lint": {"soft": True}, "build": {"after": "lint"}})
        await play(one, {"lint": "fail"})
        assert await run.status() == "success"
        seen = await one.ask("rerun_failed", run.id)
        assert (seen.status, seen.counts) == ("running", {"completed": 1, "pending": 1})
        assert await play(one) == ["lint"]
        assert (await run.audit()).counts == {"completed": 2}

    @claim
    async def test_the_last_job_of_a_chain_is_tried_again_alone(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"first": {}, "then": {"after": "first"}})
        job = await one.take()
        await one.exchange([outcome(job, next=bench.job("second", chain=job.chain))])
        await play(one, {"second": "fail"})
        await one.ask("rerun_failed", run.id)
        assert await run.states() == {"first": "completed", "second": "pending", "then": "blocked"}
        assert await play(one) == ["second", "then"]
        assert (await run.audit()).status == "success"

    @claim
    async def test_a_worker_that_died_is_forgotten(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])
        old = await one.take()
        bench.wait(LEASE)
        await other.reap()
        await other.ask("rerun_failed", run.id)
        new = await other.take()
        assert (await one.exchange([outcome(old, "fail")])).verdicts == ("stale",)
        assert (await other.exchange([outcome(new)])).verdicts == ("ok",)
        assert (await run.audit()).status == "success"

    @long_claim
    async def test_thousands_begin_again_in_one_step(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        middle = {str(nth): {"after": "first"} for nth in range(3000)}
        run = await begin(one, {"first": {}, **middle, "last": {"after": list(middle)}})
        await play(one, {"first": "fail"})
        assert (await run.audit()).counts == {"failed": 1, "skipped": 3001}
        seen = await other.ask("rerun_failed", run.id)
        assert seen.counts == {"pending": 1, "blocked": 3001}
        await play(other, dict.fromkeys(middle, "fail"))
        assert (await run.audit()).counts == {"completed": 1, "failed": 3000, "skipped": 1}
        assert (await other.ask("rerun_failed", run.id)).counts == {"completed": 1, "pending": 3000, "blocked": 1}
        await play(one)
        assert (await run.audit()).status == "success"
