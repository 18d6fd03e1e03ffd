"""Measure fairness: ten processes contend for one lock. How long does each wait, and how many commands does a grant
cost?
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import redis
import redis_lock
from bench.harness import Bench, ContenderProcess, Row

from backstay.sync import Backstay

CONTENDERS, HOLD, NAME, TTL = 10, 0.02, "fairness", 30
#: Commands that the lock's Lua scripts call. The server counts them, too, but no client sends them.
INNER = {"time", "get", "set", "publish"}

#: The times at which a contender requested the lock and got it.
Grants = list[tuple[float, float]]


def contend(take: Callable[[], Any], give: Callable[[Any], Any], begin: float, seconds: float) -> Grants:
    time.sleep(max(0.0, begin - perf_counter()))
    grants = []
    while (asked := perf_counter()) < begin + seconds:
        held = take()
        grants.append((asked, perf_counter()))
        time.sleep(HOLD)
        give(held)
    return grants


@contextmanager
def backstay(url: str) -> Iterator[Callable[[float, float], Grants]]:
    with Backstay(url) as stay:
        take = stay.lock(NAME, ttl=TTL).acquire
        yield lambda begin, seconds: contend(take, lambda lease: lease.release(), begin, seconds)


@contextmanager
def python_redis_lock(url: str) -> Iterator[Callable[[float, float], Grants]]:
    with redis.Redis.from_url(url) as client:

        def take() -> redis_lock.Lock:
            lock = redis_lock.Lock(client, NAME, expire=TTL)
            lock.acquire()
            return lock

        yield lambda begin, seconds: contend(take, lambda lock: lock.release(), begin, seconds)


class FairnessResult(NamedTuple):
    """The result of one contender. `ideal`: the longest wait if the lock went round robin, that is, the number of
    processes times the median time from one grant to the next.
    """

    longest: float
    ideal: float
    counts: list[int]
    commands: dict[str, int]
    granted: int

    @property
    def spread(self) -> int:
        return max(self.counts) - min(self.counts)

    @property
    def per_grant(self) -> float:
        return sum(self.commands.values()) / self.granted


def run(bench: Bench, contender: Any, seconds: float) -> FairnessResult:
    with ExitStack() as stack:
        workers = [stack.enter_context(ContenderProcess(contender, bench.url)) for _ in range(CONTENDERS)]
        for worker in workers:
            worker.call(0.0, 0.0)  # wait until it is started and connected
        client = stack.enter_context(bench.client())
        begin = perf_counter() + 0.2
        for worker in workers:
            worker.send(begin, seconds)
        # The first second is not measured: connections and subscriptions are opened, and the queue forms.
        since, until = begin + 1, begin + seconds - 0.2
        time.sleep(max(0.0, since - perf_counter()))
        before, counted_from = commands(client), perf_counter()
        time.sleep(max(0.0, until - perf_counter()))
        after, counted_to = commands(client), perf_counter()
        grants = [worker.receive() for worker in workers]
    sent = {name: calls - before.get(name, 0) for name, calls in after.items()}
    starts = sorted(granted for mine in grants for _, granted in mine)
    cycle = statistics.median(b - a for a, b in pairwise(s for s in starts if since <= s < until))
    # A wait that began before the end of the measurement counts, even if it ended later, so that starvation shows.
    waits = [granted - asked for mine in grants for asked, granted in mine if granted >= since and asked < until]
    return FairnessResult(
        longest=max(waits),
        ideal=CONTENDERS * cycle,
        counts=[sum(since <= granted < until for _, granted in mine) for mine in grants],
        commands={name: calls for name, calls in sent.items() if calls and name not in (INNER | {"info"})},
        granted=sum(counted_from <= s < counted_to for s in starts),
    )


def commands(client: redis.Redis) -> dict[str, int]:
    """Return how often each command was called since the server's start, including calls from scripts."""
    stats: dict[str, Any] = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): figures["calls"] for name, figures in stats.items()}


def fairness(bench: Bench) -> list[Row]:
    seconds = bench.pick(7.0, 3.0)
    bench.report(f"fairness: Backstay, {CONTENDERS} processes for {seconds:g} s")
    ours = run(bench, backstay, seconds)
    bench.report(f"fairness: python-redis-lock, {CONTENDERS} processes for {seconds:g} s")
    theirs = run(bench, python_redis_lock, seconds)
    calls = ", ".join(f"{name} {count}" for name, count in sorted(ours.commands.items()))
    return [
        Row(
            "longest wait, 10 processes (ideal: 10 × median cycle)",
            f"{ours.longest * 1000:.0f} ms, {ours.longest / ours.ideal:.2f}× ideal",
            f"python-redis-lock {theirs.longest * 1000:.0f} ms",
            ours.longest / theirs.longest,
            "≤ 1.25× ideal",
            ours.longest <= 1.25 * ours.ideal,
            {"ideal ms": ours.ideal * 1000, "peer ideal ms": theirs.ideal * 1000},
        ),
        Row(
            "grants of the most and the least served process",
            f"{max(ours.counts)} and {min(ours.counts)}",
            f"python-redis-lock {max(theirs.counts)} and {min(theirs.counts)}",
            None,
            "differ by ≤ 1",
            ours.spread <= 1,
            {"backstay": ours.counts, "python-redis-lock": theirs.counts},
        ),
        Row(
            "commands per grant, 10 processes",
            f"{ours.per_grant:.2f} ({calls})",
            "–",
            None,
            "≤ 4",
            ours.per_grant <= 4,
            {"grants": ours.granted, "counted": ours.commands, "not counted (inside scripts)": sorted(INNER)},
        ),
    ]
