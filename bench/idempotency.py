"""Measure the replay of a completed idempotency key, beside a plain Redis GET of as many bytes over the same kind of
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import uvloop
from bench.harness import Bench, ContenderProcess, Row, Sample, compare
from bench.pairs import spin_tasks

from backstay import Backstay
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.protocol import pack

#: A receipt of some hundred bytes, like an endpoint's response.
RECEIPT = {"receipt": 42, "lines": ["an article and its price"] * 10}
#: The target: a replay takes at most 1.5 times as long as a GET, here as a ratio of rates.
LEAST = 1 / 1.5


@contextmanager
def replays(url: str, tasks: int) -> Iterator[object]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stay = runner.run(Backstay(url, namespace="bench").open())

        async def charge() -> dict[str, Any]:
            return RECEIPT

        async def replay(name: str) -> None:
            await stay.idempotency.run(name, charge)

        yield lambda seconds: spin_tasks(runner, replay, tasks, seconds)
        runner.run(stay.close())


@contextmanager
def gets(url: str, tasks: int) -> Iterator[object]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stay = runner.run(Backstay(url, namespace="bench").open())
        link = cast("RedisEngine", stay.engine)._link  # noqa: SLF001 - the connection that the engine itself uses
        assert link is not None  # `open` has connected it
        runner.run(_send(link, pack("SET", "bench:plain", b"x" * 300)))

        async def get(_: str) -> None:
            await link.send(pack("GET", "bench:plain"))

        yield lambda seconds: spin_tasks(runner, get, tasks, seconds)
        runner.run(stay.close())


async def _send(link, request):  # noqa: ANN001, ANN202 - awaits a future of the link
    return await link.send(request)


def idempotency(bench: Bench) -> list[Row]:
    rounds, seconds = bench.pick((9, 0.7), (3, 0.4))
    rows = []
    for tasks in (1, 100):
        what = f"replay of a completed key, {tasks} task{'s' if tasks > 1 else ''}"
        with ContenderProcess(replays, bench.url, tasks) as ours, ContenderProcess(gets, bench.url, tasks) as plain:
            slices = bench.interleave(what, {"Backstay": ours, "GET": plain}, rounds, seconds)
        samples: dict[str, list[Sample]] = slices
        row = compare(what, samples["Backstay"], "plain GET", samples["GET"], LEAST)
        # The target is about the latency of one caller; many tasks show the client's CPU cost.
        rows.append(row if tasks == 1 else replace(row, target="–", met=None))
    return rows
