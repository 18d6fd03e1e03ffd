"""The traps that workflow engines fall into, each with its name."""

from __future__ import annotations

import msgspec

from backstay.testing.conformance.job.bench import LEASE, MINUTE, SECOND, Bench, claim
from backstay.testing.conformance.run.scenes import begin, outcome, play


class RunTraps:
    """One claim for each, as jobs of a run meet it."""

    @claim
    async def test_a_claim_looks_behind_the_head_of_a_run(self, bench: Bench) -> None:
        """Jobs of a run that ask for what this worker does not have hide none of those behind them."""
        one, other = await bench.desks(2)
        gpu = {f"gpu {nth}": {"labels": ("gpu",), "priority": 9} for nth in range(300)}
        run = await begin(one, {**gpu, "plain": {}, "then": {"after": "plain"}})
        assert await play(other) == ["plain", "then"]
        assert (await run.audit()).counts == {"pending": 300, "completed": 2}

    @claim
    async def test_a_stale_head_entry_of_a_cancelled_run_hides_no_work(self, bench: Bench) -> None:
        one, other = await bench.desks(2)
        gone = [await begin(one, {str(nth): {"priority": 9} for nth in range(20)}) for _ in range(3)]
        for run in gone:
            await other.ask("cancel_run", run.id, "enough")
        mine = await begin(one, ["mine"])
        (job,) = await other.claim(1)
        assert job.type == "mine"
        await other.step([outcome(job)])
        assert (await mine.audit()).status == "success"

    @claim
    async def test_no_coding_loses_a_released_job(self, bench: Bench) -> None:
        """A job that waited comes out as it went in, with all that it asks for."""
        one, other = await bench.desks(2)
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
            await other.step([outcome(job, "retry")])
        assert (await run.audit()).status == "failure"

    @claim
    async def test_a_renewal_by_someone_else_keeps_no_run_alive(self, bench: Bench) -> None:
        """Only the owner renews: a stranger with the right numbers, or the owner with wrong ones, is refused."""
        one, other = await bench.desks(2)
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
        """What ran out is ended, its dependents released or skipped, the run ended and told: nothing is left over."""
        one, other = await bench.desks(2)
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
        """Cancelled, then run again: neither a new run nor the same one tried again knows of it."""
        one, other = await bench.desks(2)
        run = await begin(one, {"a": {"retries": 1}, "b": {"after": "a"}})
        job = await one.take()
        await other.ask("cancel_run", run.id, "enough")
        again = await begin(one, {"a": {"retries": 1}, "b": {"after": "a"}})
        await one.step([outcome(job, "cancel")])
        for one_of in (again, run):
            if one_of is run:
                await other.ask("rerun_failed", run.id)
            job = await one.take()
            assert await one.renew(job) == ["ok"]
            await one.step([outcome(job, "retry")])
            assert not (await one_of.audit()).cancel_requested
            assert await play(one) == ["a", "b"]
            assert (await one_of.audit()).status == "success"

    @claim
    async def test_a_cancelled_run_is_not_resurrected_by_a_late_failure(self, bench: Bench) -> None:
        one, other = await bench.desks(2)
        wishes = {"a": {"retries": 9}, "b": {"after": "a"}, "tell": {"after": "a", "when": "any_failure"}}
        run = await begin(one, wishes)
        job = await one.take()
        await other.ask("cancel_run", run.id, "enough")
        await one.step([outcome(job, "retry", delay=SECOND)])
        ended = await run.audit()
        assert (ended.status, ended.counts) == ("cancelled", {"cancelled": 3})
        bench.wait(MINUTE)
        await other.reap()
        assert await other.claim(5) == []
        assert (await one.step([outcome(job, "retry", delay=SECOND)])).verdicts == ("stale",)
        assert await run.run() == ended

    @claim
    async def test_a_lost_message_loses_no_event(self, bench: Bench) -> None:
        """Nobody listened: whoever asks later is told everything."""
        one, other = await bench.desks(2)
        before = await other.ask("events", bench.shard, "$")
        run = await begin(one, {"a": {}, "b": {"after": "a"}})
        await play(one)
        page = await other.ask("events", bench.shard, before.cursor)
        assert list(page.events) == await run.events()
        assert page.events[-1].kind == "run_finished"

    @claim
    async def test_results_posted_twice_move_a_run_once(self, bench: Bench) -> None:
        one, other = await bench.desks(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}})
        job = await one.take()
        command = one.command([outcome(job, outputs={"k": "first"}, adds=(bench.job("added"),))])
        for _ in range(2):
            assert (await one.send(command)).verdicts == ("ok",)
        late = [outcome(job, result=b"second", outputs={"k": "second"}), outcome(job, "fail")]
        assert (await other.step(late)).verdicts == ("stale", "stale")
        assert await run.states() == {"a": "completed", "b": "pending", "added": "pending"}
        assert (await one.get(job.id)).result == b"a"
        assert await one.ask("get_outputs", job.id) == {"k": "first"}
        told = await run.told()
        assert (told.count(("completed", "a")), told.count(("ready", "b"))) == (1, 1)
        await run.audit()
