"""Workflows with the rest of the package: run timeouts, middleware, eager tests, and injected results."""

import asyncio

import pytest

from backstay import Backstay, Middleware, sync
from backstay.job.exchange import Claimed
from backstay.job.metadata import Fill, Meta, pack
from backstay.job.scheduler import scheduler
from backstay.job.worker.execution.inject_results import inject_results, put_results
from backstay.runtime.serialization import PLAIN_CODEC
from backstay.testing.jobs import drain, eager
from backstay.testing.waiting import WITHIN
from support.event_loop import on_a_loop


@on_a_loop
async def test_a_worker_cancels_runs_past_their_timeout(monkeypatch):
    monkeypatch.setattr(scheduler, "CHECK", 0.05)
    async with Backstay("memory://") as stay:

        @stay.job()
        async def hang() -> None:
            await asyncio.sleep(60)

        @stay.workflow(timeout=0.3)
        def slow(flow):
            flow.add(hang)

        worker = stay.worker(signals=False)
        task = asyncio.create_task(worker.run())
        run = await slow.start()
        assert await run.wait(timeout=30) == "cancelled"
        worker.stop()
        await task


@on_a_loop
async def test_middleware_wraps_only_the_programs_own_jobs():
    seen = []

    class Recording(Middleware):
        async def attempt(self, job, call):
            seen.append(job.type)
            return await call()

    async with Backstay("memory://") as stay:
        stay.use(Recording())

        @stay.job()
        async def work() -> str:
            return "x"

        @stay.workflow
        def decided(flow):
            flow.add(work, key="second", after=flow.add(work), when="needs.work.outputs.result == 'x'")

        run = await decided.start()
        await stay.worker(signals=False).run(burst=True)
        assert await run.wait(timeout=WITHIN) == "success"
    assert seen == ["work", "work"]


@on_a_loop
async def test_eager_mode_finishes_a_run_at_its_start():
    async with Backstay("memory://") as stay:

        @stay.job(queue="far", labels=["gpu"])
        async def work(n: int) -> int:
            return n + 1

        @stay.workflow
        def line(flow, n: int):
            flow.add(work, flow.add(work, n).output, key="second", when="always() && inputs.n == 1")

        with eager(stay):
            run = await line.start(1)
            assert await run.status() == "success"
        later = await line.start(2)
        assert (await drain(stay))["completed"] == 1
        assert await later.status() == "success"
        assert {job.key: job.state for job in await later.jobs()} == {"work": "completed", "second": "skipped"}


def test_drain_finishes_runs_of_the_blocking_api():
    with sync.Backstay("memory://") as stay:

        @stay.job()
        def work(n: int) -> int:
            return n + 1

        @stay.workflow
        def line(flow):
            flow.add(work, flow.add(work, 1).output, key="second")

        run = line.start()
        stay.workflows.put("name: commands\njobs: {a: {run: x}}")
        commands = stay.workflows.start("commands")
        drain(stay)
        assert run.wait(timeout=WITHIN) == "success"
        assert run.outputs["second"] == 3
        assert commands.status() == "queued", "commands run on workers that allow them"


def claimed_job(args, fills, upstream):
    raw = PLAIN_CODEC.encode(args)
    return Claimed(
        id="0-1", fence=1, type="t", queue="q", args=raw, meta=pack(Meta(fills=fills)), attempt=1, retries=0, snoozes=0,
        priority=0, chain="0-1", run="0-0", labels=(), enqueued=0, due=0, until=0, upstream=upstream,
    )  # fmt: skip


def test_placeholders_are_filled_with_results_of_other_jobs():
    fills = (
        Fill(("one",), ("a",)),
        Fill(("many",), ("a", "b"), many=True),
        Fill(("deep", "list", 1), ("b",), item=("x", 0)),
        Fill(("none",), ("c",)),
        Fill(("part_of_none",), ("c",), item=("x",)),
    )
    args = {"one": None, "many": None, "deep": {"list": [0, None]}, "none": 1, "part_of_none": 1, "own": 5}
    upstream = {"a": PLAIN_CODEC.encode(1), "b": PLAIN_CODEC.encode({"x": [7]}), "c": None}
    assert PLAIN_CODEC.decode(inject_results(claimed_job(args, fills, upstream)).args) == {
        "one": 1,
        "many": [1, {"x": [7]}],
        "deep": {"list": [0, 7]},
        "none": None,
        "part_of_none": None,
        "own": 5,
    }


def test_a_missing_part_of_a_result_is_a_bad_argument():
    with pytest.raises(ValueError, match="has no 'path'"):
        put_results({"a": None}, (Fill(("a",), ("x",), item=("path",)),), {"x": PLAIN_CODEC.encode({"other": 1})}, "t")


def test_a_job_without_placeholders_is_unchanged():
    job = claimed_job({"a": 1}, (), {})
    assert inject_results(job) is job


@on_a_loop
async def test_a_result_of_the_wrong_type_fails_the_job_that_receives_it():
    async with Backstay("memory://") as stay:

        @stay.job(retries=0)
        async def make() -> str:
            return "text"

        @stay.job(retries=0)
        async def use(n: int) -> int:
            return n

        @stay.workflow
        def mixed(flow):
            made = flow.add(make)
            flow.add(use, made.output)
            flow.add(use, made.output["part"], key="part")
            flow.map(use, made.output, key="each")

        run = await mixed.start()
        await stay.worker(signals=False).run(burst=True)
        assert await run.wait(timeout=WITHIN) == "failure"
        errors = {job.key: job.info.error for job in await run.jobs() if job.state != "completed"}
        assert "Expected `int`" in errors["use"].message
        assert errors["part"].kind == "BadArgument"
        assert "maps over a list" in errors["each"].message
