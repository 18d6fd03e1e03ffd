"""A run ends once, when its last job ends. Its status follows from the states of its jobs and from a cancel request."""

from __future__ import annotations

from backstay.job.model import Failure
from backstay.testing.conformance.job.bench import LEASE, MINUTE, SECOND, Bench, store_test
from backstay.testing.conformance.run.cases import begin, default_finish, run_jobs

DIAMOND = {"top": {}, "left": {"after": "top"}, "right": {"after": "top"}, "bottom": {"after": "left right"}}


class RunEndingTests:
    """Tests of a run's status, start and finish times, and counts."""

    @store_test
    async def test_a_run_is_queued_until_its_first_job_starts(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a", "b"])
        bench.advance(1)
        assert (await run.run()).status == "queued"
        job = await other.take()
        seen = await run.audit()
        assert (seen.status, seen.started, seen.counts) == ("running", bench.now, {"running": 1, "pending": 1})
        begun = bench.now
        bench.advance(1)
        await other.finish(job, "release")
        seen = await run.audit()
        assert (seen.status, seen.started, seen.counts) == ("running", begun, {"pending": 2})

    @store_test
    async def test_a_diamond_ends_as_a_success_with_its_last_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, DIAMOND)
        for expected in ({"top"}, {"left", "right"}, {"bottom"}):
            assert (await run.audit()).finished == 0
            jobs = await other.claim(5)
            assert {job.type for job in jobs} == expected
            bench.advance(SECOND)
            await other.exchange([default_finish(job) for job in jobs])
        seen = await run.audit()
        assert (seen.status, seen.finished, seen.counts) == ("success", bench.now, {"completed": 4})

    @store_test
    async def test_parents_hand_their_results_to_their_children_alone(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, DIAMOND)
        names = {id_: name for name, id_ in run.ids.items()}
        seen: dict[str, dict[str, bytes | None]] = {}
        while jobs := await other.claim(1):
            seen[jobs[0].type] = {names[chain]: result for chain, result in jobs[0].upstream.items()}
            await other.exchange([default_finish(jobs[0])])
        assert seen == {
            "top": {},
            "left": {"top": b"top"},
            "right": {"top": b"top"},
            "bottom": {"left": b"left", "right": b"right"},
        }

    @store_test
    async def test_a_failure_makes_a_failed_run_when_the_others_have_ended(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}, "c": {"after": "b"}, "slow": {}})
        a, slow = await other.claim(2)
        await other.exchange([default_finish(a, "fail")])
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("running", {"failed": 1, "skipped": 2, "running": 1})
        await other.exchange([default_finish(slow)])
        assert (await run.audit()).status == "failure"

    @store_test
    async def test_a_failure_that_skips_all_other_jobs_ends_the_run_at_once(self, bench: Bench) -> None:
        """The job's failure, the skips of its dependents, the run's status and the events are stored in one
        transaction.
        """
        one, other = await bench.clients(2)
        run = await begin(one, {"0": {}, **{str(nth): {"after": str(nth - 1)} for nth in range(1, 50)}})
        job = await other.take()
        await other.exchange([default_finish(job, "fail")])
        seen = await run.audit()
        assert (seen.status, seen.finished) == ("failure", bench.now)
        assert seen.counts == {"failed": 1, "skipped": 49}

    @store_test
    async def test_a_very_long_chain_is_skipped_to_its_end(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"0": {}} | {str(nth): {"after": str(nth - 1)} for nth in range(1, 2000)})
        await run_jobs(one, {"0": "fail"})
        assert (await run.audit()).counts == {"failed": 1, "skipped": 1999}

    @store_test
    async def test_a_retry_ends_nothing(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {"retries": 1}, "b": {"after": "a"}})
        await other.exchange([default_finish(await other.take(), "retry", delay=MINUTE)])
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("running", {"scheduled": 1, "blocked": 1})
        bench.advance(MINUTE)
        await other.reap()
        assert (await run.audit()).counts == {"pending": 1, "blocked": 1}
        await other.exchange([default_finish(await other.take(), "retry")])
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("failure", {"failed": 1, "skipped": 1})

    @store_test
    async def test_a_worker_that_dies_with_no_attempts_left_ends_the_run_as_a_failure(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for by in ("reap", "exchange"):
            run = await begin(one, {"a": {"retries": 0}, "b": {"after": "a"}})
            await one.take()
            bench.advance(LEASE)
            if by == "reap":
                await other.reap()
            else:
                assert await other.claim(5) == []
            seen = await run.audit()
            assert (seen.status, seen.finished, seen.counts) == ("failure", bench.now, {"failed": 1, "skipped": 1})
            kinds = [kind for kind, _ in await run.event_list()]
            assert kinds[-4:-2] == ["lease_expired", "failed"]

    @store_test
    async def test_a_worker_that_dies_with_attempts_left_costs_one(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {"retries": 1}})
        await one.take()
        bench.advance(LEASE)
        await other.reap()
        assert (await run.audit()).counts == {"pending": 1}
        assert (await run.event_list())[-2:] == [("lease_expired", "a"), ("ready", "a")]
        assert await run_jobs(other) == ["a"]
        assert (await run.audit()).status == "success"

    @store_test
    async def test_a_late_end_changes_nothing(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {"retries": 0}, "b": {"after": "a", "when": "all_done"}})
        job = await one.take()
        bench.advance(LEASE)
        await other.reap()
        before = await run.audit()
        for kind in ("complete", "fail", "retry", "skip"):
            assert (await one.exchange([default_finish(job, kind)])).verdicts == ("stale",)
        assert await run.run() == before

    @store_test
    async def test_a_repeated_finish_ends_the_run_once(self, bench: Bench) -> None:
        """A repeated exchange, and the same finish in another exchange, add no result, no event and no second end."""
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])
        job = await one.take()
        command = one.command([default_finish(job)])
        for _ in range(3):
            assert (await one.send(command)).verdicts == ("ok",)
        assert (await other.exchange([default_finish(job, "fail")])).verdicts == ("stale",)
        await run.audit()
        assert await run.event_list() == [
            ("run_created", ""),
            ("ready", "a"),
            ("started", "a"),
            ("completed", "a"),
            ("run_finished", ""),
        ]

    @store_test
    async def test_a_job_that_was_cancelled_alone_is_no_failure(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}, "c": {}})
        await other.call("cancel", run.ids["a"], "not needed")
        assert (await run.audit()).counts == {"cancelled": 1, "skipped": 1, "pending": 1}
        await run_jobs(one)
        seen = await run.audit()
        assert (seen.status, seen.cancel_requested) == ("cancelled", False)

    @store_test
    async def test_snoozing_puts_a_job_off_and_ends_nothing(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, ["a"])
        await one.exchange([default_finish(await one.take(), "snooze", delay=MINUTE)])
        assert (await run.audit()).counts == {"scheduled": 1}
        bench.advance(MINUTE)
        job = await one.take()
        assert job.attempt == 1
        await one.exchange([default_finish(job)])
        assert (await run.audit()).status == "success"

    @store_test
    async def test_the_failure_that_decides_may_come_first_or_last(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        for order in (("fail", "complete"), ("complete", "fail")):
            run = await begin(one, ["a", "b"])
            for job, kind in zip(await one.claim(2), order, strict=True):
                await one.exchange([default_finish(job, kind)])
            assert (await run.audit()).status == "failure"

    @store_test
    async def test_a_job_of_an_unknown_run_has_no_run(self, bench: Bench) -> None:
        """A job whose `run` names no existing run is executed as a job without a run."""
        (one,) = await bench.clients(1)
        await one.add(run=bench.new_id())
        await one.add(run="a label")
        for job in await one.claim(5):
            assert (await one.exchange([default_finish(job)])).verdicts == ("ok",)
            assert await one.call("get_run", job.run) is None
        assert await one.call("list_runs") == []

    @store_test
    async def test_the_error_of_the_last_attempt_is_kept(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, ["a"])
        await one.exchange([default_finish(await one.take(), "fail", error=Failure("E", "why\n\u2028", trace="t"))])
        (job,) = await run.jobs()
        assert job.error is not None
        assert job.error.message == "why\n\u2028"
