"""The context of a running job: its fields, log lines, progress and outputs, middleware, and telemetry events."""

from __future__ import annotations

import asyncio

import pytest

import backstay
from backstay.job.api.retry import fixed
from backstay.job.store import JOB_STORE
from backstay.testing.waiting import soon
from support.app import fetch_job, open_app, wait_for_state, working
from support.event_loop import on_a_loop


@on_a_loop
async def test_log_lines_keep_their_order_across_attempts(url, namespace):
    stay = open_app(url, namespace)

    @stay.job(retries=1, backoff=fixed(0.01))
    async def write_lines() -> None:
        ctx = backstay.current_job()
        for n in range(3):
            ctx.log(f"attempt {ctx.attempt} line {n}", stream="out")
        if ctx.attempt == 1:
            raise ValueError("again")

    async with stay:
        handle = await write_lines.enqueue()
        async with working(stay):
            await wait_for_state(stay, handle, "completed")
        core = stay._core
        lines = await core.port.apply(core.services.get(JOB_STORE).read_log(handle.id))
    assert [line.data for line in lines] == [f"attempt {a} line {n}" for a in (1, 2) for n in range(3)]
    assert [line.seq for line in lines] == [1, 2, 3, 4, 5, 6]
    assert {line.stream for line in lines} == {"out"}


@on_a_loop
async def test_progress_and_outputs_are_stored(url, namespace):
    stay = open_app(url, namespace)
    proceed = asyncio.Event()

    @stay.job()
    async def half_way() -> None:
        ctx = backstay.current_job()
        ctx.progress(0.5)
        ctx.outputs["path"] = "a.png"
        await proceed.wait()

    async with stay:
        handle = await half_way.enqueue()
        async with working(stay):
            assert await soon(lambda: has_progress(stay, handle, 0.5))
            proceed.set()
            await wait_for_state(stay, handle, "completed")
        core = stay._core
        assert await core.port.apply(core.services.get(JOB_STORE).get_outputs(handle.id)) == {"path": "a.png"}


async def has_progress(stay, handle, expected):
    return (await fetch_job(stay, handle)).progress == expected


@on_a_loop
async def test_each_job_has_its_own_context(url, namespace):
    stay = open_app(url, namespace)
    contexts = {}

    @stay.job(priority=3, labels=["gpu"])
    async def report(n: int) -> None:
        ctx = backstay.current_job()
        await asyncio.sleep(0)
        assert backstay.current_job() is ctx
        ctx.lease.check()
        contexts[n] = (ctx.id, ctx.attempt, ctx.fence, ctx.lease.id, ctx.priority, ctx.labels, ctx.cancelled)

    async with stay:
        handles = [await report.enqueue(n) for n in range(5)]
        async with working(stay, labels=["gpu"]):
            for handle in handles:
                await wait_for_state(stay, handle, "completed")
    with pytest.raises(backstay.ConfigError):
        backstay.current_job()
    for n, handle in enumerate(handles):
        id_, attempt, fence, lease, priority, labels, cancelled = contexts[n]
        assert (id_, attempt, priority, labels, cancelled) == (handle.id, 1, 3, ("gpu",), False)
        assert lease == f"{id_}.{fence}"


@on_a_loop
async def test_a_middleware_wraps_every_attempt(namespace):
    stay = open_app("memory://", namespace)
    calls = []

    class Recording(backstay.Middleware):
        def __init__(self, name):
            self.name = name

        async def attempt(self, ctx, call_next):
            calls.append((self.name, "before", ctx.type))
            try:
                return await call_next() + 1
            finally:
                calls.append((self.name, "after", ctx.type))

    stay.use(Recording("outer"))
    stay.use(Recording("inner"))

    @stay.job()
    async def one() -> int:
        return 1

    @stay.job()
    def ten() -> int:
        return 10

    async with stay:
        a, b = await one.enqueue(), await ten.enqueue()
        async with working(stay, concurrency=1):
            assert one.decode_result((await wait_for_state(stay, a, "completed")).result) == 3
            assert ten.decode_result((await wait_for_state(stay, b, "completed")).result) == 12
    assert calls[:4] == [
        ("outer", "before", "one"),
        ("inner", "before", "one"),
        ("inner", "after", "one"),
        ("outer", "after", "one"),
    ]


@on_a_loop
async def test_each_finish_emits_a_telemetry_event(namespace):
    stay = open_app("memory://", namespace)
    events = []

    @stay.job(retries=1, backoff=fixed(0.01))
    async def fails() -> None:
        raise ValueError("x")

    async with stay:
        stay.telemetry.subscribe(lambda event: events.append((event.kind, event.facts.get("attempt"))))
        handle = await fails.enqueue()
        async with working(stay):
            await wait_for_state(stay, handle, "failed")
    attempts = [event for event in events if event[0].startswith("job.") and event[1]]
    assert attempts == [("job.started", 1), ("job.retried", 1), ("job.started", 2), ("job.failed", 2)]
