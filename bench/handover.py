"""Measure the hand-over of a lock: the time from the release in one process until the waiter in another process holds
it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import redis
import redis_lock
import uvloop
from bench.harness import CONTEXT, Bench, ContenderProcess, Row, percentile
from redis.lock import Lock

from backstay import Backstay
from backstay.sync import Backstay as BlockingBackstay
from backstay.sync import Lease as BlockingLease

NAME, TTL = "handover", 30
#: The range of seconds for which a holder holds the lock. For a peer that polls, it covers a whole poll interval (0.1
#: s), so that releases fall on any point of the interval.
PUSHED, POLLED = (0.02, 0.04), (0.02, 0.12)
#: Seconds between checks whether the other process holds the lock already.
POLL_SECONDS = 0.001
#: Seconds to wait for a hand-over. One that never happens is not measured, and the benchmark continues.
HANDOVER_TIMEOUT = 5.0


class SharedState:
    """Memory that both processes share: the current holder (0 or 1), and when the last holder called release."""

    def __init__(self) -> None:
        self.holder = CONTEXT.Value("i", -1, lock=False)
        self.released = CONTEXT.Value("d", 0.0, lock=False)

    def begin(self, me: int, turn: int, now: float, took: list[float]) -> None:
        """Record that process `me` holds the lock since `now`. If the other process held it before, append the
        milliseconds of the hand-over to `took`.
        """
        if turn and self.holder.value == 1 - me:
            took.append((now - self.released.value) * 1000)
        self.holder.value = me

    def waits(self, me: int, until: float) -> bool:
        """Whether `me` is still the last holder, and `until` is not over: then the other process has not
        started yet.
        """
        return self.holder.value == me and perf_counter() < until


def take_turns(
    stage: SharedState,
    me: int,
    take: Callable[[], Any],
    give: Callable[[Any], Any],
    turns: int,
    hold: tuple[float, float],
) -> list[float]:
    """Hold the lock `turns` times, alternating with the other process. Return the milliseconds of each hand-over to
    `me`.
    """
    took: list[float] = []
    for turn in range(turns):
        held = take()
        stage.begin(me, turn, perf_counter(), took)
        time.sleep(random.uniform(*hold))
        stage.released.value = perf_counter()
        give(held)
        until = perf_counter() + HANDOVER_TIMEOUT
        while turn < turns - 1 and stage.waits(me, until):
            time.sleep(POLL_SECONDS)
    return took


async def take_turns_async(
    stage: SharedState, me: int, stay: Backstay, turns: int, hold: tuple[float, float]
) -> list[float]:
    """Do the same as `take_turns` with the async API. It is a copy, because a shared wrapper would be measured, too."""
    took: list[float] = []
    for turn in range(turns):
        held = await stay.lock(NAME, ttl=TTL).acquire()
        stage.begin(me, turn, perf_counter(), took)
        await asyncio.sleep(random.uniform(*hold))
        stage.released.value = perf_counter()
        await held.release()
        until = perf_counter() + HANDOVER_TIMEOUT
        while turn < turns - 1 and stage.waits(me, until):  # noqa: ASYNC110 - the event is in another process
            await asyncio.sleep(POLL_SECONDS)
    return took


@contextmanager
def backstay_blocking(url: str, stage: SharedState, me: int) -> Iterator[Any]:
    with BlockingBackstay(url) as stay:
        yield partial(take_turns, stage, me, lambda: stay.lock(NAME, ttl=TTL).acquire(), BlockingLease.release)


@contextmanager
def backstay_async(url: str, stage: SharedState, me: int) -> Iterator[Any]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stay = runner.run(Backstay(url).open())
        yield lambda *request: runner.run(take_turns_async(stage, me, stay, *request))
        runner.run(stay.close())


@contextmanager
def python_redis_lock(url: str, stage: SharedState, me: int) -> Iterator[Any]:
    with redis.Redis.from_url(url) as client:

        def take() -> redis_lock.Lock:
            lock = redis_lock.Lock(client, NAME, expire=TTL)
            lock.acquire()
            return lock

        yield partial(take_turns, stage, me, take, redis_lock.Lock.release)


@contextmanager
def redis_py(url: str, stage: SharedState, me: int) -> Iterator[Any]:
    with redis.Redis.from_url(url) as client:

        def take() -> Any:
            lock = client.lock(f"{NAME}:polled", timeout=TTL)  # polls every 0.1 s, its default
            lock.acquire()
            return lock

        yield partial(take_turns, stage, me, take, Lock.release)


CONTENDERS = {
    "Backstay, blocking": (backstay_blocking, PUSHED),
    "Backstay, async": (backstay_async, PUSHED),
    "python-redis-lock": (python_redis_lock, PUSHED),
    "redis-py": (redis_py, POLLED),
}


class AlternatingPair:
    """Two processes that hand one lock to each other, with the interface of one `ContenderProcess`."""

    def __init__(self, contender: Any, hold: tuple[float, float], url: str) -> None:
        self._stage = SharedState()
        self._hold = hold
        self._sides = [ContenderProcess(contender, url, self._stage, me) for me in (0, 1)]

    def call(self, handovers: int) -> list[float]:
        self._stage.holder.value = -1
        for side in self._sides:
            side.send(handovers // 2 + 1, self._hold)
        return [took for side in self._sides for took in side.receive()]

    def close(self) -> None:
        for side in self._sides:
            side.__exit__()


def handover(bench: Bench) -> list[Row]:
    rounds, handovers = bench.pick((5, 60), (2, 20))
    pairs = {name: AlternatingPair(contender, hold, bench.url) for name, (contender, hold) in CONTENDERS.items()}
    try:
        slices = bench.interleave("hand-over", pairs, rounds, handovers)
    finally:
        for pair in pairs.values():
            pair.close()
    took = {name: [ms for part in parts for ms in part] for name, parts in slices.items()}
    rows = []
    # python-redis-lock is blocking. The blocking API must be clearly faster (0.8×); the async API, which also pays for
    # the event loop, must not be slower (1×).
    for ours, most in (("Backstay, blocking", 0.8), ("Backstay, async", 1.0)):
        api = ours.rpartition(" ")[2]
        rows += [
            _row(f"hand-over p50, {api}", took, ours, "python-redis-lock", 50, most=most),
            _row(f"hand-over p99, {api}", took, ours, "python-redis-lock", 99),
            _row(f"hand-over p50, {api}", took, ours, "redis-py", 50, faster=30),
        ]
    return rows


def _row(
    measure: str,
    took: dict[str, list[float]],
    ours: str,
    peer: str,
    percent: int,
    *,
    most: float = 0,
    faster: float = 0,
) -> Row:
    mine, other = percentile(took[ours], percent), percentile(took[peer], percent)
    row = Row(measure, f"{mine:.2f} ms", f"{peer} {other:.2f} ms", mine / other)
    row.detail = {"handovers": len(took[ours]), "peer handovers": len(took[peer]), "ms": mine, "peer ms": other}
    if most:
        row.target, row.met = f"≤ {most:g}× and < 1 ms", mine / other <= most and mine < 1
    elif faster:
        row.ratio = other / mine
        row.target, row.met = f"{faster:g}× faster", row.ratio >= faster
    return row
