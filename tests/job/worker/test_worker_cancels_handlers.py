"""Handlers whose job is cancelled, or whose worker is cancelled or closed."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import backstay
from backstay.job.store import JOB_STORE
from backstay.testing.waiting import WITHIN
from support.app import KINDS, fetch_job, open_app, url_of, wait_for_state, working
from support.event_loop import on_a_loop


async def cancel(stay, handle, reason="enough"):
    core = stay._core
    return await core.port.apply(core.services.get(JOB_STORE).cancel(handle.id, reason))


@pytest.mark.timed
@on_a_loop
async def test_a_running_job_that_is_cancelled_is_interrupted_at_once(url, namespace):
    stay = open_app(url, namespace)
    began, ended = asyncio.Event(), []

    @stay.job(retries=3)
    async def endless() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(backstay.current_job().cancelled)
            raise

    async with stay:
        handle = await endless.enqueue()
        async with working(stay) as worker:
            await asyncio.wait_for(began.wait(), WITHIN)
            requested = time.monotonic()
            assert await cancel(stay, handle) == "running"
            await wait_for_state(stay, handle, "cancelled")
            assert time.monotonic() - requested < 5  # the next renewal, which would report it, is due after ten
        assert ended == [True]
        assert worker.counts == {"cancelled": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_the_reason_of_a_cancellation_is_kept(kind, namespace, request):
    """The worker of the running job does not receive the reason, only the cancellation."""
    stay = open_app(url_of(kind, request), namespace)

    @stay.job()
    async def endless() -> None:
        await asyncio.Event().wait()

    @on_a_loop
    async def cancel_running():
        async with stay, working(stay):
            handle = await endless.enqueue()
            await wait_for_state(stay, handle, "running")
            await handle.cancel("wrong customer")
            with pytest.raises(backstay.JobCancelled, match="wrong customer"):
                await handle.result(WITHIN)

    cancel_running()


@on_a_loop
async def test_check_raises_in_a_cancelled_thread(url, namespace):
    stay = open_app(url, namespace)
    began = threading.Event()

    @stay.job()
    def busy() -> None:
        began.set()
        ctx = backstay.current_job()
        while True:
            ctx.check()
            time.sleep(0.005)

    async with stay:
        handle = await busy.enqueue()
        async with working(stay):
            await asyncio.to_thread(began.wait, 10)
            await cancel(stay, handle)
            await wait_for_state(stay, handle, "cancelled")


@on_a_loop
async def test_a_handler_that_ignores_its_cancellation_may_complete(namespace):
    stay = open_app("memory://", namespace)
    began = asyncio.Event()

    @stay.job()
    async def stubborn() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done anyway"
        raise AssertionError

    async with stay:
        handle = await stubborn.enqueue()
        async with working(stay):
            await asyncio.wait_for(began.wait(), WITHIN)
            await cancel(stay, handle)
            job = await wait_for_state(stay, handle, "completed")
    assert stubborn.decode_result(job.result) == "done anyway"


@on_a_loop
async def test_a_cancelled_worker_run_returns_its_jobs(url, namespace):
    stay = open_app(url, namespace)
    began = asyncio.Event()

    @stay.job(retries=0)
    async def endless() -> None:
        began.set()
        await asyncio.Event().wait()

    async with stay:
        handle = await endless.enqueue()
        task = asyncio.create_task(stay.worker(signals=False).run())
        await asyncio.wait_for(began.wait(), WITHIN)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, WITHIN)
        job = await fetch_job(stay, handle)
    assert (job.state, job.attempt) == ("pending", 0)


@on_a_loop
async def test_a_worker_whose_backstay_is_closed_stops(url, namespace):
    stay = open_app(url, namespace)
    began, cancelled = asyncio.Event(), []

    @stay.job()
    async def endless() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    await stay.open()
    await endless.enqueue()
    task = asyncio.create_task(stay.worker(signals=False).run())
    await asyncio.wait_for(began.wait(), WITHIN)
    await stay.close()
    await asyncio.wait_for(task, WITHIN)
    assert cancelled == [1]
