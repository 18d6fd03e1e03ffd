"""A caller that waits for a result right after the enqueue changes the job's record while a worker claims it. On
PostgreSQL the claim skips the locked record, and must search again although it has used up the announcement.
"""

from __future__ import annotations

import asyncio

import pytest

from backstay import Backstay, sync
from backstay.job.worker import producer
from backstay.testing.servers.postgres import PostgresServer
from backstay.testing.waiting import WITHIN
from support.app import wait_until, working
from support.event_loop import on_a_loop

pytestmark = pytest.mark.postgres

JOBS = 200


@pytest.fixture(scope="module")
def durable():
    """A server that waits for the disk, so that rows stay locked as long as in production."""
    with PostgresServer(settings={"fsync": "on", "full_page_writes": "on"}) as server:
        yield server


@pytest.fixture(autouse=True)
def hints_alone(monkeypatch):
    """The worker does not poll: a job that its claims miss is never started."""
    monkeypatch.setattr(producer, "POLL", 600.0)


@on_a_loop
async def test_every_job_whose_result_is_awaited_at_once_is_started_at_once(durable, namespace):
    stay = Backstay(durable.url, namespace=namespace)

    @stay.job()
    async def echo(n: int) -> int:
        return n

    async with stay, working(stay, lease=600) as worker:
        await wait_until(lambda: worker._producer is not None and worker._producer.is_exhausted)
        for n in range(JOBS):
            assert await (await echo.enqueue(n)).result(timeout=WITHIN) == n


@on_a_loop
async def test_every_job_of_several_callers_is_started_at_once(durable, namespace):
    """Some claims find one job locked and another one free."""
    stay = Backstay(durable.url, namespace=namespace)

    @stay.job()
    async def echo(n: int) -> int:
        return n

    async def call(n: int) -> int:
        return await (await echo.enqueue(n)).result(timeout=WITHIN)

    async with stay, working(stay, lease=600) as worker:
        await wait_until(lambda: worker._producer is not None and worker._producer.is_exhausted)
        for first in range(0, JOBS, 4):
            numbers = range(first, first + 4)
            assert await asyncio.gather(*map(call, numbers)) == list(numbers)


@on_a_loop
async def test_every_job_that_a_thread_awaits_at_once_is_started_at_once(durable, namespace):
    stay = Backstay(durable.url, namespace=namespace)

    @stay.job(name="echo")
    async def echo(n: int) -> int:
        return n

    def call_each() -> None:
        with sync.Backstay(durable.url, namespace=namespace) as caller:

            @caller.job(name="echo")
            def echo(n: int) -> int:
                return n

            for n in range(JOBS):
                assert echo.enqueue(n).result(timeout=WITHIN) == n

    async with stay, working(stay, lease=600) as worker:
        await wait_until(lambda: worker._producer is not None and worker._producer.is_exhausted)
        await asyncio.to_thread(call_each)
