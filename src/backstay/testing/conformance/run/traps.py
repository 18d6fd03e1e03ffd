"""Tests for common defects of workflow engines. Each test is named after the correct behaviour."""

from __future__ import annotations

import msgspec

from backstay.testing.conformance.job.bench import LEASE, MINUTE, SECOND, Bench, store_test
from backstay.testing.conformance.run.cases import begin, default_finish, run_jobs


class RunTrapsTests:
    """The tests of `JobTrapsTests`, for jobs of a run."""

    @store_test
    async def test_a_claim_looks_behind_the_head_of_a_run(self, bench: Bench) -> None:
        """Jobs with labels that this worker lacks do not hide the jobs queued behind them."""
        one, other = await bench.clients(2)
        gpu = {f"gpu {nth}": {"labels": ("gpu",), "priority": 9} for nth in range(300)}
        run = await begin(one, {**gpu, "plain": {}, "then": {"after": "plain"}})
        assert await run_jobs(other) == ["plain", "then"]
        assert (await run.audit()).counts == {"pending": 300, "completed": 2}

    @store_test
    async def test_a_stale_head_entry_of_a_cancelled_run_hides_no_work(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        gone = [await begin(one, {str(nth): {"priority": 9} for nth in range(20)}) for _ in range(3)]
        for run in gone:
            await other.call("cancel_run", run.id, "enough")
        mine = await begin(one, ["mine"])
        (job,) = await other.claim(1)
        assert job.type == "mine"
        await other.exchange([default_finish(job)])
        assert (await mine.audit()).status == "success"

    @store_test
    async def test_encoding_keeps_all_fields_of_a_released_job(self, bench: Bench) -> None:
        """A job keeps all its fields when its blocker ends and it becomes pending, and in all its attempts."""
        one, other = await bench.clients(2)
        wish = {
            "args": b"\xc1\xff\x00" * 9,
            "meta": b"\x93\x01",
            "labels": ("gpu", "日本"),
            "priority": -7,
            "retries": 3,
            "queue": "größe\u2028",
        }
        run = await begin(one, {"a": {}, "b": {**wish, "after": "a"}})
        await run_jobs(one)
        for attempt in (1, 2, 3, 4):
            job = await other.take(queues=[[wish["queue"]]], labels=wish["labels"])
            for field, value in wish.items():
                assert getattr(job, field) == value
            assert (job.attempt, job.run, job.upstream) == (attempt, run.id, {run.ids["a"]: b"a"})
            await other.exchange([default_finish(job, "retry")])
        assert (await run.audit()).status == "failure"

    @store_test
    async def test_a_renewal_by_another_worker_is_refused(self, bench: Bench) -> None:
        """A renewal by another worker with the right fence, or by the owner with a wrong fence, is refused."""
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])
        job = await one.take()
        bench.advance(LEASE - SECOND)
        assert await other.renew(job) == ["lost"]
        assert await one.renew(msgspec.structs.replace(job, fence=job.fence + 1)) == ["lost"]
        bench.advance(SECOND)
        await other.reap()
        assert await one.renew(job) == ["lost"]
        assert (await run.audit()).status == "failure"

    @store_test
    async def test_reaping_a_last_attempt_updates_dependents_and_run(self, bench: Bench) -> None:
        """Reaping ends the expired job, releases or skips its dependents, ends the run and appends the events."""
        one, other = await bench.clients(2)
        wishes = {
            "a": {},
            "b": {"after": "a"},
            "always": {"after": "a", "when": "all_done"},
            "tell": {"after": "b", "when": "any_failure"},
        }
        run = await begin(one, wishes)
        await one.take()
        bench.advance(LEASE)
        assert await other.reap() == {"always": 1, "tell": 1}
        assert await other.reap() == {}
        assert await run.states() == {"a": "failed", "b": "skipped", "always": "pending", "tell": "pending"}
        await run_jobs(other)
        assert (await run.audit()).status == "failure"
        assert await other.call("check_runs", bench.shard) == []

    @store_test
    async def test_a_cancel_flag_does_not_outlive_its_run(self, bench: Bench) -> None:
        """A cancel request affects neither a new run nor the same run after it is retried."""
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {"retries": 1}, "b": {"after": "a"}})
        job = await one.take()
        await other.call("cancel_run", run.id, "enough")
        again = await begin(one, {"a": {"retries": 1}, "b": {"after": "a"}})
        await one.exchange([default_finish(job, "cancel")])
        for one_of in (again, run):
            if one_of is run:
                await other.call("rerun_failed", run.id)
            job = await one.take()
            assert await one.renew(job) == ["ok"]
            await one.exchange([default_finish(job, "retry")])
            assert not (await one_of.audit()).cancel_requested
            assert await run_jobs(one) == ["a", "b"]
            assert (await one_of.audit()).status == "success"

    @store_test
    async def test_a_cancelled_run_is_not_resurrected_by_a_late_failure(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {"a": {"retries": 9}, "b": {"after": "a"}, "tell": {"after": "a", "when": "any_failure"}}
        run = await begin(one, wishes)
        job = await one.take()
        await other.call("cancel_run", run.id, "enough")
        await one.exchange([default_finish(job, "retry", delay=SECOND)])
        ended = await run.audit()
        assert (ended.status, ended.counts) == ("cancelled", {"cancelled": 3})
        bench.advance(MINUTE)
        await other.reap()
        assert await other.claim(5) == []
        assert (await one.exchange([default_finish(job, "retry", delay=SECOND)])).verdicts == ("stale",)
        assert await run.run() == ended

    @store_test
    async def test_a_lost_message_loses_no_event(self, bench: Bench) -> None:
        """No client listens while the run's events are announced. A later read returns every event."""
        one, other = await bench.clients(2)
        before = await other.call("events", bench.shard, "$")
        run = await begin(one, {"a": {}, "b": {"after": "a"}})
        await run_jobs(one)
        page = await other.call("events", bench.shard, before.cursor)
        assert list(page.events) == await run.events()
        assert page.events[-1].kind == "run_finished"

    @store_test
    async def test_results_posted_twice_move_a_run_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}})
        job = await one.take()
        command = one.command([default_finish(job, outputs={"k": "first"}, adds=(bench.job("added"),))])
        for _ in range(2):
            assert (await one.send(command)).verdicts == ("ok",)
        late = [default_finish(job, result=b"second", outputs={"k": "second"}), default_finish(job, "fail")]
        assert (await other.exchange(late)).verdicts == ("stale", "stale")
        assert await run.states() == {"a": "completed", "b": "pending", "added": "pending"}
        assert (await one.get(job.id)).result == b"a"
        assert await one.call("get_outputs", job.id) == {"k": "first"}
        kinds_and_keys = await run.event_list()
        assert (kinds_and_keys.count(("completed", "a")), kinds_and_keys.count(("ready", "b"))) == (1, 1)
        await run.audit()
