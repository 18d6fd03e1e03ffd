"""Handlers that run longer than their timeout."""

from __future__ import annotations

import asyncio
import threading

import pytest

from backstay.job.api.retry import fixed
from backstay.testing.waiting import WITHIN
from support.app import fetch_job, open_app, wait_for_state, working
from support.event_loop import on_a_loop


@on_a_loop
async def test_a_handler_past_its_timeout_is_cancelled_and_retried(url, namespace):
    stay = open_app(url, namespace)
    cancelled = []

    @stay.job(retries=1, backoff=fixed(0.01), timeout=0.1)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async with stay:
        handle = await slow.enqueue()
        async with working(stay):
            job = await wait_for_state(stay, handle, "failed")
    assert cancelled == [1, 1]
    assert job.error.kind == "JobTimeout"
    assert "0.1 s" in job.error.message


@pytest.mark.parametrize("is_async", [True, False])
@on_a_loop
async def test_a_handler_that_does_not_end_is_abandoned_and_frees_its_slot(namespace, is_async):
    stay = open_app("memory://", namespace)
    release = threading.Event()

    if is_async:

        @stay.job(retries=0, timeout=0.05)
        async def endless() -> None:
            while not release.is_set():
                try:
                    await asyncio.sleep(0.02)
                except asyncio.CancelledError:
                    continue
    else:

        @stay.job(retries=0, timeout=0.05)
        def endless() -> None:
            release.wait(30)

    @stay.job()
    async def next_one() -> None: ...

    async with stay:
        handle = await endless.enqueue()
        async with working(stay, concurrency=1, grace=0.05):
            job = await wait_for_state(stay, handle, "failed")
            await wait_for_state(stay, await next_one.enqueue(), "completed")
            release.set()
            await asyncio.sleep(0.05)
            assert (await fetch_job(stay, handle)).state == "failed"
    assert job.error.kind == "JobTimeout"
    assert "did not end" in job.error.message


@on_a_loop
async def test_a_call_may_override_the_timeout(namespace):
    stay = open_app("memory://", namespace)

    @stay.job(retries=0)
    async def slow() -> None:
        await asyncio.sleep(60)

    async with stay:
        handle = await slow.options(timeout=0.05).enqueue()
        async with working(stay):
            job = await wait_for_state(stay, handle, "failed")
    assert job.error.kind == "JobTimeout"


@on_a_loop
async def test_a_call_may_disable_the_timeout(url, namespace):
    stay = open_app(url, namespace)

    @stay.job(timeout=0.1, retries=0)
    async def slow() -> str:
        await asyncio.sleep(0.3)
        return "done"

    async with stay, working(stay):
        assert await (await slow.options(timeout=None).enqueue()).result(WITHIN) == "done"
        await wait_for_state(stay, await slow.enqueue(), "failed")
