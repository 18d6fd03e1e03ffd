"""`check_runs` cancels runs that are past their deadline, and finds nothing else to repair."""

from __future__ import annotations

from backstay.testing.conformance.job.bench import HOUR, LEASE, MINUTE, SECOND, Bench, claim
from backstay.testing.conformance.run.cases import begin, outcome, play


class Deadlines:
    """Tests of `check_runs` and a run's timeout."""

    @claim
    async def test_there_is_nothing_to_set_right(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {"a": {"retries": 1}, "b": {"after": "a"}, "c": {"after": "b", "when": "any_failure"}, "d": {}}
        run = await begin(one, wishes)
        for kind in ("retry", "release", "snooze", "fail", "complete"):
            assert await other.ask("check_runs", bench.shard) == []
            for job in await one.claim(1):
                await one.exchange([outcome(job, kind)])
        await one.take()
        bench.wait(LEASE)
        assert await other.ask("check_runs", bench.shard) == []
        await other.reap()
        before = await run.audit()
        assert await other.ask("check_runs", bench.shard) == []
        assert await run.run() == before

    @claim
    async def test_a_run_past_its_deadline_is_cancelled(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}}, timeout=MINUTE)
        unlimited = await begin(one, {"x": {"queue": "elsewhere"}})
        job = await one.take(lease=HOUR)
        bench.wait(MINUTE - 1)
        assert await other.ask("check_runs", bench.shard) == []
        assert (await run.audit()).counts == {"running": 1, "blocked": 1}
        bench.wait(1)
        assert await other.ask("check_runs", bench.shard) == []
        seen = await run.audit()
        assert (seen.status, seen.cancel_requested, seen.counts) == ("running", True, {"running": 1, "cancelled": 1})
        assert seen.reason
        assert await one.renew(job) == ["cancelled"]
        await one.exchange([outcome(job, "cancel")])
        assert (await run.audit()).status == "cancelled"
        bench.wait(HOUR)
        await other.ask("check_runs", bench.shard)
        assert (await unlimited.audit()).status == "queued"
        assert [kind for kind, _ in await run.event_list()].count("run_cancelling") == 1

    @claim
    async def test_queues_count_what_was_cancelled_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await begin(one, {"a": {"delay": HOUR}, "b": {"after": "a"}})
        for how in ("deadline", "by hand"):
            run = await begin(one, {"a": {}, "b": {"after": "a"}, "c": {"delay": HOUR}}, timeout=MINUTE)
            await one.take(lease=HOUR)
            if how == "deadline":
                bench.wait(MINUTE)
                await other.ask("check_runs", bench.shard)
            else:
                await other.ask("cancel_run", run.id, "enough")
            await run.audit()
        (queue,) = await other.ask("queues")
        assert (queue.scheduled, queue.blocked, queue.running, queue.cancelled) == (1, 1, 2, 4)

    @claim
    async def test_an_unclaimed_run_is_cancelled_at_its_deadline(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, ["a"], timeout=SECOND)
        bench.wait(SECOND)
        await one.ask("check_runs", bench.shard)
        seen = await run.audit()
        assert (seen.status, seen.finished) == ("cancelled", bench.now)
        assert await one.claim(5) == []

    @claim
    async def test_a_run_that_ended_in_time_stays_as_it_is(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, ["a"], timeout=MINUTE)
        await play(one)
        before = await run.audit()
        bench.wait(HOUR)
        await one.ask("check_runs", bench.shard)
        assert await run.run() == before

    @claim
    async def test_a_run_that_goes_on_again_has_its_whole_time_again(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        for verb in ("rerun_failed", "trigger"):
            run = await begin(one, ["a"], timeout=MINUTE)
            bench.wait(MINUTE)
            await one.ask("check_runs", bench.shard)
            assert await run.status() == "cancelled"
            bench.wait(HOUR)
            await one.ask(verb, run.id if verb == "rerun_failed" else run.ids["a"])
            assert (await run.run()).deadline == bench.now + MINUTE
            bench.wait(MINUTE - 1)
            await one.ask("check_runs", bench.shard)
            assert (await run.audit()).counts == {"pending": 1}
            bench.wait(1)
            await one.ask("check_runs", bench.shard)
            assert (await run.audit()).status == "cancelled"

    @claim
    async def test_it_is_bounded_and_comes_to_an_end(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for _ in range(3):
            await begin(one, {"x": {"queue": "elsewhere"}})
        runs = [await begin(one, ["a"], timeout=MINUTE) for _ in range(12)]
        bench.wait(MINUTE)
        for _ in range(3):
            assert await other.ask("check_runs", bench.shard, 5) == []
        assert {await run.status() for run in runs} == {"cancelled"}
        assert len(await one.ask("list_runs", status="queued")) == 3
