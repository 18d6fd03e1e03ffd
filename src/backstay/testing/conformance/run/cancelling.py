"""Cancelling a run: waiting jobs end at once, running jobs are asked to stop, and no job restarts."""

from __future__ import annotations

import asyncio

from backstay.job.model import Enqueued
from backstay.testing.conformance.job.bench import LEASE, MINUTE, Bench, claim
from backstay.testing.conformance.run.cases import OOPS, begin, outcome, play

MIXED = {
    "pending": {},
    "scheduled": {"delay": MINUTE},
    "blocked": {"after": "pending"},
    "always": {"after": "pending", "when": "all_done"},
    "tell": {"after": "pending", "when": "any_failure"},
}


class Cancelling:
    """Tests of `cancel_run`."""

    @claim
    async def test_what_does_not_run_is_cancelled_at_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, MIXED)
        bench.wait(1)
        seen = await other.ask("cancel_run", run.id, "enough of it")
        assert seen == await run.run()
        assert (seen.status, seen.finished, seen.started) == ("cancelled", bench.now, 0)
        assert (seen.cancel_requested, seen.reason, seen.counts) == (True, "enough of it", {"cancelled": 5})
        for job in await run.jobs():
            assert job.error is not None
            assert "enough of it" in job.error.message
        bench.wait(MINUTE)
        assert await one.claim(5) == []
        assert (await one.exchange()).next_in is None
        await run.audit()

    @claim
    async def test_running_jobs_are_asked_to_stop(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen("owls")
        run = await begin(one, {"a": {"retries": 5}, "b": {"after": "a"}})
        job = await one.take()
        seen = await other.ask("cancel_run", run.id, "enough")
        assert (seen.status, seen.finished, seen.cancel_requested) == ("running", 0, True)
        assert seen.counts == {"running": 1, "cancelled": 1}
        assert await heard.soon(job.id)
        assert await one.renew(job) == ["cancelled"]
        assert (await one.get(job.id)).cancel_requested
        bench.wait(1)
        await one.exchange([outcome(job, "cancel")])
        seen = await run.audit()
        assert (seen.status, seen.finished, seen.counts) == ("cancelled", bench.now, {"cancelled": 2})

    @claim
    async def test_a_late_report_of_any_kind_leaves_it_cancelled(self, bench: Bench) -> None:
        """A running job of a cancelled run ends cancelled, whatever kind of finish its worker sends."""
        one, other = await bench.clients(2)
        for kind in ("fail", "retry", "snooze", "release", "cancel", "skip"):
            run = await begin(one, {"a": {"retries": 5}, "tell": {"after": "a", "when": "any_failure"}})
            job = await one.take()
            await other.ask("cancel_run", run.id, "enough")
            assert (await one.exchange([outcome(job, kind, delay=MINUTE)])).verdicts == ("ok",)
            assert await run.states() == {"a": "cancelled", "tell": "cancelled"}, kind
            assert (await run.audit()).status == "cancelled"
            assert (await one.exchange([outcome(job, "retry")])).verdicts == ("stale",)
            assert (await run.audit()).status == "cancelled"
        bench.wait(MINUTE)
        assert await one.claim(5) == []

    @claim
    async def test_what_completes_in_spite_of_it_has_completed_in_a_cancelled_run(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}})
        job = await one.take()
        await other.ask("cancel_run", run.id, "enough")
        reply = await one.exchange([outcome(job, outputs={"k": "v"})])
        assert (reply.verdicts, reply.ready) == (("ok",), {})
        assert await run.states() == {"a": "completed", "b": "cancelled"}
        assert await one.ask("get_outputs", job.id) == {"k": "v"}
        assert (await run.audit()).status == "cancelled"

    @claim
    async def test_a_lease_that_runs_out_ends_it(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {"retries": 5}})
        await one.take()
        await other.ask("cancel_run", run.id, "enough")
        bench.wait(LEASE)
        await other.reap()
        assert await run.states() == {"a": "cancelled"}
        assert (await run.audit()).status == "cancelled"
        assert await other.claim(5) == []

    @claim
    async def test_jobs_that_are_still_added_are_cancelled_when_they_are_made(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "slow": {}})
        job, slow = await one.claim(2)
        await other.ask("cancel_run", run.id, "enough")
        adds = (bench.job("b", run=run.id), bench.job("c", run=run.id, after=(slow.id,)))
        later = bench.job("d", run=run.id, chain=job.chain, after=(adds[0].id,), when="all_done")
        reply = await one.exchange([outcome(job, adds=adds, next=later)], want=5)
        assert (reply.verdicts, reply.jobs, reply.ready) == (("ok",), (), {})
        cancelled = dict.fromkeys("bcd", "cancelled")
        assert await run.states() == {"a": "completed", "slow": "running", **cancelled}
        kinds_and_keys = await run.event_list()
        assert not [event for event in kinds_and_keys if event[1] in ("b", "c", "d") and event[0] != "cancelled"]
        await run.audit()
        await one.exchange([outcome(slow)])
        assert (await run.audit()).status == "cancelled"

    @claim
    async def test_a_job_enqueued_into_it_is_cancelled_when_it_is_made(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])
        job = await one.take()
        await other.ask("cancel_run", run.id, "enough")
        new = bench.job("late", run=run.id)
        assert await one.enqueue(new) == [Enqueued(new.id, "cancelled")]
        await one.exchange([outcome(job)])
        assert (await run.audit()).counts == {"completed": 1, "cancelled": 1}

    @claim
    async def test_a_finished_run_is_left_as_it_is(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        for kind, status in (("complete", "success"), ("fail", "failure")):
            run = await begin(one, ["a"])
            await play(one, {"a": kind})
            before = await run.audit()
            bench.wait(1)
            seen = await one.ask("cancel_run", run.id, "too late")
            assert seen == before
            assert (seen.status, seen.cancel_requested, seen.reason) == (status, False, "")
            assert await run.run() == before

    @claim
    async def test_cancelling_twice_is_cancelling_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a", "b"])
        job = await one.take()
        first = await other.ask("cancel_run", run.id, "first")
        bench.wait(1)
        assert await other.ask("cancel_run", run.id, "second") == first
        await one.exchange([outcome(job, "cancel")])
        seen = await other.ask("cancel_run", run.id, "third")
        assert (seen.status, seen.reason) == ("cancelled", "first")
        assert [kind for kind, _ in await run.event_list()].count("run_cancelling") == 1
        await run.audit()

    @claim
    async def test_cancelling_an_unknown_run_does_nothing(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        assert await one.ask("cancel_run", bench.new_id(), "enough") is None
        assert await one.ask("get_run", bench.new_id()) is None

    @claim
    async def test_other_runs_are_untouched(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        before, run, after = [await begin(one, {"a": {}, "b": {"after": "a"}}) for _ in range(3)]
        await other.ask("cancel_run", run.id, "enough")
        assert sorted(await play(other)) == ["a", "a", "b", "b"]
        assert [await each.status() for each in (before, run, after)] == ["success", "cancelled", "success"]
        assert not (await after.audit()).cancel_requested

    @claim
    async def test_cancelling_and_ending_at_the_same_moment_agree(self, bench: Bench) -> None:
        clients = await bench.clients(3)
        for nth in range(15):
            run = await begin(clients[0], {"a": {}, "b": {"after": "a"}, "c": {"after": "b"}})
            job = await clients[1].take()
            calls = [clients[2].ask("cancel_run", run.id, "enough"), clients[1].exchange([outcome(job)])]
            await asyncio.gather(*(calls if nth % 2 else reversed(calls)))
            seen = await run.audit()
            assert (seen.status, seen.counts) == ("cancelled", {"completed": 1, "cancelled": 2})

    @claim
    async def test_a_cancelled_run_skips_no_job_first(self, bench: Bench) -> None:
        """Jobs are cancelled and not skipped, also if a chain's last job is newer than the jobs that wait for it."""
        one, other = await bench.clients(2)
        run = await begin(
            one, {"first": {}, "then": {"after": "first"}, "always": {"after": "first", "when": "all_done"}}
        )
        job = await one.take()
        await one.exchange([outcome(job, next=bench.job("second", chain=job.chain))])
        before = await run.audit()
        await other.ask("cancel_run", run.id, "enough")
        kinds_and_keys = await run.event_list(before.events)
        assert sorted(kinds_and_keys[1:-1]) == [("cancelled", "always"), ("cancelled", "second"), ("cancelled", "then")]
        assert (await run.audit()).counts == {"cancelled": 3}

    @claim
    async def test_a_thousand_jobs_are_cancelled_in_one_step(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        middle = {str(nth): {"after": "first"} for nth in range(1000)}
        run = await begin(one, {"first": {}, **middle, "last": {"after": list(middle), "when": "all_done"}})
        jobs = await other.claim(1)
        seen = await other.ask("cancel_run", run.id, "enough")
        assert seen.counts == {"running": 1, "cancelled": 1001}
        await other.exchange([outcome(job, "fail", error=OOPS) for job in jobs])
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("cancelled", {"cancelled": 1002})
