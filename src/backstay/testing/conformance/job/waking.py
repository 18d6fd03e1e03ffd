"""Tests of wake-ups: N jobs wake about N slots of all workers together (no thundering herd). If the hub fails, jobs
start later, but none is lost.

`WakingSuite` needs a fixture `fleet`: a `Fleet` on the set-up under test. `LostHubSuite` needs a `Fleet` with its own
hub server, which the suite kills and restarts.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from backstay import Backstay
from backstay.job.api.definition import JobType
from backstay.job.worker.worker import Worker
from backstay.testing.servers import RedisServer
from backstay.testing.waiting import soon

#: The number of jobs (N), and of workers. All workers together have 5 N slots.
JOBS, WORKERS = 20, 5
#: The most polls per second of one idle worker.
POLLS_PER_SECOND = 1.0
TEST_TIMEOUT = 180.0


class Fleet:
    """Workers that share a queue, each with a separate Backstay: `Fleet(URL, hub="redis://…")`."""

    def __init__(self, url: str, *, hub: str | None = None, hub_server: RedisServer | None = None) -> None:
        self.url = url
        self.hub_server = hub_server
        self.hub = hub_server.url if hub_server is not None else hub
        #: How often each job ran, by its number.
        self.ran: Counter[int] = Counter()

    @asynccontextmanager
    async def start_workers(self) -> AsyncGenerator[tuple[JobType[[int], None], list[Worker]], None]:
        """Start WORKERS workers. Together they have 5 × JOBS slots, so five slots for each job that a test enqueues.
        Yield a job type and the workers. The workers stop at the end of the `async with` block.
        """
        self.ran.clear()
        namespace = f"conformance-{secrets.token_hex(6)}"
        types: list[JobType[[int], None]] = []
        workers: list[Worker] = []
        async with AsyncExitStack() as stack:
            for _ in range(WORKERS):
                stay = await stack.enter_async_context(Backstay(self.url, namespace=namespace, hub=self.hub))
                types.append(self._define(stay))
                worker = stay.worker(concurrency=5 * JOBS // WORKERS, signals=False)
                await stack.enter_async_context(_run_worker(worker))
                workers.append(worker)
            yield types[0], workers

    def _define(self, stay: Backstay) -> JobType[[int], None]:
        @stay.job(name="count")
        async def count(number: int) -> None:
            self.ran[number] += 1

        return count

    async def has_run(self, count: int, within: float = TEST_TIMEOUT) -> bool:
        async def all_of_them() -> bool:
            return self.ran.total() >= count

        return await soon(all_of_them, within)


@asynccontextmanager
async def _run_worker(worker: Worker) -> AsyncGenerator[None, None]:
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait_for(task, TEST_TIMEOUT)


def fleet_test(scenario: Callable[[Any, Fleet], Awaitable[None]]) -> Callable[[Any, Fleet], None]:
    """Decorate an async test method that takes a `Fleet`. The result is a plain method for pytest, which takes the
    fixture `fleet`.
    """

    def test(self: Any, fleet: Fleet) -> None:
        async def play() -> None:
            async with asyncio.timeout(2 * TEST_TIMEOUT):
                await scenario(self, fleet)

        asyncio.run(play())

    return functools.update_wrapper(test, scenario, functools.WRAPPER_ASSIGNMENTS[:4], ())


class WakingSuite:
    """Tests that enqueue JOBS jobs for workers with five times as many idle slots, and count the workers' exchanges."""

    @fleet_test
    async def test_jobs_that_come_one_by_one_wake_about_one_slot_each(self, fleet: Fleet) -> None:
        async with fleet.start_workers() as (count, workers):
            exchanges = await _wait_idle(workers)
            began = time.monotonic()
            for number in range(JOBS):
                await count.enqueue(number)
                assert await fleet.has_run(number + 1)
            seconds = time.monotonic() - began
            exchanges = sum(worker.exchanges for worker in workers) - exchanges
        assert fleet.ran == dict.fromkeys(range(JOBS), 1)
        # One exchange claims a job and one finishes it; all other exchanges are polls. If every job woke all workers,
        # there would be five claims per job.
        assert exchanges <= 2 * JOBS + WORKERS * (POLLS_PER_SECOND * seconds + 2)

    @fleet_test
    async def test_jobs_that_come_at_once_wake_no_more_slots_than_there_are_jobs(self, fleet: Fleet) -> None:
        async with fleet.start_workers() as (count, workers):
            exchanges = await _wait_idle(workers)
            began = time.monotonic()
            await count.enqueue_many([(number,) for number in range(JOBS)])
            assert await fleet.has_run(JOBS)
            seconds = time.monotonic() - began
            exchanges = sum(worker.exchanges for worker in workers) - exchanges
        assert fleet.ran == dict.fromkeys(range(JOBS), 1)
        assert exchanges <= JOBS + WORKERS * (POLLS_PER_SECOND * seconds + 2)


class LostHubSuite:
    """Tests that stop and restart the hub's server. The jobs are in another engine."""

    @fleet_test
    async def test_without_its_hub_everything_is_only_slower(self, fleet: Fleet) -> None:
        assert fleet.hub_server is not None, "this test kills the hub: Fleet(url, hub_server=RedisServer().start())"
        async with fleet.start_workers() as (count, _):
            await count.enqueue(0)
            assert await fleet.has_run(1)
            fleet.hub_server.kill()
            await count.enqueue_many([(number,) for number in range(1, JOBS)])
            assert await fleet.has_run(JOBS)
            fleet.hub_server.start()
            await count.enqueue(JOBS)
            assert await fleet.has_run(JOBS + 1)
        assert fleet.ran == dict.fromkeys(range(JOBS + 1), 1)


async def _wait_idle(workers: list[Worker]) -> int:
    """Wait until every worker has polled and found no job; return the number of exchanges so far."""

    async def all_looked() -> bool:
        return all(worker.exchanges > 1 for worker in workers)

    assert await soon(all_looked)
    return sum(worker.exchanges for worker in workers)
