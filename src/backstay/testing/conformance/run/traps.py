"""Tests of common defects of workflow engines; each test is named after the behaviour that avoids one."""

from __future__ import annotations

import msgspec

from backstay.testing.conformance.job.bench import LEASE, MINUTE, SECOND, Bench, claim
from backstay.testing.conformance.run.cases import begin, outcome, play


class RunTraps:
    """The tests of `Traps` in the job suite, for jobs of a run."""

    @claim
    async def test_a_claim_looks_behind_the_head_of_a_run(self, bench: Bench) -> None:
        """Jobs with labels that this worker lacks do not hide the jobs queued behind them."""
        one, other = await bench.clients(2)
        gpu = {f"gpu {nth}": {"labels": ("gpu",), "priority": 9} for nth in range(300)}
        run = await begin(one, {**gpu, "plain": {}, "then": {"after": "plain"}})
        assert await play(other) == ["plain", "then"]
        assert (await run.audit()).counts == {"pending": 300, "completed": 2}

    @claim
    async def test_a_stale_head_entry_of_a_cancelled_run_hides_no_work(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        gone = [await begin(one, {str(nth): {"priority": 9} for nth in range(20)}) for _ in range(3)]
        for run in gone:
            await other.ask("cancel_run", run.id, "enough")
        mine = await begin(one, ["mine"])
        (job,) = await other.claim(1)
        assert job.type == "mine"
        await other.exchange([outcome(job)])
        assert (await mine.audit()).status == "success"

    @claim
    async def test_no_coding_loses_a_released_job(self, bench: Bench) -> None:
        """A blocked job keeps all its fields when it is released."""
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
        await play(one)
        for attempt in (1, 2, 3, 4):
            job = await other.take(queues=[[wish["queue"]]], labels=wish["labels"])
            for field, value in wish.items():
                assert getattr(job, field) == value
            assert (job.attempt, job.run, job.upstream) == (attempt, run.id, {run.ids["a"]: b"a"})
            await other.exchange([outcome(job, "retry")])
        assert (await run.audit()).status == "failure"

    @claim
    async def test_a_renewal_by_someone_else_keeps_no_run_alive(self, bench: Bench) -> None:
        """A renewal by another worker with the right fence, or by the owner with a wrong fence, is refused."""
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])
        job = await one.take()
        bench.wait(LEASE - SECOND)
        assert await other.renew(job) == ["lost"]
        assert await one.renew(msgspec.structs.replace(job, fence=job.fence + 1)) == ["lost"]
        bench.wait(SECOND)
        await other.reap()
        assert await one.renew(job) == ["lost"]
        assert (await run.audit()).status == "failure"

    @claim
    async def test_reaping_is_finished_down_to_the_run(self, bench: Bench) -> None:
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
        bench.wait(LEASE)
        assert await other.reap() == {"always": 1, "tell": 1}
        assert await other.reap() == {}
        assert await run.states() == {"a": "failed", "b": "skipped", "always": "pending", "tell": "pending"}
        await play(other)
        assert (await run.audit()).status == "failure"
        assert await other.ask("check_runs", bench.shard) == []

    @claim
    async def test_a_cancel_flag_does_not_outlive_its_run(self, bench: Bench) -> None:
        """A cancel request affects neither a new run nor the same run after it is retried."""
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {"retries": 1}, "b": {"after": "a"}})
        job = await one.take()
        await other.ask("cancel_run", run.id, "enough")
        again = await begin(one, {"a": {"retries": 1}, "b": {"after": "a"}})
        await one.exchange([outcome(job, "cancel")])
        for one_of in (again, run):
            if one_of is run:
                await other.ask("rerun_failed", run.id)
            job = await one.take()
            assert await one.renew(job) == ["ok"]
            await one.exchange([outcome(job, "retry")])
            assert not (await one_of.audit()).cancel_requested
            assert await play(one) == ["a", "b"]
            assert (await one_of.audit()).status == "success"

    @claim
    async def test_a_cancelled_run_is_not_resurrected_by_a_late_failure(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {"a": {"retries": 9}, "b": {"after": "a"}, "tell": {"after": "a", "when": "any_failure"}}
        run = await begin(one, wishes)
        job = await one.take()
        await other.ask("cancel_run", run.id, "enough")
        await one.exchange([outcome(job, "retry", delay=SECOND)])
        ended = await run.audit()
        assert (ended.status, ended.counts) == ("cancelled", {"cancelled": 3})
        bench.wait(MINUTE)
        await other.reap()
        assert await other.claim(5) == []
        assert (await one.exchange([outcome(job, "retry", delay=SECOND)])).verdicts == ("stale",)
        assert await run.run() == ended

    @claim
    async def test_a_lost_message_loses_no_event(self, bench: Bench) -> None:
        """Without a listener, a later read returns every event."""
        one, other = await bench.clients(2)
        before = await other.ask("events", bench.shard, "$")
        run = await begin(one, {"a": {}, "b": {"after": "a"}})
        await play(one)
        page = await other.ask("events", bench.shard, before.cursor)
        assert list(page.events) == await run.events()
        assert page.events[-1].kind == "run_finished"

    @claim
    async def test_results_posted_twice_move_a_run_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}})
        job = await one.take()
        command = one.command([outcome(job, outputs={"k": "first"}, adds=(bench.job("added"),))])
        for _ in range(2):
            assert (await one.send(command)).verdicts == ("ok",)
        late = [outcome(job, result=b"second", outputs={"k": "second"}), outcome(job, "fail")]
        assert (await other.exchange(late)).verdicts == ("stale", "stale")
        assert await run.states() == {"a": "completed", "b": "pending", "added": "pending"}
        assert (await one.get(job.id)).result == b"a"
        assert await one.ask("get_outputs", job.id) == {"k": "first"}
        kinds_and_keys = await run.event_list()
        assert (kinds_and_keys.count(("completed", "a")), kinds_and_keys.count(("ready", "b"))) == (1, 1)
        await run.audit()
