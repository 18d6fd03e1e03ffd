"""Retries, cancellations and timeouts of Python workflows, with a real worker."""

import asyncio

import pytest
from each_engine import on_each_engine

from backstay import JobNotFound
from backstay.job.store import JOB_STORE
from backstay.testing.waiting import WITHIN, soon
from support.app import working


@on_each_engine
async def test_a_failed_map_job_fails_its_dependents_and_can_be_retried(stay):
    broken = {2}

    @stay.job()
    async def find() -> list[int]:
        return [1, 2, 3]

    @stay.job(retries=0)
    async def check(n: int) -> int:
        if n in broken:
            raise ValueError(n)
        return n

    @stay.job()
    async def report(numbers: list[int]) -> int:
        return len(numbers)

    @stay.workflow
    def checks(flow):
        flow.add(report, flow.map(check, flow.add(find).output).output)

    async with working(stay):
        run = await checks.start()
        assert await run.wait(timeout=30) == "failure"
        states = {job.key: job.state for job in await run.jobs()}
        assert states["check (2)"] == "failed"
        assert states["check"] == "failed"
        assert states["report"] == "skipped"
        broken.clear()
        await run.rerun_failed()
        assert await run.wait(timeout=30) == "success"
        assert run.outputs["report"] == 3


@on_each_engine
async def test_retrying_a_map_job_reopens_the_map_and_its_dependents(stay):
    broken = {"2", "3"}

    @stay.job()
    async def find() -> list[str]:
        return ["1", "2", "3"]

    @stay.job(retries=0)
    async def check(n: str) -> str:
        if n in broken:
            raise ValueError(n)
        return n

    @stay.job()
    async def report(found: list[str]) -> str:
        return "".join(found)

    @stay.workflow
    def checks(flow):
        flow.add(report, flow.map(check, flow.add(find).output).output)

    async with working(stay):
        run = await checks.start()
        assert await run.wait(timeout=30) == "failure"
        broken.discard("2")
        await run.retry("check (2)")
        assert await run.wait(timeout=30) == "failure"  # check (3) still fails
        broken.discard("3")
        await run.retry("check (3)")
        assert await run.wait(timeout=30) == "success"
        assert run.outputs["report"] == "123"


@on_each_engine
async def test_jobs_of_a_cancelled_run_can_be_retried_one_by_one(stay):
    @stay.job()
    async def make() -> str:
        return "made"

    @stay.job()
    async def use(what: str) -> str:
        return f"used {what}"

    @stay.workflow
    def both(flow):
        flow.add(use, flow.add(make).output)

    run = await both.start()
    await run.cancel("not now")
    async with working(stay):
        await run.retry("make")
        await run.wait(timeout=30)
        await run.retry("use")
        assert await run.wait(timeout=30) == "success"
        assert run.outputs == {"make": "made", "use": "used made"}


@on_each_engine
async def test_a_run_is_cancelled_and_the_next_one_is_untouched(stay):
    started = asyncio.Event()

    @stay.job()
    async def hang(long: bool) -> str:
        started.set()
        if long:
            await asyncio.sleep(60)
        return "done"

    @stay.workflow
    def waiting(flow, long: bool):
        flow.add(hang, long, key="second", after=flow.add(hang, long))

    async with working(stay):
        run = await waiting.start(long=True)
        await asyncio.wait_for(started.wait(), WITHIN)
        assert await run.cancel("enough") == "running"
        assert await run.wait(timeout=30) == "cancelled"
        assert {job.state for job in await run.jobs()} == {"cancelled"}
        assert (await run.info()).reason == "enough"
        again = await waiting.start(long=False)
        assert await again.wait(timeout=30) == "success"
        assert await run.status() == "cancelled"


@on_each_engine
async def test_one_job_of_a_run_can_be_retried(stay):
    broken = [True]

    @stay.job(retries=0)
    async def shaky() -> str:
        if broken:
            raise ValueError
        return "fine"

    @stay.job()
    async def after(word: str) -> str:
        return word.upper()

    @stay.workflow
    def shaking(flow):
        flow.add(after, flow.add(shaky).output)

    async with working(stay):
        run = await shaking.start()
        assert await run.wait(timeout=30) == "failure"
        broken.clear()
        assert await run.retry("shaky") == "pending"
        assert await run.wait(timeout=30) == "success"
        assert run.outputs["after"] == "FINE"
        with pytest.raises(JobNotFound):
            await run.retry("unknown")


@on_each_engine
async def test_a_run_past_its_timeout_is_cancelled(stay):
    @stay.job()
    async def hang() -> None:
        await asyncio.sleep(60)

    @stay.workflow(timeout=0.2)
    def slow(flow):
        flow.add(hang)

    run = await slow.start()
    core = stay._core

    async def checked():
        await core.port.apply(core.services.get(JOB_STORE).check_runs(0))
        return (await run.status()) == "cancelled"

    assert await soon(checked, 10)
