"""Starting a run: atomic and idempotent."""

from __future__ import annotations

import asyncio

import msgspec

from backstay.job.model import Unique
from backstay.job.run_model import LARGEST_RUN, NewRun, Run
from backstay.testing.conformance.actor import refused
from backstay.testing.conformance.job.bench import DAY, MINUTE, Bench, claim, long_claim
from backstay.testing.conformance.run.cases import StartedRun, begin, jobs_of, planned, play


class Starting:
    """Tests of `start_run`."""

    @claim
    async def test_a_run_and_its_jobs_are_there_at_once(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        wishes = {"a": {}, "b": {"after": "a"}, "late": {"delay": MINUTE}}
        new = planned(bench, wishes, version=3, doc=b"\x00doc", timeout=DAY)
        run: Run = await one.ask("start_run", new)
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

    @claim
    async def test_its_jobs_are_as_enqueued_ones(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        new = planned(bench, {"a": {"labels": ("gpu",), "priority": 3, "retries": 2, "args": b"\x00A", "meta": b"m"}})
        await one.ask("start_run", new)
        assert await other.claim(5) == []
        job = await other.take(labels=["gpu"])
        assert (job.id, job.run, job.args, job.meta, job.retries) == (new.jobs[0].id, new.id, b"\x00A", b"m", 2)

    @claim
    async def test_starting_twice_makes_one_run(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        new = planned(bench, ["a"])
        first = await one.ask("start_run", new)
        bench.wait(1)
        assert await other.ask("start_run", new) == first
        await play(one)
        done = await other.ask("start_run", new)
        assert (done.status, done.created, done.counts) == ("success", first.created, {"completed": 1})
        assert len(await jobs_of(one, new.id)) == 1
        assert await one.claim(5) == []

    @claim
    async def test_a_run_that_exists_is_left_as_it_is(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, ["a"])
        another = planned(bench, ["x", "y"], id=run.id, workflow="other", doc=b"other")
        assert await other.ask("start_run", another) == await run.run()
        assert await run.states() == {"a": "pending"}
        await run.audit()

    @claim
    async def test_of_many_who_start_it_at_the_same_moment_one_does(self, bench: Bench) -> None:
        clients = await bench.clients(4)
        for _ in range(5):
            new = planned(bench, {"a": {}, "b": {"after": "a"}})
            answers = await asyncio.gather(*[client.ask("start_run", new) for client in clients for _ in range(2)])
            assert len({msgspec.json.encode(answer) for answer in answers}) == 1
            assert (await StartedRun(clients[1], new).audit()).counts == {"pending": 1, "blocked": 1}

    @claim
    async def test_running_twice_is_two_runs(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        first, second = await begin(one, ["a"]), await begin(one, ["a"])
        await play(one, {"a": "fail"}, most=1)
        third = await begin(one, ["a"])
        await play(one)
        assert [await run.status() for run in (first, second, third)] == ["failure", "failure", "success"]
        for run in (first, second, third):
            await run.audit()

    @claim
    async def test_an_empty_run_is_a_success_at_once(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, [])
        seen = await run.audit()
        assert (seen.status, seen.finished, seen.started, seen.counts) == ("success", bench.now, 0, {})
        assert await run.event_list() == [("run_created", ""), ("run_finished", "")]

    @claim
    async def test_a_blocker_from_elsewhere_is_refused_and_nothing_is_stored(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        stranger = await one.add()
        new = planned(bench, ["a", "b"])
        for blocker in (stranger, bench.new_id()):
            wrong = msgspec.structs.replace(new.jobs[1], after=(blocker,))
            bad = msgspec.structs.replace(new, jobs=(new.jobs[0], wrong))
            failure = await refused(one.ask("start_run", bad), "ConfigError")
            assert blocker in failure.message
        assert await one.ask("get_run", new.id) is None
        assert await one.ask("list_runs") == []
        assert await jobs_of(one, new.id) == []
        assert [job.id for job in await one.claim(5)] == [stranger]

    @claim
    async def test_jobs_that_wait_for_one_another_are_refused(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        a, b = (bench.job(name) for name in "ab")
        id_ = bench.new_id()
        for after_a, after_b in (((b.id,), (a.id,)), ((a.id,), ())):
            jobs = (
                msgspec.structs.replace(a, run=id_, after=after_a),
                msgspec.structs.replace(b, run=id_, after=after_b),
            )
            await refused(one.ask("start_run", NewRun(id=id_, workflow="w", jobs=jobs)), "ConfigError")
        assert await one.ask("get_run", id_) is None

    @claim
    async def test_unique_keys_are_refused(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        new = planned(bench, {"a": {}, "b": {"unique": Unique(bench.key(), "until_done")}})
        await refused(one.ask("start_run", new), "ConfigError")
        assert await one.ask("get_run", new.id) is None
        assert await one.claim(5) == []

    @claim
    async def test_a_job_of_another_run_is_refused(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        new = planned(bench, ["a"])
        for run in ("", bench.new_id()):
            bad = msgspec.structs.replace(new, jobs=(msgspec.structs.replace(new.jobs[0], run=run),))
            await refused(one.ask("start_run", bad), "ConfigError")
        assert await one.claim(5) == []

    @long_claim
    async def test_a_run_that_is_too_large_is_refused(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        new = planned(bench, [str(nth) for nth in range(LARGEST_RUN + 1)])
        failure = await refused(one.ask("start_run", new), "ConfigError")
        assert str(LARGEST_RUN) in failure.message.replace(",", "").replace("_", "")
        assert await one.ask("get_run", new.id) is None
        assert await one.claim(5) == []

    @long_claim
    async def test_ten_thousand_jobs_are_one_run(self, bench: Bench) -> None:
        """One job, ten thousand jobs that wait for it, and one job that waits for all of them."""
        one, other = await bench.clients(2)
        middle = {str(nth): {"after": "first"} for nth in range(10_000)}
        run = await begin(one, {"first": {}, **middle, "last": {"after": list(middle)}})
        assert (await run.run()).counts == {"pending": 1, "blocked": 10_001}
        order = await play(other)
        assert (order[0], order[-1]) == ("first", "last")
        assert sorted(order[1:-1]) == sorted(middle)
        seen = await run.audit()
        assert (seen.status, seen.counts) == ("success", {"completed": 10_002})
        assert seen.events == 2 + 3 * 10_002
