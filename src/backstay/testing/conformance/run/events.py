"""Events of a run: numbered without gaps, and readable any number of times."""

from __future__ import annotations

from backstay.job.model import Failure
from backstay.job.run_model import EventPage, RunEvent
from backstay.testing.conformance.job.bench import LEASE, MINUTE, Bench, store_test
from backstay.testing.conformance.run.cases import OOPS, all_events, begin, default_finish, run_jobs


class RunEventsTests:
    """Tests of `run_events` and `events`."""

    @store_test
    async def test_events_have_a_kind_a_time_and_a_job(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        begun = bench.now
        run = await begin(one, {"a": {"retries": 1}, "b": {"after": "a"}})
        a, b = run.ids["a"], run.ids["b"]
        bench.advance(5)
        job = await one.take()
        bench.advance(5)
        await one.exchange([default_finish(job, "retry", delay=MINUTE, error=Failure("E", "flaky"))])
        bench.advance(MINUTE)
        job = await other.take()
        bench.advance(5)
        await other.exchange([default_finish(job)], want=1)
        end = bench.now
        expected = [
            RunEvent(run.id, 1, begun, "run_created"),
            RunEvent(run.id, 2, begun, "ready", a),
            RunEvent(run.id, 3, begun + 5, "started", a, 1, one.name),
            RunEvent(run.id, 4, begun + 10, "scheduled", a, 1, one.name, "flaky"),
            RunEvent(run.id, 5, begun + 10 + MINUTE, "ready", a, 1),
            RunEvent(run.id, 6, begun + 10 + MINUTE, "started", a, 2, other.name),
            RunEvent(run.id, 7, end, "completed", a, 2, other.name),
            RunEvent(run.id, 8, end, "ready", b),
            RunEvent(run.id, 9, end, "started", b, 1, other.name),
        ]
        assert await run.events() == expected
        assert await other.call("events", bench.shard) == EventPage(
            tuple(expected), (await other.call("events", bench.shard)).cursor
        )

    @store_test
    async def test_every_end_has_its_event(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        for kind, kinds_and_keys in (
            ("complete", "completed"),
            ("fail", "failed"),
            ("cancel", "cancelled"),
            ("skip", "skipped"),
        ):
            run = await begin(one, ["a"])
            job = await one.take()
            await one.exchange([default_finish(job, kind)])
            event = (await run.events())[-2]
            assert (event.kind, event.job, event.attempt, event.worker) == (kinds_and_keys, job.id, 1, one.name)
            assert event.why == (OOPS.message if kind == "fail" else "")
            last = (await run.events())[-1]
            assert (last.kind, last.job, last.why) == ("run_finished", "", await run.status())
        run = await begin(one, {"a": {}, "b": {"after": "a"}})
        await other.call("cancel", run.ids["a"], "changed my mind")
        cancelled, skipped, _ = (await run.events())[-3:]
        assert (cancelled.kind, cancelled.why, cancelled.worker) == ("cancelled", "changed my mind", "")
        assert (skipped.kind, skipped.job, skipped.why) == ("skipped", run.ids["b"], "")

    @store_test
    async def test_release_and_snooze_append_events(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, ["a"])
        await one.exchange([default_finish(await one.take(), "release")])
        await one.exchange([default_finish(await one.take(), "snooze", delay=MINUTE)])
        await one.call("trigger", run.ids["a"])
        kinds_and_keys = [(event.kind, event.attempt) for event in (await run.events())[1:]]
        assert kinds_and_keys == [
            ("ready", 0),
            ("started", 1),
            ("ready", 0),
            ("started", 1),
            ("scheduled", 0),
            ("ready", 0),
        ]

    @store_test
    async def test_an_expired_lease_is_recorded_before_its_consequence(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {"retries": 1}})
        for last in ("ready", "failed"):
            await one.take()
            bench.advance(LEASE)
            await other.reap()
            events = [event for event in await run.events() if event.job]
            assert [event.kind for event in events[-2:]] == ["lease_expired", last]
            assert events[-2].worker == one.name
            assert events[-2].attempt == events[-1].attempt
        await run.audit()

    @store_test
    async def test_a_cancel_request_is_recorded_before_the_jobs_that_it_ends(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a", "when": "all_done"}, "c": {"delay": MINUTE}})
        before = (await run.run()).events
        await other.call("cancel_run", run.id, "enough of it")
        kinds_and_keys = await run.event_list(before)
        assert (kinds_and_keys[0], kinds_and_keys[-1]) == (("run_cancelling", ""), ("run_finished", ""))
        assert sorted(kinds_and_keys[1:-1]) == [("cancelled", "a"), ("cancelled", "b"), ("cancelled", "c")]
        events = (await run.events())[before:]
        assert [event.why for event in events] == ["enough of it"] * 4 + ["cancelled"]

    @store_test
    async def test_a_blockers_end_is_recorded_before_its_dependents_events(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        wishes = {"a": {}, "b": {"after": "a"}, "c": {"after": "b"}, "d": {"after": "c", "when": "all_done"}}
        run = await begin(one, wishes)
        await one.exchange([default_finish(await one.take(), "fail")])
        assert (await run.event_list())[3:] == [("failed", "a"), ("skipped", "b"), ("skipped", "c"), ("ready", "d")]

    @store_test
    async def test_events_are_read_in_pages(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, [str(nth) for nth in range(10)])
        await run_jobs(one)
        whole = await other.call("run_events", run.id)
        assert len(whole) == 32
        assert await other.call("run_events", run.id, 0, 5) == whole[:5]
        assert await other.call("run_events", run.id, 5, 7) == whole[5:12]
        assert await other.call("run_events", run.id, 31) == whole[31:]
        assert await other.call("run_events", run.id, 32) == []
        assert await other.call("run_events", bench.new_id()) == []

    @store_test
    async def test_events_of_all_runs_come_in_pages_behind_a_cursor(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        runs = [await begin(one, {"a": {}, "b": {"after": "a"}}) for _ in range(4)]
        await run_jobs(one, most=3)
        everything, last = await all_events(other)
        assert len(everything) == 4 * 8
        for run in runs:
            assert [event for event in everything if event.run == run.id] == await run.events()
        for size in (1, 5, 31, 32):
            assert (await all_events(other, limit=size)) == (everything, last)
        assert await other.call("events", bench.shard, last) == EventPage((), last)
        more = await begin(one, [])
        page = await other.call("events", bench.shard, last)
        assert list(page.events) == await more.events()

    @store_test
    async def test_a_cursor_may_be_used_again(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await begin(one, ["a"])
        first = await other.call("events", bench.shard, "", 1)
        second = await other.call("events", bench.shard, first.cursor, 1)
        await run_jobs(one)
        assert await one.call("events", bench.shard, "", 1) == first
        assert await one.call("events", bench.shard, first.cursor, 1) == second

    @store_test
    async def test_a_cursor_from_now_on_skips_earlier_events(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        nothing = await other.call("events", bench.shard, "$")
        assert nothing.events == ()
        beginning = await other.call("events", bench.shard)
        assert beginning.events == ()
        first = await begin(one, ["a"])
        for cursor in (nothing.cursor, beginning.cursor, ""):
            assert list((await other.call("events", bench.shard, cursor)).events) == await first.events()
        now = await other.call("events", bench.shard, "$")
        assert now.events == ()
        assert (await other.call("events", bench.shard, now.cursor)).events == ()
        await run_jobs(one)
        assert list((await other.call("events", bench.shard, now.cursor)).events) == (await first.events())[2:]

    @store_test
    async def test_a_run_that_changed_is_announced_with_its_last_number(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen("events")
        run = await begin(one, {"a": {}, "b": {"after": "a"}})
        assert await heard.soon(f"{run.id}:2")
        job = await one.take()
        assert await heard.soon(f"{run.id}:3")
        await one.exchange([default_finish(job)], want=1)
        assert await heard.soon(f"{run.id}:6")
        await other.call("cancel_run", run.id, "enough")
        assert await heard.soon(f"{run.id}:7")
        assert heard.payloads == [f"{run.id}:{seq}" for seq in (2, 3, 6, 7)]

    @store_test
    async def test_an_exchange_that_changes_many_runs_announces_each_once(self, bench: Bench) -> None:
        one, _ = await bench.clients(2)
        heard = await bench.listen("events")
        runs = [await begin(one, {"a": {}, "b": {"after": "a"}}) for _ in range(5)]
        jobs = await one.claim(5)
        await one.exchange([default_finish(job) for job in jobs])
        for run in runs:
            assert await heard.soon(f"{run.id}:5")
        for run in runs:
            seqs = [payload for payload in heard.payloads if payload.startswith(f"{run.id}:")]
            assert seqs == [f"{run.id}:{seq}" for seq in (2, 3, 5)]

    @store_test
    async def test_the_end_of_a_run_is_announced_and_nothing_before_it(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        heard = await bench.listen("runc")
        runs = [await begin(one, {"a": {}, "b": {"after": "a"}}) for _ in range(3)]
        await one.exchange([default_finish(job) for job in await one.claim(3)])
        await one.exchange(
            [default_finish(job, "fail" if place else "complete") for place, job in enumerate(await one.claim(2))]
        )
        await other.call("cancel_run", runs[2].id, "enough")
        empty = await begin(one, [])
        for run in (*runs, empty):
            assert await heard.soon(run.id)
        assert sorted(heard.payloads) == sorted(run.id for run in (*runs, empty))
        (again,) = [run for run in runs if await run.status() == "failure"]
        await other.call("rerun_failed", again.id)
        heard.payloads.clear()
        await run_jobs(one)
        assert await heard.soon(again.id)
        assert heard.payloads == [again.id]

    @store_test
    async def test_jobs_without_a_run_have_no_events(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        await one.add_many(3)
        await run_jobs(one)
        assert (await one.call("events", bench.shard)).events == ()
