"""Measure rate limits: hits and repeated denials per second beside the package `limits` (asyncio), and bytes
per key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import uvloop
from bench.harness import Bench, ContenderProcess, Row, Sample, compare
from limits import parse
from limits.aio import storage, strategies

from backstay import Backstay
from backstay.sync import Backstay as BlockingBackstay

TASKS = 100
#: Rates so high that every hit is admitted. An exact window stores one entry per millisecond, so its window is short.
RATES = {"fixed": "1000000000/hour", "sliding": "10000/second", "sliding-counter": "1000000/hour"}
PEERS = {
    "fixed": strategies.FixedWindowRateLimiter,
    "sliding": strategies.MovingWindowRateLimiter,
    "sliding-counter": strategies.SlidingWindowCounterRateLimiter,
}
#: The target: the most bytes of one key on Redis with an exact window of 1,000 hits.
HEAVIEST = 24 * 1024


def spin(runner: asyncio.Runner, hit: Callable[[str], Awaitable[bool]], seconds: float, wanted: bool) -> Sample:
    """Run tasks for `seconds`; each hits its own key as often as it can. Assert that each hit is allowed as
    `wanted`.
    """

    async def one(key: str, end: float) -> int:
        count = 0
        while perf_counter() < end:
            assert await hit(key) is wanted
            count += 1
        return count

    async def every() -> int:
        end = perf_counter() + seconds
        return sum(await asyncio.gather(*[one(f"user:{i}", end) for i in range(TASKS)]))

    began, cpu = perf_counter(), time.process_time()
    count = runner.run(every())
    return Sample(count, perf_counter() - began, time.process_time() - cpu)


@contextmanager
def backstay_hits(url: str, algorithm: str, rate: str, wanted: bool) -> Iterator[Callable[[float], Sample]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stay = runner.run(Backstay(url).open())
        limit = stay.limit("bench", rate, algorithm=algorithm)

        async def hit(key: str) -> bool:
            return (await limit.hit(key)).allowed

        if not wanted:
            runner.run(_exhaust(hit))
        yield lambda seconds: spin(runner, hit, seconds, wanted)
        runner.run(stay.close())


@contextmanager
def peer_hits(url: str, algorithm: str, rate: str, wanted: bool) -> Iterator[Callable[[float], Sample]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        store = storage.RedisStorage(f"async+{url}", implementation="redispy", key_prefix=f"peer-{algorithm}-{wanted}")
        limiter: Any = PEERS[algorithm](store)
        item = parse(rate)

        async def hit(key: str) -> bool:
            return bool(await limiter.hit(item, key))

        if not wanted:
            runner.run(_exhaust(hit))
        yield lambda seconds: spin(runner, hit, seconds, wanted)


async def _exhaust(hit: Callable[[str], Awaitable[bool]]) -> None:
    for i in range(TASKS):
        while await hit(f"user:{i}"):
            pass


def _side_by_side(bench: Bench, what: str, algorithm: str, rate: str, least: float, *, wanted: bool = True) -> Row:
    rounds, seconds = bench.pick((7, 0.6), (3, 0.4))
    args = (bench.url, algorithm, rate, wanted)
    with ContenderProcess(backstay_hits, *args) as mine, ContenderProcess(peer_hits, *args) as other:
        slices = bench.interleave(what, {"Backstay": mine, "limits": other}, rounds, seconds)
    return compare(what, slices["Backstay"], "limits", slices["limits"], least)


def weights(bench: Bench) -> list[Row]:
    """Measure how many bytes a key with a thousand hits uses on the Redis server."""
    rows: list[Row] = []
    with BlockingBackstay(bench.url, namespace="weights") as stay, bench.client() as client:
        for algorithm in ("fixed", "sliding-counter", "token-bucket", "gcra", "sliding"):
            limit = stay.limit("bench", "1000/day", algorithm=algorithm)
            for _ in range(1000):
                limit.hit("user:7")
                if algorithm == "sliding":
                    time.sleep(0.0011)  # hits within one millisecond would share an entry
            (key,) = client.keys(f"weights:limit:*{limit.spec.prefix}*")
            size = int(client.memory_usage(key, samples=0) or 0)
            exact = algorithm == "sliding"
            rows.append(
                Row(
                    f"memory of a key, {algorithm}, 1,000 hits",
                    f"{size:,} bytes",
                    target=f"≤ {HEAVIEST:,}" if exact else "–",
                    met=size <= HEAVIEST if exact else None,
                    detail={"bytes": size},
                )
            )
    return rows


def limits(bench: Bench) -> list[Row]:
    return [
        _side_by_side(bench, f"hits, fixed, {TASKS} tasks", "fixed", RATES["fixed"], 5),
        _side_by_side(bench, f"hits, sliding (exact), {TASKS} tasks", "sliding", RATES["sliding"], 5),
        _side_by_side(bench, f"hits, sliding-counter, {TASKS} tasks", "sliding-counter", RATES["sliding-counter"], 2),
        _side_by_side(bench, f"repeated denials, {TASKS} tasks", "sliding", "1/hour", 50, wanted=False),
        *weights(bench),
    ]
