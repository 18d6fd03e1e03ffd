"""Retrying one job reopens its run and clears the run's cancel request."""

from __future__ import annotations

from backstay.testing.conformance.job.bench import HOUR, MINUTE, Bench, claim
from backstay.testing.conformance.run.cases import begin, outcome, play

LINE = {"a": {}, "b": {"after": "a"}, "c": {"after": "b"}}


class Retrying:
    """Tests of `trigger`."""

    @claim
    async def test_a_job_that_is_tried_again_reopens_its_run(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, LINE)
        await play(one, {"b": "fail"})
        failed = await run.audit()
        assert failed.status == "failure"
        bench.wait(MINUTE)
        assert await other.ask("trigger", run.ids["b"]) == "pending"
        seen = await run.audit()
        assert (seen.status, seen.finished, seen.started) == ("running", 0, failed.started)
        assert seen.counts == {"completed": 1, "pending": 1, "blocked": 1}
        assert await run.event_list(failed.events) == [("run_reopened", ""), ("ready", "b")]
        assert await play(one) == ["b", "c"]
        seen = await run.audit()
        assert (seen.status, seen.finished) == ("success", bench.now)

    @claim
    async def test_a_run_that_goes_on_is_not_reopened(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {}, "slow": {}})
        a, _ = await one.claim(2)
        await one.exchange([outcome(a, "fail")])
        before = await run.audit()
        await one.ask("trigger", a.id)
        seen = await run.audit()
        assert (seen.status, seen.events) == ("running", before.events + 1)
        assert (await run.event_list())[-1] == ("ready", "a")

    @claim
    async def test_a_cancelled_run_that_is_reopened_is_not_cancelled_any_more(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {"retries": 1}, "b": {"after": "a"}})
        await other.ask("cancel_run", run.id, "enough")
        assert await other.ask("trigger", run.ids["a"]) == "pending"
        seen = await run.audit()
        assert (seen.status, seen.cancel_requested, seen.reason) == ("running", False, "")
        job = await one.take()
        assert await one.renew(job) == ["ok"]
        await one.exchange([outcome(job, "retry", adds=())])
        job = await one.take()
        await one.exchange([outcome(job, adds=(bench.job("more"),))])
        assert (await run.states())["more"] == "pending"
        assert await play(one) == ["more"]
        assert (await run.audit()).status == "success"

    @claim
    async def test_a_job_of_a_run_that_is_being_cancelled_is_left_as_it_is(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {}})
        job = await one.take()
        await other.ask("cancel_run", run.id, "enough")
        before = await run.audit()
        assert await other.ask("trigger", run.ids["b"]) == "cancelled"
        assert await other.ask("rerun_failed", run.id) == before
        assert await run.run() == before
        await one.exchange([outcome(job)])
        assert (await run.audit()).status == "cancelled"

    @claim
    async def test_a_run_that_had_not_begun_begins_with_its_first_claim(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])
        await other.ask("cancel_run", run.id, "enough")
        await other.ask("trigger", run.ids["a"])
        assert (await run.audit()).started == 0
        bench.wait(1)
        await one.take()
        assert (await run.audit()).started == bench.now

    @claim
    async def test_a_triggered_job_waits_for_a_blocker_that_was_triggered_before(self, bench: Bench) -> None:
        """A retried blocker counts as open again, also for a job that had already recorded the blocker's end."""
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}, "always": {"after": "a", "when": "all_done"}})
        await other.ask("cancel_run", run.id, "enough")
        for name, state in (("a", "pending"), ("b", "blocked"), ("always", "blocked")):
            assert await other.ask("trigger", run.ids[name]) == state
        await one.exchange([outcome(await one.take())])
        assert [job.upstream for job in await one.claim(5)] == [{run.ids["a"]: b"a"}] * 2
        await run.audit()

    @claim
    async def test_a_job_hears_what_became_of_a_need_that_was_tried_again_before_it(self, bench: Bench) -> None:
        """A retried job starts with the latest result of each blocker, also if the blocker ended while the job was
        cancelled.
        """
        (one,) = await bench.clients(1)
        wishes = {name: {"after": "a", "when": name} for name in ("all_success", "all_done", "any_failure")}
        run = await begin(one, {"a": {}, **wishes})
        await one.ask("cancel_run", run.id, "enough")
        await one.ask("trigger", run.ids["a"])
        assert await play(one) == ["a"]
        for name, state in (("all_success", "pending"), ("all_done", "pending"), ("any_failure", "cancelled")):
            assert await one.ask("trigger", run.ids[name]) == state
        jobs = await one.claim(5)
        assert [job.upstream for job in jobs] == [{run.ids["a"]: b"a"}] * 2
        await one.exchange([outcome(job) for job in jobs])
        assert (await run.audit()).status == "success"

    @claim
    async def test_a_need_that_failed_once_more_still_holds_back_what_was_cancelled(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {**LINE, "tell": {"after": "a", "when": "any_failure"}})
        await one.ask("cancel_run", run.id, "enough")
        await one.ask("trigger", run.ids["a"])
        await play(one, {"a": "fail"})
        assert await one.ask("trigger", run.ids["b"]) == "cancelled"
        assert await one.ask("trigger", run.ids["tell"]) == "pending"
        assert await play(one) == ["tell"]
        assert (await run.audit()).status == "failure"

    @claim
    async def test_an_alarm_that_failed_can_be_tried_again_although_its_reason_is_mended(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {}, "tell": {"after": "a", "when": "any_failure"}})
        await play(one, {"a": "fail", "tell": "fail"})
        await one.ask("trigger", run.ids["a"])
        assert await play(one) == ["a"]
        assert await one.ask("trigger", run.ids["tell"]) == "pending"
        assert await play(one) == ["tell"]
        assert (await run.audit()).status == "success"

    @claim
    async def test_a_gather_sees_every_retried_job_before_it(self, bench: Bench) -> None:
        """The gather job gets the latest result of every job it waits for, after `trigger` and after `rerun_failed`."""
        (one,) = await bench.clients(1)
        for verb in ("trigger", "rerun_failed"):
            for size in (3, 70):
                parts = [f"part-{nth}" for nth in range(size)]
                gather = {"after": " ".join(parts), "when": "all_done"}
                run = await begin(one, {**{name: {} for name in parts}, "gather": gather, "next": {"after": "gather"}})
                await play(one, {"part-0": "fail", "part-2": "fail", "gather": "fail"})
                for name in ("part-0", "part-2"):
                    await one.ask("trigger", run.ids[name])
                    assert await play(one) == [name]
                await one.ask(verb, run.id if verb == "rerun_failed" else run.ids["gather"])
                job = await one.take()
                assert job.upstream == {run.ids[name]: name.encode() for name in parts}
                await one.exchange([outcome(job)])
                assert await play(one) == ["next"]
                assert (await run.audit()).status == "success"

    @claim
    async def test_what_was_cancelled_when_it_was_made_can_be_tried_again(self, bench: Bench) -> None:
        """A job added to a cancelled run gets the results of all its blockers when it is retried, whether they ended
        before or after it was added.
        """
        one, other = await bench.clients(2)
        for verb in ("trigger", "rerun_failed"):
            run = await begin(one, {"early": {}, "maker": {}, "late": {}})
            early, maker, late = await one.claim(3)
            await one.exchange([outcome(early)])
            await other.ask("cancel_run", run.id, "enough")
            new = bench.job("made", after=(early.id, late.id), when="all_done")
            await one.exchange([outcome(maker, adds=(new,))])
            await one.exchange([outcome(late, "fail")])
            assert (await run.states())["made"] == "cancelled"
            if verb == "trigger":
                assert await other.ask("trigger", new.id) == "pending"
                upstream = {early.id: b"early", late.id: None}
            else:
                await other.ask("rerun_failed", run.id)
                await one.exchange([outcome(await one.take())])
                upstream = {early.id: b"early", late.id: b"late"}
            job = await one.take()
            assert (job.id, job.upstream) == (new.id, upstream)
            await one.exchange([outcome(job)])
            assert (await run.audit()).status == "success"

    @claim
    async def test_who_stays_skipped_for_another_reason_comes_back_with_that(self, bench: Bench) -> None:
        """Once the failed blocker has succeeded, only the skipped blocker keeps the job skipped; retrying that one
        reopens the job.
        """
        (one,) = await bench.clients(1)
        for verb in ("trigger", "rerun_failed"):
            run = await begin(one, {"decide": {}, "bad": {}, "both": {"after": "decide bad"}})
            await play(one, {"decide": "skip", "bad": "fail"})
            await one.ask(verb, run.id if verb == "rerun_failed" else run.ids["bad"])
            assert await play(one) == ["bad"]
            assert (await run.states())["both"] == "skipped"
            await one.ask("trigger", run.ids["decide"])
            assert (await run.states())["both"] == "blocked"
            assert await play(one) == ["decide", "both"]
            assert (await run.audit()).status == "success"

    @claim
    async def test_a_decision_over_a_failure_is_made_again(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        wishes = {"bad": {}, "decide": {"after": "bad", "when": "all_done"}, "behind": {"after": "decide"}}
        for verb in ("rerun_failed", "trigger"):
            run = await begin(one, wishes)
            await play(one, {"bad": "fail", "decide": "skip"})
            assert await run.states() == {"bad": "failed", "decide": "skipped", "behind": "skipped"}
            await one.ask(verb, run.id if verb == "rerun_failed" else run.ids["bad"])
            assert await run.states() == {"bad": "pending", "decide": "blocked", "behind": "blocked"}
            await one.exchange([outcome(await one.take())])
            job = await one.take()
            assert (job.type, job.attempt, job.upstream) == ("decide", 1, {run.ids["bad"]: b"bad"})
            await one.exchange([outcome(job)])
            assert await play(one) == ["behind"]
            assert (await run.audit()).status == "success"

    @claim
    async def test_who_comes_back_waits_for_all_that_come_back_with_it(self, bench: Bench) -> None:
        """A reopened job waits for every reopened blocker, also for blockers that are reopened only indirectly."""
        (one,) = await bench.clients(1)
        for after in ("a b", "c a", "a c"):
            for verb in ("rerun_failed", "trigger"):
                run = await begin(one, {**LINE, "decide": {"after": after, "when": "all_done"}})
                await play(one, {"a": "fail", "decide": "skip"})
                assert await run.states() == {"a": "failed", "b": "skipped", "c": "skipped", "decide": "skipped"}
                await one.ask(verb, run.id if verb == "rerun_failed" else run.ids["a"])
                await one.exchange([outcome(await one.take())])
                assert await run.states() == {"a": "completed", "b": "pending", "c": "blocked", "decide": "blocked"}
                await one.exchange([outcome(await one.take())])
                jobs = {job.type: job for job in await one.claim(5)}
                if "c" in after:
                    assert list(jobs) == ["c"]
                    await one.exchange([outcome(jobs.pop("c"))])
                    jobs = {job.type: job for job in await one.claim(5)}
                assert jobs["decide"].upstream == {run.ids[name]: name.encode() for name in after.split()}
                await one.exchange([outcome(job) for job in jobs.values()])
                assert (await run.audit()).status == "success"

    @claim
    async def test_want_of_a_failure_is_judged_again(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {"delay": HOUR}, "tell": {"after": "a", "when": "any_failure"}})
        await one.ask("cancel", run.ids["a"], "not now")
        assert await run.states() == {"a": "cancelled", "tell": "skipped"}
        await one.ask("trigger", run.ids["a"])
        assert await run.states() == {"a": "pending", "tell": "blocked"}
        assert await play(one, {"a": "fail"}) == ["a", "tell"]
        assert (await run.audit()).status == "failure"

    @claim
    async def test_a_job_whose_need_did_not_succeed_is_held_back(self, bench: Bench) -> None:
        """`trigger` has no effect on a job while one of its direct or indirect blockers has not succeeded."""
        one, other = await bench.clients(2)
        run = await begin(one, {**LINE, "always": {"after": "a", "when": "all_done"}})
        await play(one, {"a": "fail"})
        before = await run.audit()
        for name in ("b", "c"):
            assert await other.ask("trigger", run.ids[name]) == "skipped"
        assert await run.run() == before
        assert await one.claim(5) == []
        assert await other.ask("trigger", run.ids["a"]) == "pending"
        assert await play(one) == ["a", "b", "c"]
        assert (await run.audit()).status == "success"
        run = await begin(one, LINE)
        await other.ask("cancel_run", run.id, "enough")
        assert await other.ask("trigger", run.ids["b"]) == "cancelled"
        assert (await run.audit()).status == "cancelled"

    @claim
    async def test_a_job_is_held_back_until_the_last_of_its_needs_is_tried_again(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for count in (2, 20):
            needs = [f"need{nth}" for nth in range(count)]
            run = await begin(one, {**{name: {} for name in needs}, "after": {"after": " ".join(needs)}})
            await play(one, {needs[0]: "fail", needs[-1]: "fail"})
            assert await other.ask("trigger", run.ids[needs[0]]) == "pending"
            assert await other.ask("trigger", run.ids["after"]) == "skipped"
            assert await other.ask("trigger", run.ids[needs[-1]]) == "pending"
            assert await other.ask("trigger", run.ids["after"]) == "blocked"
            assert await play(one) == [needs[0], needs[-1], "after"]
            assert (await run.audit()).status == "success"

    @claim
    async def test_a_job_for_failures_is_held_back_while_nothing_failed(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "tell": {"after": "a", "when": "any_failure"}})
        await play(one)
        assert await other.ask("trigger", run.ids["tell"]) == "skipped"
        assert (await run.audit()).status == "success"
        run = await begin(one, {"a": {}, "tell": {"after": "a", "when": "any_failure"}})
        await play(one, {"a": "fail", "tell": "fail"})
        assert await other.ask("trigger", run.ids["tell"]) == "pending"

    @claim
    async def test_a_job_that_was_skipped_by_its_own_decision_can_be_tried_again(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}, "c": {"after": "b"}})
        await play(one, {"b": "skip"})
        assert await other.ask("trigger", run.ids["c"]) == "skipped"
        assert await other.ask("trigger", run.ids["b"]) == "pending"
        assert await play(one) == ["b", "c"]
        assert (await run.audit()).status == "success"

    @claim
    async def test_a_job_that_began_keeps_what_it_heard_of_a_need_that_is_tried_again(self, bench: Bench) -> None:
        """Once a job is pending, a retry of its blocker does not change the results it gets, in any of its attempts."""
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "late": {"after": "a", "when": "all_done", "retries": 3}})
        heard = {run.ids["a"]: None}
        await one.exchange([outcome(await one.take(), "fail")])
        assert await other.ask("trigger", run.ids["a"]) == "pending"
        late, a = sorted(await one.claim(2), key=lambda job: job.id == run.ids["a"])
        assert (late.id, late.upstream) == (run.ids["late"], heard)
        await one.exchange([outcome(a, result=b"well")])
        bench.wait(HOUR)
        again = await other.take()
        assert (again.id, again.attempt, again.upstream) == (late.id, 2, heard)
        await other.exchange([outcome(again)])
        assert (await run.audit()).status == "success"
