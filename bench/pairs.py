"""Measure how many pairs of acquire and release per second are possible without contention, beside redis-py's Lock."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter

import redis
import redis.asyncio
import uvloop
from bench.harness import Bench, Contender, ContenderProcess, Row, Sample, compare

from backstay import Backstay
from backstay.sync import Backstay as BlockingBackstay

TTL = 10


def spin_tasks(runner: asyncio.Runner, pair: Callable[[str], Awaitable[None]], tasks: int, seconds: float) -> Sample:
    """Run tasks for `seconds`; each acquires and releases its own lock as often as it can."""

    async def one(name: str, end: float) -> int:
        count = 0
        while perf_counter() < end:
            await pair(name)
            count += 1
        return count

    async def every() -> int:
        end = perf_counter() + seconds
        return sum(await asyncio.gather(*[one(f"task-{i}", end) for i in range(tasks)]))

    began, cpu = perf_counter(), time.process_time()
    count = runner.run(every())
    return Sample(count, perf_counter() - began, time.process_time() - cpu)


@contextmanager
def backstay_tasks(url: str, tasks: int) -> Iterator[Callable[[float], Sample]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stay = runner.run(Backstay(url).open())

        async def pair(name: str) -> None:
            async with stay.lock(name, ttl=TTL):
                pass

        yield lambda seconds: spin_tasks(runner, pair, tasks, seconds)
        runner.run(stay.close())


@contextmanager
def redis_py_tasks(url: str, tasks: int) -> Iterator[Callable[[float], Sample]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        client = redis.asyncio.Redis.from_url(url)

        async def pair(name: str) -> None:
            async with client.lock(name, timeout=TTL):
                pass

        yield lambda seconds: spin_tasks(runner, pair, tasks, seconds)
        runner.run(client.aclose())


def spin_threads(pool: ThreadPoolExecutor, pair: Callable[[str], None], threads: int, seconds: float) -> Sample:
    """Do the same as `spin_tasks` with threads. The threads and their connections are kept for the next slice."""
    ready = threading.Barrier(threads + 1)

    def one(name: str) -> int:
        ready.wait()
        end = perf_counter() + seconds
        count = 0
        while perf_counter() < end:
            pair(name)
            count += 1
        return count

    counts = [pool.submit(one, f"thread-{i}") for i in range(threads)]
    ready.wait()
    began, cpu = perf_counter(), time.process_time()
    count = sum(future.result() for future in counts)
    return Sample(count, perf_counter() - began, time.process_time() - cpu)


@contextmanager
def backstay_threads(url: str, threads: int) -> Iterator[Callable[[float], Sample]]:
    with ThreadPoolExecutor(threads) as pool, BlockingBackstay(url) as stay:

        def pair(name: str) -> None:
            with stay.lock(name, ttl=TTL):
                pass

        yield lambda seconds: spin_threads(pool, pair, threads, seconds)


@contextmanager
def redis_py_threads(url: str, threads: int) -> Iterator[Callable[[float], Sample]]:
    with ThreadPoolExecutor(threads) as pool, redis.Redis.from_url(url) as client:

        def pair(name: str) -> None:
            with client.lock(name, timeout=TTL):
                pass

        yield lambda seconds: spin_threads(pool, pair, threads, seconds)


def _side_by_side(bench: Bench, what: str, contenders: tuple[Contender, Contender], width: int, least: float) -> Row:
    rounds, seconds = bench.pick((9, 0.7), (3, 0.4))
    ours, theirs = contenders
    with ContenderProcess(ours, bench.url, width) as mine, ContenderProcess(theirs, bench.url, width) as other:
        slices = bench.interleave(what, {"Backstay": mine, "redis-py": other}, rounds, seconds)
    return compare(what, slices["Backstay"], "redis-py", slices["redis-py"], least)


def tasks(bench: Bench) -> list[Row]:
    return [
        _side_by_side(bench, "pairs, async, 100 tasks", (backstay_tasks, redis_py_tasks), 100, 5),
        _side_by_side(bench, "pairs, async, 1 task", (backstay_tasks, redis_py_tasks), 1, 1.1),
    ]


def threads(bench: Bench) -> list[Row]:
    return [
        _side_by_side(bench, "pairs, blocking, 1 thread", (backstay_threads, redis_py_threads), 1, 1),
        _side_by_side(bench, "pairs, blocking, 16 threads", (backstay_threads, redis_py_threads), 16, 1.5),
    ]
