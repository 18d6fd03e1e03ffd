"""Workers on a Redis that has reached its maxmemory: they work on stored jobs, and lose neither leases nor results."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from backstay import EngineUnavailable
from backstay.job.worker.channel import WorkerChannel
from backstay.policy import Policy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.redis import say
from backstay.testing.waiting import soon
from support.app import fetch_job, open_app, wait_for_state, wait_until, working
from support.event_loop import on_a_loop
from support.servers import running

pytestmark = [pytest.mark.redis, pytest.mark.chaos]


@pytest.fixture
def server():
    with running(RedisServer()) as server:
        yield server


def fill(server):
    say(server, "CONFIG", "SET", "maxmemory", 1)


def free(server):
    say(server, "CONFIG", "SET", "maxmemory", 0)


def open_impatient(server):
    return open_app(server.url, "jobs", profile=Policy(lock_retries=0))


@on_a_loop
async def test_a_full_server_refuses_new_jobs_and_drains_the_stored_ones(server):
    async with open_impatient(server) as stay:
        runs = Counter()

        @stay.job(retries=0)
        async def work(n: int) -> int:
            runs[n] += 1
            return n

        handles = [await work.enqueue(n) for n in range(50)]
        fill(server)
        with pytest.raises(EngineUnavailable, match="full"):
            await work.enqueue(50)
        async with working(stay, concurrency=4) as worker:
            await wait_until(lambda: worker.counts["completed"] == 50)
            assert await handles[7].result(timeout=60) == 7
        assert runs == dict.fromkeys(range(50), 1)
        free(server)
        assert (await work.enqueue(50)).id


@on_a_loop
async def test_a_running_job_keeps_its_lease_while_the_server_is_full(server):
    async with open_impatient(server) as stay:
        go, runs = asyncio.Event(), []

        @stay.job(retries=0)
        async def work() -> str:
            runs.append(1)
            await go.wait()
            return "done"

        handle = await work.enqueue()
        async with working(stay, lease=1.0) as worker:
            await wait_for_state(stay, handle, "running")
            fill(server)
            first = (await fetch_job(stay, handle)).lease_until
            # After three renewals the first lease would have ended.

            async def renewed():
                return (await fetch_job(stay, handle)).lease_until > first + 1_500_000

            assert await soon(renewed)
            go.set()
            await wait_until(lambda: worker.counts["completed"] == 1)
        assert runs == [1]
        assert (await fetch_job(stay, handle)).state == "completed"


@on_a_loop
async def test_a_large_result_is_kept_until_the_server_has_memory(server, monkeypatch):
    refused = asyncio.Event()
    back_off = WorkerChannel._back_off

    async def report(self, error, tries):
        refused.set()
        await back_off(self, error, tries)

    monkeypatch.setattr(WorkerChannel, "_back_off", report)
    async with open_impatient(server) as stay:
        runs = []

        @stay.job(retries=0)
        async def work() -> str:
            runs.append(1)
            fill(server)
            return "x" * 100_000

        handle = await work.enqueue()
        async with working(stay) as worker:
            await asyncio.wait_for(refused.wait(), 60)
            assert (await fetch_job(stay, handle)).state == "running"
            free(server)
            await wait_until(lambda: worker.counts["completed"] == 1)
        assert len(await handle.result(timeout=60)) == 100_000
        assert runs == [1]


@on_a_loop
async def test_a_stored_job_can_be_cancelled_on_a_full_server(server):
    async with open_impatient(server) as stay:

        @stay.job
        async def work() -> None: ...

        handle = await work.enqueue()
        fill(server)
        await handle.cancel()
        assert (await fetch_job(stay, handle)).state == "cancelled"
