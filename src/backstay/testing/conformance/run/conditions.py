"""The conditions of `when` (all_success, all_done, any_failure), soft failures and skips."""

from __future__ import annotations

from backstay.job.model import Enqueued
from backstay.testing.conformance.job.bench import LEASE, MINUTE, Bench, store_test
from backstay.testing.conformance.run.cases import begin, default_finish, run_jobs


class RunConditionsTests:
    """Tests of `when`, `soft` and the finish kind `skip`."""

    # ── any_failure ──

    @store_test
    async def test_any_failure_starts_when_all_have_ended_and_one_failed(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {}, "tell": {"after": "a b", "when": "any_failure"}})
        a, b = await other.claim(2)
        await other.exchange([default_finish(a, "fail")])
        assert (await run.states())["tell"] == "blocked"
        await other.exchange([default_finish(b)])
        job = await other.take()
        assert (job.type, job.upstream) == ("tell", {a.id: None, b.id: b"b"})
        await other.exchange([default_finish(job)])
        assert (await run.audit()).status == "failure"

    @store_test
    async def test_any_failure_is_skipped_when_none_failed(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {"a": {}, "b": {}, "tell": {"after": "a b", "when": "any_failure"}, "then": {"after": "tell"}}
        run = await begin(one, wishes)
        assert sorted(await run_jobs(other)) == ["a", "b"]
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("success", {"completed": 2, "skipped": 2})

    @store_test
    async def test_any_failure_counts_indirect_failures(self, bench: Bench) -> None:
        """A job that was skipped because of a failure counts as a failure, through any number of skipped jobs."""
        one, other = await bench.clients(2)
        run = await begin(
            one,
            {
                "a": {},
                "b": {"after": "a"},
                "c": {"after": "b"},
                "d": {"after": "c"},
                "far": {"after": "d", "when": "any_failure"},
                "near": {"after": "a", "when": "any_failure"},
                "fine": {},
                "both": {"after": "d fine", "when": "any_failure"},
            },
        )
        order = await run_jobs(other, {"a": "fail"})
        assert sorted(order) == ["a", "both", "far", "fine", "near"]
        assert (await run.audit()).counts == {"failed": 1, "skipped": 3, "completed": 4}

    @store_test
    async def test_a_job_that_ran_despite_a_failure_hides_it_from_later_jobs(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {
            "a": {},
            "always": {"after": "a", "when": "all_done"},
            "tell": {"after": "always", "when": "any_failure"},
            "then": {"after": "always"},
        }
        run = await begin(one, wishes)
        assert await run_jobs(other, {"a": "fail"}) == ["a", "always", "then"]
        assert (await run.states())["tell"] == "skipped"
        await run.audit()

    @store_test
    async def test_a_cancelled_job_is_no_failure(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {
            "a": {"delay": MINUTE},
            "b": {"after": "a"},
            "near": {"after": "a", "when": "any_failure"},
            "far": {"after": "b", "when": "any_failure"},
            "anyway": {"after": "b", "when": "all_done"},
        }
        run = await begin(one, wishes)
        await other.call("cancel", run.ids["a"], "enough")
        states = {"a": "cancelled", "b": "skipped", "near": "skipped", "far": "skipped", "anyway": "pending"}
        assert await run.states() == states
        await run.audit()

    @store_test
    async def test_any_failure_after_the_fact_is_decided_at_once(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        a, b = await one.add("a"), await one.add("b")
        behind = await one.add("behind", after=(a,))
        await run_jobs(one, {"a": "fail"})
        for blocker, state in ((a, "pending"), (b, "skipped"), (behind, "pending")):
            new = bench.job("tell", after=(blocker,), when="any_failure")
            assert [made.state for made in await one.enqueue(new)] == [state]

    @store_test
    async def test_any_failure_without_needs_is_skipped(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        new = bench.job("tell", when="any_failure")
        assert await one.enqueue(new) == [Enqueued(new.id, "skipped")]
        run = await begin(one, {"tell": {"when": "any_failure"}, "behind": {"after": "tell"}})
        assert (await run.audit()).status == "success"
        assert await run.event_list() == [
            ("run_created", ""),
            ("skipped", "tell"),
            ("skipped", "behind"),
            ("run_finished", ""),
        ]

    @store_test
    async def test_any_failure_counts_a_worker_that_died(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "tell": {"after": "a", "when": "any_failure"}})
        await one.take()
        bench.advance(LEASE)
        assert await other.reap() == {"tell": 1}
        assert await run_jobs(other) == ["tell"]
        assert (await run.audit()).status == "failure"

    # ── soft ──

    @store_test
    async def test_a_soft_failure_blocks_no_dependent(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {
            "lint": {"soft": True},
            "build": {"after": "lint"},
            "always": {"after": "lint", "when": "all_done"},
            "tell": {"after": "lint", "when": "any_failure"},
        }
        run = await begin(one, wishes)
        await other.exchange([default_finish(await other.take(), "fail")])
        jobs = await other.claim(5)
        assert {job.type: job.upstream for job in jobs} == {
            "build": {run.ids["lint"]: None},
            "always": {run.ids["lint"]: None},
        }
        await other.exchange([default_finish(job) for job in jobs])
        states = {"lint": "failed", "build": "completed", "always": "completed", "tell": "skipped"}
        assert await run.states() == states
        assert (await run.audit()).status == "success"

    @store_test
    async def test_a_soft_job_whose_worker_died_blocks_no_dependent(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"lint": {"soft": True}, "build": {"after": "lint"}})
        await one.take()
        bench.advance(LEASE)
        assert await other.reap() == {"build": 1}
        assert await run_jobs(other) == ["build"]
        assert (await run.audit()).status == "success"

    @store_test
    async def test_a_soft_job_that_succeeds_is_like_any_other(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"lint": {"soft": True}, "build": {"after": "lint"}})
        await one.exchange([default_finish(await one.take())])
        assert (await one.take()).upstream == {run.ids["lint"]: b"lint"}

    @store_test
    async def test_a_soft_job_that_is_skipped_or_cancelled_is_like_any_other(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        wishes = {
            "a": {},
            "lint": {"after": "a", "soft": True},
            "build": {"after": "lint"},
            "tell": {"after": "lint", "when": "any_failure"},
        }
        run = await begin(one, wishes)
        await run_jobs(one, {"a": "fail"})
        assert await run.states() == {"a": "failed", "lint": "skipped", "build": "skipped", "tell": "completed"}
        run = await begin(one, wishes)
        await run_jobs(one, {"lint": "cancel"})
        assert await run.states() == {"a": "completed", "lint": "cancelled", "build": "skipped", "tell": "skipped"}

    @store_test
    async def test_a_soft_failure_beside_a_hard_one_is_a_failure(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"soft": {"soft": True}, "hard": {}, "all": {"after": "soft hard"}})
        await run_jobs(one, {"soft": "fail", "hard": "fail"})
        assert await run.states() == {"soft": "failed", "hard": "failed", "all": "skipped"}
        assert (await run.audit()).status == "failure"

    @store_test
    async def test_soft_works_without_a_run(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        a = await one.add("a", soft=True)
        waiting = await one.add("b", after=(a,))
        await one.exchange([default_finish(await one.take(), "fail")])
        late = await one.add("b", after=(a,))
        assert [(job.id, job.upstream) for job in await one.claim(5)] == [(waiting, {a: None}), (late, {a: None})]

    # ── skip ──

    @store_test
    async def test_a_skip_does_not_count_as_a_failure(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {
            "decide": {},
            "b": {"after": "decide"},
            "c": {"after": "b"},
            "always": {"after": "decide", "when": "all_done"},
            "near": {"after": "decide", "when": "any_failure"},
            "far": {"after": "c", "when": "any_failure"},
        }
        run = await begin(one, wishes)
        job = await other.take()
        reply = await other.exchange([default_finish(job, "skip")])
        assert (reply.verdicts, reply.ready) == (("ok",), {"always": 1})
        seen = (await run.jobs())[0]
        assert (seen.state, seen.finished, seen.result) == ("skipped", bench.now, None)
        job = await other.take()
        assert (job.type, job.upstream) == ("always", {run.ids["decide"]: None})
        await other.exchange([default_finish(job)])
        skipped = dict.fromkeys(("decide", "b", "c", "near", "far"), "skipped")
        assert await run.states() == {**skipped, "always": "completed"}
        assert (await run.audit()).status == "success"

    @store_test
    async def test_a_run_whose_jobs_are_all_skipped_is_a_success(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"decide": {}, "b": {"after": "decide"}})
        await run_jobs(one, {"decide": "skip"})
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("success", {"skipped": 2})

    @store_test
    async def test_a_failure_beside_a_skip_still_triggers_any_failure(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        wishes = {"decide": {}, "a": {}, "tell": {"after": "decide a", "when": "any_failure"}}
        run = await begin(one, wishes)
        assert await run_jobs(one, {"decide": "skip", "a": "fail"}) == ["decide", "a", "tell"]
        assert (await run.audit()).status == "failure"

    @store_test
    async def test_a_skip_ends_the_lease(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        id_ = await one.add()
        job = await one.take()
        await one.exchange([default_finish(job, "skip")])
        assert await one.renew(job) == ["lost"]
        assert (await one.exchange([default_finish(job)])).verdicts == ("stale",)
        assert await one.state(id_) == "skipped"
        assert (await one.exchange()).next_in is None

    @store_test
    async def test_a_chain_may_end_with_a_skip(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {}, "b": {"after": "a"}})
        job = await one.take()
        await one.exchange([default_finish(job, next=bench.job("a2", chain=job.chain))])
        await one.exchange([default_finish(await one.take(), "skip")])
        assert await run.states() == {"a": "completed", "a2": "skipped", "b": "skipped"}
        assert (await run.audit()).status == "success"
