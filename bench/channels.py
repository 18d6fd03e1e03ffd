"""From publish to a listener's hands, in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import uvloop
from bench.harness import Bench, Row, Worker, percentile

from backstay import Backstay
from backstay.testing.postgres import PostgresServer

CHANNEL = "bench"
#: Between two messages: each finds both processes asleep, as a hint does in service.
PAUSE = 0.01


@contextmanager
def listening(url: str) -> Iterator[Any]:
    """Answers how long each message took, in ms; the payload says when it was published."""

    async def hear(stay: Backstay, count: int) -> list[float]:
        took = []
        async with stay.hub.listen(CHANNEL) as messages:
            while len(took) < count and (message := await messages.next(timeout=5)):
                took.append((perf_counter() - float(message.payload)) * 1000)
        return took

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stay = runner.run(Backstay(url).open())
        yield lambda count: runner.run(hear(stay, count))
        runner.run(stay.close())


@contextmanager
def publishing(url: str) -> Iterator[Any]:
    async def tell(stay: Backstay, count: int) -> None:
        await asyncio.sleep(0.3)  # until the other one listens
        for _ in range(count):
            await asyncio.sleep(PAUSE)
            await stay.hub.publish(CHANNEL, repr(perf_counter()))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stay = runner.run(Backstay(url).open())
        yield lambda count: runner.run(tell(stay, count))
        runner.run(stay.close())


def _row(bench: Bench, what: str, url: str, most: float) -> Row:
    count = bench.pick(300, 60)
    bench.say(f"publish to callback, {what}")
    with Worker(listening, url) as ears, Worker(publishing, url) as mouth:
        ears.tell(count)
        mouth.tell(count)
        mouth.answer()
        took = ears.answer()
    p50, p99 = percentile(took, 50), percentile(took, 99)
    row = Row(f"publish → callback p50, {what}", f"{p50:.2f} ms (p99 {p99:.2f})", "–")
    row.target, row.met = f"< {most:g} ms", p50 < most and len(took) == count
    row.detail = {"heard": len(took), "sent": count, "p50 ms": p50, "p99 ms": p99}
    return row


def channels(bench: Bench) -> list[Row]:
    rows = [_row(bench, "Redis", bench.url, 1)]
    with PostgresServer() as server:
        rows.append(_row(bench, "PostgreSQL", server.url, 3))
    return rows
