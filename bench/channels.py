"""Measure the time from a publish until a listener in another process receives the message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import uvloop
from bench.harness import Bench, ContenderProcess, Row, percentile

from backstay import Backstay
from backstay.testing.servers.postgres import PostgresServer

CHANNEL = "bench"
#: Seconds between two messages. They are so rare that both processes are asleep before each, as in production.
PAUSE = 0.01


@contextmanager
def listening(url: str) -> Iterator[Any]:
    """Yield a function that receives `count` messages and returns the milliseconds that each took. A message's payload
    is the time of its publish.
    """

    async def listen(stay: Backstay, count: int) -> list[float]:
        took = []
        async with stay.hub.listen(CHANNEL) as messages:
            while len(took) < count and (message := await messages.next(timeout=5)):
                took.append((perf_counter() - float(message.payload)) * 1000)
        return took

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stay = runner.run(Backstay(url).open())
        yield lambda count: runner.run(listen(stay, count))
        runner.run(stay.close())


@contextmanager
def publishing(url: str) -> Iterator[Any]:
    async def publish(stay: Backstay, count: int) -> None:
        await asyncio.sleep(0.3)  # time for the listener to subscribe
        for _ in range(count):
            await asyncio.sleep(PAUSE)
            await stay.hub.publish(CHANNEL, repr(perf_counter()))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stay = runner.run(Backstay(url).open())
        yield lambda count: runner.run(publish(stay, count))
        runner.run(stay.close())


def _row(bench: Bench, what: str, url: str, most: float) -> Row:
    count = bench.pick(300, 60)
    bench.report(f"publish to callback, {what}")
    with ContenderProcess(listening, url) as listener, ContenderProcess(publishing, url) as publisher:
        listener.send(count)
        publisher.send(count)
        publisher.receive()
        took = listener.receive()
    p50, p99 = percentile(took, 50), percentile(took, 99)
    row = Row(f"publish → callback p50, {what}", f"{p50:.2f} ms (p99 {p99:.2f})", "–")
    row.target, row.met = f"< {most:g} ms", p50 < most and len(took) == count
    row.detail = {"received": len(took), "sent": count, "p50 ms": p50, "p99 ms": p99}
    return row


def channels(bench: Bench) -> list[Row]:
    rows = [_row(bench, "Redis", bench.url, 1)]
    with PostgresServer() as server:
        rows.append(_row(bench, "PostgreSQL", server.url, 3))
    return rows
