"""The testing helpers find enqueued jobs and raise AssertionError for missing ones."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context

import pytest

import backstay
import backstay.sync
from backstay import Snooze
from backstay.testing.jobs import Clock, assert_enqueued, assert_not_enqueued, drain, eager, enqueued
from backstay.testing.waiting import WITHIN
from support.event_loop import on_a_loop


def define_jobs(stay):
    @stay.job(queue="mail", labels=["smtp"])
    async def mail(to: str, subject: str = "hello") -> str:
        return to

    @stay.job()
    async def order(n: int) -> None:
        await mail.enqueue(f"customer{n}")

    return mail, order


@on_a_loop
async def test_assert_enqueued_finds_enqueued_jobs():
    async with backstay.Backstay("memory://") as stay:
        mail, order = define_jobs(stay)
        await order.enqueue(1)
        await assert_enqueued(order, 1)
        await assert_enqueued(order, n=1)
        await assert_not_enqueued(mail)
        with pytest.raises(AssertionError, match=r"order\(n=2\) was not enqueued; order\(n=1\) was"):
            await assert_enqueued(order, 2)
        with pytest.raises(AssertionError, match="no call of it was"):
            await assert_enqueued(mail, "x")
        with pytest.raises(AssertionError, match=r"order\(n=1\)"):
            await assert_not_enqueued(order)


@on_a_loop
async def test_drain_runs_all_jobs_and_the_jobs_they_enqueue():
    async with backstay.Backstay("memory://") as stay:
        mail, order = define_jobs(stay)
        await order.enqueue_many([(1,), (2,)])
        assert await drain(stay) == {"completed": 4}
        await assert_enqueued(mail, "customer2", subject="hello")
        assert [info.result for info in await enqueued(mail)] == ["customer1", "customer2"]
        assert await drain(stay) == {}


@on_a_loop
async def test_eager_jobs_have_run_when_enqueue_returns():
    async with backstay.Backstay("memory://") as stay:
        mail, order = define_jobs(stay)
        with eager(stay):
            handle = await order.enqueue(1)
            assert await handle.status() == "completed"
            assert [info.state for info in await enqueued(mail)] == ["completed"]
            assert await (await order.options(delay=10).enqueue(2)).status() == "scheduled"
        assert await (await order.enqueue(3)).status() == "pending"


@on_a_loop
async def test_drain_includes_new_queues_and_labels_of_single_calls():
    async with backstay.Backstay("memory://") as stay:

        @stay.job()
        async def spread(n: int) -> None:
            if n:
                await spread.options(queue=f"queue{n}", labels=[f"label{n}"]).enqueue(n - 1)

        await spread.options(labels=["own"]).enqueue(3)
        assert await drain(stay) == {"completed": 4}
        assert await drain(stay) == {}
        await spread.options(labels=["own"]).enqueue(0)
        assert await drain(stay, labels=[]) == {}


@on_a_loop
async def test_eager_jobs_enqueued_while_others_run_have_run_too():
    async with backstay.Backstay("memory://") as stay:
        _, order = define_jobs(stay)
        late = []

        async def later():
            handle = await order.enqueue(2)
            return await handle.status()

        def on_event(event):
            if event.kind == "job.completed" and event.facts["type"] == "mail" and not late:  # the last one
                late.append(asyncio.get_running_loop().create_task(later(), context=Context()))

        stay.telemetry.subscribe(on_event)
        with eager(stay):
            await order.enqueue(1)
            assert await late[0] == "completed"


def test_eager_jobs_of_several_threads_have_all_run():
    with backstay.sync.Backstay("memory://") as stay:

        @stay.job()
        def add(a: int) -> int:
            return a + 1

        with eager(stay), ThreadPoolExecutor(4) as pool:
            assert set(pool.map(lambda n: add.enqueue(n).status(), range(8))) == {"completed"}


@on_a_loop
async def test_time_passes_only_when_the_test_clock_advances():
    clock = Clock()
    engine = clock.engine()
    async with backstay.Backstay(engine=engine) as stay:
        calls = []

        @stay.job(backoff=60, retries=1)
        async def stubborn() -> None:
            calls.append(clock.now)
            if len(calls) == 1:
                raise Snooze(30)
            raise RuntimeError

        handle = await stubborn.options(delay=3600).enqueue()
        assert await drain(stay) == {}
        clock.advance(3600)
        assert await drain(stay) == {"snoozed": 1}
        clock.advance(29)
        assert await drain(stay) == {}
        clock.advance(1)
        assert await drain(stay) == {"retried": 1}
        clock.advance(60)
        assert await drain(stay) == {"failed": 1}
        assert await handle.status() == "failed"
    await engine.close()


def test_the_helpers_work_in_blocking_code():
    with backstay.sync.Backstay("memory://") as stay:

        @stay.job()
        def add(a: int, b: int = 1) -> int:
            return a + b

        assert_not_enqueued(add)
        with eager(stay):
            assert add.enqueue(1).result(WITHIN) == 2
        assert_enqueued(add, 1, b=1)
        add.enqueue(5)
        assert drain(stay) == {"completed": 1}
        assert [info.result for info in enqueued(add)] == [2, 6]


def test_a_drain_on_a_test_clock_runs_cron_jobs():
    clock = Clock()
    ran = []

    def define(stay):
        @stay.job(cron="0 2 * * *")
        def nightly() -> None:
            ran.append(clock.now.isoformat())

    @on_a_loop
    async def a_night():
        async with backstay.Backstay(engine=clock.engine()) as stay:
            define(stay)
            assert await drain(stay) == {}
            clock.advance(86400)
            assert await drain(stay) == {"completed": 1}
            assert await drain(stay) == {}

    a_night()
    with backstay.sync.Backstay(engine=clock.engine()) as stay:
        define(stay)
        assert drain(stay) == {}
        clock.advance(86400)
        assert drain(stay) == {"completed": 1}
    assert ran == ["2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00"]
