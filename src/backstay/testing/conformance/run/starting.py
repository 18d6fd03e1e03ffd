"""Starting a run: atomic and idempotent."""

from __future__ import annotations

import asyncio

import msgspec

from backstay.job.model import Unique
from backstay.job.run_model import LARGEST_RUN, NewRun, Run
from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.job.bench import DAY, MINUTE, Bench, long_store_test, store_test
from backstay.testing.conformance.run.cases import StartedRun, begin, jobs_of, plan_run, run_jobs


class RunStartingTests:
    """Tests of `start_run`."""

    @store_test
    async def test_a_run_and_its_jobs_are_stored_together(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {"a": {}, "b": {"after": "a"}, "late": {"delay": MINUTE}}
        new = plan_run(bench, wishes, version=3, doc=b"\x00doc", timeout=DAY)
        run: Run = await one.call("start_run", new)
        assert run == Run(
            id=new.id,
            workflow="build",
            version=3,
            status="queued",
            doc=b"\x00doc",
            created=bench.now,
            deadline=bench.now + DAY,
            counts={"pending": 1, "blocked": 1, "scheduled": 1},
            events=3,
        )
        begun = StartedRun(other, new)
        assert await begun.run() == run
        assert await begun.states() == {"a": "pending", "b": "blocked", "late": "scheduled"}
        kinds_and_keys = await begun.event_list()
        assert kinds_and_keys[0] == ("run_created", "")
        assert sorted(kinds_and_keys[1:]) == [("ready", "a"), ("scheduled", "late")]
        await begun.audit()

    @store_test
    async def test_the_jobs_of_a_run_keep_their_options(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        new = plan_run(bench, {"a": {"labels": ("gpu",), "priority": 3, "retries": 2, "args": b"\x00A", "meta": b"m"}})
        await one.call("start_run", new)
        assert await other.claim(5) == []
        job = await other.take(labels=["gpu"])
        assert (job.id, job.run, job.args, job.meta, job.retries) == (new.jobs[0].id, new.id, b"\x00A", b"m", 2)

    @store_test
    async def test_starting_an_id_twice_creates_one_run(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        new = plan_run(bench, ["a"])
        first = await one.call("start_run", new)
        bench.advance(1)
        assert await other.call("start_run", new) == first
        await run_jobs(one)
        done = await other.call("start_run", new)
        assert (done.status, done.created, done.counts) == ("success", first.created, {"completed": 1})
        assert len(await jobs_of(one, new.id)) == 1
        assert await one.claim(5) == []

    @store_test
    async def test_starting_an_existing_run_changes_nothing(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])
        another = plan_run(bench, ["x", "y"], id=run.id, workflow="other", doc=b"other")
        assert await other.call("start_run", another) == await run.run()
        assert await run.states() == {"a": "pending"}
        await run.audit()

    @store_test
    async def test_concurrent_starts_with_one_id_create_one_run(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        for _ in range(5):
            new = plan_run(bench, {"a": {}, "b": {"after": "a"}})
            answers = await asyncio.gather(*[client.call("start_run", new) for client in clients for _ in range(2)])
            assert len({msgspec.json.encode(answer) for answer in answers}) == 1
            assert (await StartedRun(clients[1], new).audit()).counts == {"pending": 1, "blocked": 1}

    @store_test
    async def test_two_ids_are_two_runs(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        first, second = await begin(one, ["a"]), await begin(one, ["a"])
        await run_jobs(one, {"a": "fail"}, most=1)
        third = await begin(one, ["a"])
        await run_jobs(one)
        assert [await run.status() for run in (first, second, third)] == ["failure", "failure", "success"]
        for run in (first, second, third):
            await run.audit()

    @store_test
    async def test_an_empty_run_is_a_success_at_once(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, [])
        seen = await run.audit()
        assert (seen.status, seen.finished, seen.started, seen.counts) == ("success", bench.now, 0, {})
        assert await run.event_list() == [("run_created", ""), ("run_finished", "")]

    @store_test
    async def test_a_blocker_from_elsewhere_is_refused_and_nothing_is_stored(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        stranger = await one.add()
        new = plan_run(bench, ["a", "b"])
        for blocker in (stranger, bench.new_id()):
            wrong = msgspec.structs.replace(new.jobs[1], after=(blocker,))
            bad = msgspec.structs.replace(new, jobs=(new.jobs[0], wrong))
            failure = await assert_refused(one.call("start_run", bad), "ConfigError")
            assert blocker in failure.message
        assert await one.call("get_run", new.id) is None
        assert await one.call("list_runs") == []
        assert await jobs_of(one, new.id) == []
        assert [job.id for job in await one.claim(5)] == [stranger]

    @store_test
    async def test_jobs_that_wait_for_one_another_are_refused(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        a, b = (bench.job(name) for name in "ab")
        id_ = bench.new_id()
        for after_a, after_b in (((b.id,), (a.id,)), ((a.id,), ())):
            jobs = (
                msgspec.structs.replace(a, run=id_, after=after_a),
                msgspec.structs.replace(b, run=id_, after=after_b),
            )
            await assert_refused(one.call("start_run", NewRun(id=id_, workflow="w", jobs=jobs)), "ConfigError")
        assert await one.call("get_run", id_) is None

    @store_test
    async def test_unique_keys_are_refused(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        new = plan_run(bench, {"a": {}, "b": {"unique": Unique(bench.key(), "until_done")}})
        await assert_refused(one.call("start_run", new), "ConfigError")
        assert await one.call("get_run", new.id) is None
        assert await one.claim(5) == []

    @store_test
    async def test_a_job_of_another_run_is_refused(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        new = plan_run(bench, ["a"])
        for run in ("", bench.new_id()):
            bad = msgspec.structs.replace(new, jobs=(msgspec.structs.replace(new.jobs[0], run=run),))
            await assert_refused(one.call("start_run", bad), "ConfigError")
        assert await one.claim(5) == []

    @long_store_test
    async def test_a_run_that_is_too_large_is_refused(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        new = plan_run(bench, [str(nth) for nth in range(LARGEST_RUN + 1)])
        failure = await assert_refused(one.call("start_run", new), "ConfigError")
        assert str(LARGEST_RUN) in failure.message.replace(",", "").replace("_", "")
        assert await one.call("get_run", new.id) is None
        assert await one.claim(5) == []

    @long_store_test
    async def test_a_run_may_have_ten_thousand_jobs(self, bench: Bench) -> None:
        """One job, ten thousand jobs that wait for it, and one job that waits for all of them."""
        one, other = await bench.clients(2)
        middle = {str(nth): {"after": "first"} for nth in range(10_000)}
        run = await begin(one, {"first": {}, **middle, "last": {"after": list(middle)}})
        assert (await run.run()).counts == {"pending": 1, "blocked": 10_001}
        order = await run_jobs(other)
        assert (order[0], order[-1]) == ("first", "last")
        assert sorted(order[1:-1]) == sorted(middle)
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("success", {"completed": 10_002})
        assert seen.events == 2 + 3 * 10_002
