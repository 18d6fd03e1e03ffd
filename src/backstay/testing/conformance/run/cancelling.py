"""Cancelling a run: waiting jobs end at once, running jobs are asked to stop, and no job restarts."""

from __future__ import annotations

import asyncio

from backstay.job.model import Enqueued
from backstay.testing.conformance.job.bench import LEASE, MINUTE, Bench, store_test
from backstay.testing.conformance.run.cases import OOPS, begin, default_finish, run_jobs

MIXED = {
    "pending": {},
    "scheduled": {"delay": MINUTE},
    "blocked": {"after": "pending"},
    "always": {"after": "pending", "when": "all_done"},
    "tell": {"after": "pending", "when": "any_failure"},
}


class RunCancellingTests:
    """Tests of `cancel_run`."""

    @store_test
    async def test_jobs_that_do_not_run_are_cancelled_at_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, MIXED)
        bench.advance(1)
        seen = await other.call("cancel_run", run.id, "enough of it")
        assert seen == await run.run()
        assert (seen.status, seen.finished, seen.started) == ("cancelled", bench.now, 0)
        assert (seen.cancel_requested, seen.reason, seen.counts) == (True, "enough of it", {"cancelled": 5})
        for job in await run.jobs():
            assert job.error is not None
            assert "enough of it" in job.error.message
        bench.advance(MINUTE)
        assert await one.claim(5) == []
        assert (await one.exchange()).next_in is None
        await run.audit()

    @store_test
    async def test_running_jobs_are_asked_to_stop(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen("owls")
        run = await begin(one, {"a": {"retries": 5}, "b": {"after": "a"}})
        job = await one.take()
        seen = await other.call("cancel_run", run.id, "enough")
        assert (seen.status, seen.finished, seen.cancel_requested) == ("running", 0, True)
        assert seen.counts == {"running": 1, "cancelled": 1}
        assert await heard.soon(job.id)
        assert await one.renew(job) == ["cancelled"]
        assert (await one.get(job.id)).cancel_requested
        bench.advance(1)
        await one.exchange([default_finish(job, "cancel")])
        seen = await run.audit()
        assert (seen.status, seen.finished, seen.counts) == ("cancelled", bench.now, {"cancelled": 2})

    @store_test
    async def test_a_late_finish_of_any_kind_leaves_the_job_cancelled(self, bench: Bench) -> None:
        """A running job of a cancelled run ends cancelled, whatever kind of finish its worker sends."""
        one, other = await bench.clients(2)
        for kind in ("fail", "retry", "snooze", "release", "cancel", "skip"):
            run = await begin(one, {"a": {"retries": 5}, "tell": {"after": "a", "when": "any_failure"}})
            job = await one.take()
            await other.call("cancel_run", run.id, "enough")
            assert (await one.exchange([default_finish(job, kind, delay=MINUTE)])).verdicts == ("ok",)
            assert await run.states() == {"a": "cancelled", "tell": "cancelled"}, kind
            assert (await run.audit()).status == "cancelled"
            assert (await one.exchange([default_finish(job, "retry")])).verdicts == ("stale",)
            assert (await run.audit()).status == "cancelled"
        bench.advance(MINUTE)
        assert await one.claim(5) == []

    @store_test
    async def test_a_job_may_still_complete_in_a_cancelled_run(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}})
        job = await one.take()
        await other.call("cancel_run", run.id, "enough")
        reply = await one.exchange([default_finish(job, outputs={"k": "v"})])
        assert (reply.verdicts, reply.ready) == (("ok",), {})
        assert await run.states() == {"a": "completed", "b": "cancelled"}
        assert await one.call("get_outputs", job.id) == {"k": "v"}
        assert (await run.audit()).status == "cancelled"

    @store_test
    async def test_a_cancelled_run_ends_when_its_last_lease_expires(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {"retries": 5}})
        await one.take()
        await other.call("cancel_run", run.id, "enough")
        bench.advance(LEASE)
        await other.reap()
        assert await run.states() == {"a": "cancelled"}
        assert (await run.audit()).status == "cancelled"
        assert await other.claim(5) == []

    @store_test
    async def test_jobs_added_to_a_cancelled_run_are_cancelled_when_stored(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "slow": {}})
        job, slow = await one.claim(2)
        await other.call("cancel_run", run.id, "enough")
        adds = (bench.job("b", run=run.id), bench.job("c", run=run.id, after=(slow.id,)))
        later = bench.job("d", run=run.id, chain=job.chain, after=(adds[0].id,), when="all_done")
        reply = await one.exchange([default_finish(job, adds=adds, next=later)], want=5)
        assert (reply.verdicts, reply.jobs, reply.ready) == (("ok",), (), {})
        cancelled = dict.fromkeys("bcd", "cancelled")
        assert await run.states() == {"a": "completed", "slow": "running", **cancelled}
        kinds_and_keys = await run.event_list()
        assert not [event for event in kinds_and_keys if event[1] in ("b", "c", "d") and event[0] != "cancelled"]
        await run.audit()
        await one.exchange([default_finish(slow)])
        assert (await run.audit()).status == "cancelled"

    @store_test
    async def test_a_job_enqueued_into_a_cancelled_run_is_cancelled_at_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])
        job = await one.take()
        await other.call("cancel_run", run.id, "enough")
        new = bench.job("late", run=run.id)
        assert await one.enqueue(new) == [Enqueued(new.id, "cancelled")]
        await one.exchange([default_finish(job)])
        assert (await run.audit()).counts == {"completed": 1, "cancelled": 1}

    @store_test
    async def test_a_finished_run_is_not_cancelled(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        for kind, status in (("complete", "success"), ("fail", "failure")):
            run = await begin(one, ["a"])
            await run_jobs(one, {"a": kind})
            before = await run.audit()
            bench.advance(1)
            seen = await one.call("cancel_run", run.id, "too late")
            assert seen == before
            assert (seen.status, seen.cancel_requested, seen.reason) == (status, False, "")
            assert await run.run() == before

    @store_test
    async def test_cancelling_twice_has_one_effect(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a", "b"])
        job = await one.take()
        first = await other.call("cancel_run", run.id, "first")
        bench.advance(1)
        assert await other.call("cancel_run", run.id, "second") == first
        await one.exchange([default_finish(job, "cancel")])
        seen = await other.call("cancel_run", run.id, "third")
        assert (seen.status, seen.reason) == ("cancelled", "first")
        assert [kind for kind, _ in await run.event_list()].count("run_cancelling") == 1
        await run.audit()

    @store_test
    async def test_cancelling_an_unknown_run_does_nothing(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        assert await one.call("cancel_run", bench.new_id(), "enough") is None
        assert await one.call("get_run", bench.new_id()) is None

    @store_test
    async def test_other_runs_are_untouched(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        before, run, after = [await begin(one, {"a": {}, "b": {"after": "a"}}) for _ in range(3)]
        await other.call("cancel_run", run.id, "enough")
        assert sorted(await run_jobs(other)) == ["a", "a", "b", "b"]
        assert [await each.status() for each in (before, run, after)] == ["success", "cancelled", "success"]
        assert not (await after.audit()).cancel_requested

    @store_test
    async def test_cancelling_and_ending_at_the_same_moment_agree(self, bench: Bench) -> None:
        clients = await bench.clients(3)
        for nth in range(15):
            run = await begin(clients[0], {"a": {}, "b": {"after": "a"}, "c": {"after": "b"}})
            job = await clients[1].take()
            calls = [clients[2].call("cancel_run", run.id, "enough"), clients[1].exchange([default_finish(job)])]
            await asyncio.gather(*(calls if nth % 2 else reversed(calls)))
            seen = await run.audit()
            assert (seen.status, seen.counts) == ("cancelled", {"completed": 1, "cancelled": 2})

    @store_test
    async def test_jobs_of_a_cancelled_run_are_cancelled_not_skipped(self, bench: Bench) -> None:
        """All open jobs of a cancelled run are cancelled, none is skipped: not even a job that waits for a chain whose
        last job was added after it.
        """
        one, other = await bench.clients(2)
        run = await begin(
            one, {"first": {}, "then": {"after": "first"}, "always": {"after": "first", "when": "all_done"}}
        )
        job = await one.take()
        await one.exchange([default_finish(job, next=bench.job("second", chain=job.chain))])
        before = await run.audit()
        await other.call("cancel_run", run.id, "enough")
        kinds_and_keys = await run.event_list(before.events)
        assert sorted(kinds_and_keys[1:-1]) == [("cancelled", "always"), ("cancelled", "second"), ("cancelled", "then")]
        assert (await run.audit()).counts == {"cancelled": 3}

    @store_test
    async def test_a_thousand_jobs_are_cancelled_in_one_transaction(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        middle = {str(nth): {"after": "first"} for nth in range(1000)}
        run = await begin(one, {"first": {}, **middle, "last": {"after": list(middle), "when": "all_done"}})
        jobs = await other.claim(1)
        seen = await other.call("cancel_run", run.id, "enough")
        assert seen.counts == {"running": 1, "cancelled": 1001}
        await other.exchange([default_finish(job, "fail", error=OOPS) for job in jobs])
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("cancelled", {"cancelled": 1002})
