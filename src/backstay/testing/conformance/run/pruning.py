"""A run is deleted as a whole, after its own retention time."""

from __future__ import annotations

from backstay.job.run_model import Artifact
from backstay.testing.conformance.job.bench import DAY, HOUR, LEASE, MINUTE, SECOND, Bench, Client, claim
from backstay.testing.conformance.run.cases import StartedRun, all_events, begin, outcome, play

MANY = 1_000_000


class Pruning:
    """Tests of `prune` and `purge` with runs."""

    @claim
    async def test_a_run_goes_whole_when_its_time_is_over(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}, "c": {"after": "b"}}, keep=HOUR)
        job = await one.take()
        await one.ask("append_log", job.id, job.fence, [(bench.now, "stdout", "x")], 1)
        await one.ask("put_artifact", Artifact(job=job.id, name="f", size=1, digest="d"), job.fence, 0, b"x", last=True)
        await one.exchange([outcome(job, outputs={"k": "v"})])
        await play(one, {"b": "fail"})
        bench.wait(HOUR - 1)
        assert await other.ask("prune", bench.shard, MANY) == 0
        assert (await run.audit()).counts == {"completed": 1, "failed": 1, "skipped": 1}
        bench.wait(1)
        assert await other.ask("prune", bench.shard, MANY) > 0
        await _is_gone(one, run)
        assert await one.ask("read_log", job.id) == []
        assert await one.ask("get_outputs", job.id) == {}
        assert await one.ask("list_artifacts", job.id) == []
        assert await one.ask("read_artifact", job.id, "f", 0) is None
        assert await other.ask("prune", bench.shard, MANY) == 0

    @claim
    async def test_a_job_stays_as_long_as_its_run(self, bench: Bench) -> None:
        """A job's own retention time and the limit on completed jobs do not apply inside a run."""
        one, other = await bench.clients(2)
        short = {"keep": SECOND, "keep_failed": SECOND}
        run = await begin(one, {"a": short, "b": {**short, "after": "a"}, "bad": short, "slow": short}, keep=DAY)
        jobs = {job.type: job for job in await one.claim(3)}
        await one.exchange([outcome(jobs["a"]), outcome(jobs["bad"], "fail")])
        for job in await one.claim(5):
            await one.exchange([outcome(job)])
        bench.wait(LEASE - 1)
        assert await other.ask("prune", bench.shard, 0) == 0
        assert (await run.audit()).counts == {"completed": 2, "failed": 1, "running": 1}
        await one.exchange([outcome(jobs["slow"])])
        bench.wait(HOUR)
        assert await other.ask("prune", bench.shard, 0) == 0
        assert (await run.audit()).counts == {"completed": 3, "failed": 1}
        bench.wait(DAY)
        assert await other.ask("prune", bench.shard, 0) > 0
        await _is_gone(one, run)

    @claim
    async def test_a_run_that_has_not_ended_is_never_pruned(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {}, "b": {"after": "a"}}, keep=1)
        await one.exchange([outcome(await one.take())])
        bench.wait(100 * DAY)
        assert await one.ask("prune", bench.shard, 0) == 0
        assert (await run.audit()).counts == {"completed": 1, "pending": 1}

    @claim
    async def test_a_run_that_goes_on_again_is_kept_from_its_new_end_on(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, ["a"], keep=HOUR)
        await play(one, {"a": "fail"})
        bench.wait(HOUR - 1)
        await one.ask("rerun_failed", run.id)
        bench.wait(HOUR)
        assert await one.ask("prune", bench.shard, MANY) == 0
        await play(one)
        bench.wait(HOUR - 1)
        assert await one.ask("prune", bench.shard, MANY) == 0
        assert (await run.audit()).status == "success"
        bench.wait(1)
        assert await one.ask("prune", bench.shard, MANY) > 0
        await _is_gone(one, run)

    @claim
    async def test_other_runs_and_plain_jobs_go_by_themselves(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        first, second = await begin(one, ["a"], keep=MINUTE), await begin(one, ["a"], keep=HOUR)
        plain = await one.add(keep=2 * MINUTE)
        await play(one)
        bench.wait(MINUTE)
        assert await one.ask("prune", bench.shard, MANY) > 0
        await _is_gone(one, first)
        assert await one.state(plain) == "completed"
        bench.wait(MINUTE)
        assert await one.ask("prune", bench.shard, MANY) == 1
        assert await one.ask("get", plain) is None
        assert (await second.audit()).status == "success"

    @claim
    async def test_jobs_of_runs_do_not_count_among_the_completed_that_are_kept(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        plain = await one.add_many(3)
        run = await begin(one, [str(nth) for nth in range(5)], keep=DAY)
        await play(one)
        assert await one.ask("prune", bench.shard, 3) == 0
        assert await one.ask("prune", bench.shard, 1) == 2
        assert [await one.ask("get", id_) is None for id_ in plain].count(True) == 2
        assert (await run.audit()).counts == {"completed": 5}

    @claim
    async def test_a_purge_leaves_runs_alone(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        done = await begin(one, {"a": {}, "b": {"after": "a"}})
        await play(one, {"a": "fail"})
        going = await begin(one, {"a": {}, "slow": {"queue": "elsewhere"}})
        plain = await one.add()
        await play(one, {"a": "fail", "work": "fail"})
        assert await one.ask("purge", "failed") == 1
        assert await one.ask("get", plain) is None
        assert await one.ask("purge", "skipped") == 0
        assert (await done.audit()).counts == {"failed": 1, "skipped": 1}
        assert (await going.audit()).counts == {"failed": 1, "pending": 1}

    @claim
    async def test_pruning_runs_is_bounded_and_comes_to_an_end(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        runs = [await begin(one, {"a": {}, "b": {"after": "a"}}, keep=MINUTE) for _ in range(12)]
        empty = await begin(one, [], keep=MINUTE)
        await play(one)
        bench.wait(MINUTE)
        turns = 0
        while await other.ask("prune", bench.shard, MANY, 5) > 0:
            turns += 1
            for run in runs:  # each run is complete or deleted
                if await one.ask("get_run", run.id) is None:
                    await _is_gone(one, run)
                else:
                    await run.audit()
        assert turns > 1
        for run in (*runs, empty):
            await _is_gone(one, run)

    @claim
    async def test_a_run_may_be_started_again_under_its_id_when_it_is_gone(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, ["a"], keep=MINUTE)
        await play(one)
        bench.wait(MINUTE)
        await one.ask("prune", bench.shard, MANY)
        await one.ask("start_run", run.new)
        assert (await run.audit()).counts == {"pending": 1}
        assert [event.seq for event in await run.events()] == [1, 2]

    @claim
    async def test_a_cursor_outlives_what_it_points_at(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await begin(one, ["a"], keep=MINUTE)
        await play(one)
        _, cursor = await all_events(other)
        bench.wait(MINUTE)
        await one.ask("prune", bench.shard, MANY)
        new = await begin(one, ["b"])
        events, _ = await all_events(other, cursor)
        assert events == await new.events()


async def _is_gone(client: Client, run: StartedRun) -> None:
    assert await client.ask("get_run", run.id) is None
    assert await run.jobs() == []
    assert await run.events() == []
    assert run.id not in [seen.id for seen in await client.ask("list_runs", limit=1000)]
    for id_ in run.ids.values():
        assert await client.ask("get", id_) is None
