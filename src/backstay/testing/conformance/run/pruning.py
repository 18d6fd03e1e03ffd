"""A run is deleted as a whole, after its own retention time."""

from __future__ import annotations

from backstay.job.run_model import Artifact
from backstay.testing.conformance.job.bench import DAY, HOUR, LEASE, MINUTE, SECOND, Bench, StoreClient, store_test
from backstay.testing.conformance.run.cases import StartedRun, all_events, begin, default_finish, run_jobs

MANY = 1_000_000


class RunPruningTests:
    """Tests of `prune` and `purge` with runs."""

    @store_test
    async def test_a_run_is_pruned_whole_after_its_retention_time(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        run = await begin(one, {"a": {}, "b": {"after": "a"}, "c": {"after": "b"}}, keep=HOUR)
        job = await one.take()
        await one.call("append_log", job.id, job.fence, [(bench.now, "stdout", "x")], 1)
        await one.call(
            "put_artifact", Artifact(job=job.id, name="f", size=1, digest="d"), job.fence, 0, b"x", last=True
        )
        await one.exchange([default_finish(job, outputs={"k": "v"})])
        await run_jobs(one, {"b": "fail"})
        bench.advance(HOUR - 1)
        assert await other.call("prune", bench.shard, MANY) == 0
        assert (await run.audit()).counts == {"completed": 1, "failed": 1, "skipped": 1}
        bench.advance(1)
        assert await other.call("prune", bench.shard, MANY) > 0
        await _is_gone(one, run)
        assert await one.call("read_log", job.id) == []
        assert await one.call("get_outputs", job.id) == {}
        assert await one.call("list_artifacts", job.id) == []
        assert await one.call("read_artifact", job.id, "f", 0) is None
        assert await other.call("prune", bench.shard, MANY) == 0

    @store_test
    async def test_a_job_stays_as_long_as_its_run(self, bench: Bench) -> None:
        """A job's own retention time and the limit on completed jobs do not apply inside a run."""
        one, other = await bench.clients(2)
        short = {"keep": SECOND, "keep_failed": SECOND}
        run = await begin(one, {"a": short, "b": {**short, "after": "a"}, "bad": short, "slow": short}, keep=DAY)
        jobs = {job.type: job for job in await one.claim(3)}
        await one.exchange([default_finish(jobs["a"]), default_finish(jobs["bad"], "fail")])
        for job in await one.claim(5):
            await one.exchange([default_finish(job)])
        bench.advance(LEASE - 1)
        assert await other.call("prune", bench.shard, 0) == 0
        assert (await run.audit()).counts == {"completed": 2, "failed": 1, "running": 1}
        await one.exchange([default_finish(jobs["slow"])])
        bench.advance(HOUR)
        assert await other.call("prune", bench.shard, 0) == 0
        assert (await run.audit()).counts == {"completed": 3, "failed": 1}
        bench.advance(DAY)
        assert await other.call("prune", bench.shard, 0) > 0
        await _is_gone(one, run)

    @store_test
    async def test_a_run_that_has_not_ended_is_never_pruned(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, {"a": {}, "b": {"after": "a"}}, keep=1)
        await one.exchange([default_finish(await one.take())])
        bench.advance(100 * DAY)
        assert await one.call("prune", bench.shard, 0) == 0
        assert (await run.audit()).counts == {"completed": 1, "pending": 1}

    @store_test
    async def test_a_reopened_run_is_retained_from_its_new_end(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, ["a"], keep=HOUR)
        await run_jobs(one, {"a": "fail"})
        bench.advance(HOUR - 1)
        await one.call("rerun_failed", run.id)
        bench.advance(HOUR)
        assert await one.call("prune", bench.shard, MANY) == 0
        await run_jobs(one)
        bench.advance(HOUR - 1)
        assert await one.call("prune", bench.shard, MANY) == 0
        assert (await run.audit()).status == "success"
        bench.advance(1)
        assert await one.call("prune", bench.shard, MANY) > 0
        await _is_gone(one, run)

    @store_test
    async def test_other_runs_and_jobs_without_a_run_are_pruned_separately(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        first, second = await begin(one, ["a"], keep=MINUTE), await begin(one, ["a"], keep=HOUR)
        plain = await one.add(keep=2 * MINUTE)
        await run_jobs(one)
        bench.advance(MINUTE)
        assert await one.call("prune", bench.shard, MANY) > 0
        await _is_gone(one, first)
        assert await one.state(plain) == "completed"
        bench.advance(MINUTE)
        assert await one.call("prune", bench.shard, MANY) == 1
        assert await one.call("get", plain) is None
        assert (await second.audit()).status == "success"

    @store_test
    async def test_jobs_of_runs_do_not_count_among_the_completed_that_are_kept(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        plain = await one.add_many(3)
        run = await begin(one, [str(nth) for nth in range(5)], keep=DAY)
        await run_jobs(one)
        assert await one.call("prune", bench.shard, 3) == 0
        assert await one.call("prune", bench.shard, 1) == 2
        assert [await one.call("get", id_) is None for id_ in plain].count(True) == 2
        assert (await run.audit()).counts == {"completed": 5}

    @store_test
    async def test_a_purge_leaves_runs_alone(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        done = await begin(one, {"a": {}, "b": {"after": "a"}})
        await run_jobs(one, {"a": "fail"})
        going = await begin(one, {"a": {}, "slow": {"queue": "elsewhere"}})
        plain = await one.add()
        await run_jobs(one, {"a": "fail", "work": "fail"})
        assert await one.call("purge", "failed") == 1
        assert await one.call("get", plain) is None
        assert await one.call("purge", "skipped") == 0
        assert (await done.audit()).counts == {"failed": 1, "skipped": 1}
        assert (await going.audit()).counts == {"failed": 1, "pending": 1}

    @store_test
    async def test_pruning_runs_is_bounded_and_terminates(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        runs = [await begin(one, {"a": {}, "b": {"after": "a"}}, keep=MINUTE) for _ in range(12)]
        empty = await begin(one, [], keep=MINUTE)
        await run_jobs(one)
        bench.advance(MINUTE)
        turns = 0
        while await other.call("prune", bench.shard, MANY, 5) > 0:
            turns += 1
            for run in runs:  # each run is complete or deleted
                if await one.call("get_run", run.id) is None:
                    await _is_gone(one, run)
                else:
                    await run.audit()
        assert turns > 1
        for run in (*runs, empty):
            await _is_gone(one, run)

    @store_test
    async def test_the_id_of_a_pruned_run_may_be_used_again(self, bench: Bench) -> None:
        (one,) = await bench.clients(1)
        run = await begin(one, ["a"], keep=MINUTE)
        await run_jobs(one)
        bench.advance(MINUTE)
        await one.call("prune", bench.shard, MANY)
        await one.call("start_run", run.new)
        assert (await run.audit()).counts == {"pending": 1}
        assert [event.seq for event in await run.events()] == [1, 2]

    @store_test
    async def test_a_cursor_stays_valid_after_its_event_is_pruned(self, bench: Bench) -> None:
        one, other = await bench.clients(2)
        await begin(one, ["a"], keep=MINUTE)
        await run_jobs(one)
        _, cursor = await all_events(other)
        bench.advance(MINUTE)
        await one.call("prune", bench.shard, MANY)
        new = await begin(one, ["b"])
        events, _ = await all_events(other, cursor)
        assert events == await new.events()


async def _is_gone(client: StoreClient, run: StartedRun) -> None:
    assert await client.call("get_run", run.id) is None
    assert await run.jobs() == []
    assert await run.events() == []
    assert run.id not in [seen.id for seen in await client.call("list_runs", limit=1000)]
    for id_ in run.ids.values():
        assert await client.call("get", id_) is None
