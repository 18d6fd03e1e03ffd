"""The program that runs one contender in its own interpreter: `python -m bench.queues.stage CONTENDER ROLE URL …`. It
imports only the standard library and that contender.

A contender is a module with two functions. `open(url)` yields `one(t0)` and `many(t0, n)`, which enqueue jobs that
record when they start. `work(url, how)` runs a worker until it is terminated; `WAYS` lists the possible values of
`how`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from time import perf_counter
from typing import Any

One = Callable[[float], Awaitable[None]]
Many = Callable[[float, int], Awaitable[None]]
Producer = AbstractAsyncContextManager[tuple[One, Many | None]]

TASKS = 100
BULK = 100
RECORD = struct.Struct("dd")
#: The file to which jobs write the times of their enqueue and their start.
FILE = os.environ.get("BENCH_RECORD", "")
_file = -1


def record(t0: float) -> None:
    """The job of every contender: append the times of its enqueue and its start to a file, which takes about 2 µs."""
    global _file  # noqa: PLW0603 - opened once in whichever process or thread runs the first job
    if _file < 0:
        _file = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(_file, RECORD.pack(t0, perf_counter()))


def count_records() -> int:
    return Path(FILE).stat().st_size // RECORD.size if Path(FILE).exists() else 0


def run(coro: Coroutine[Any, Any, Any]) -> Any:
    import uvloop

    return uvloop.run(coro)


async def enqueue(producer: Producer, way: str, n: int) -> dict[str, float]:
    """Enqueue `n` jobs: one after another, from 100 concurrent tasks, or in bulk."""
    async with producer as (one, many):
        await one(perf_counter())
        began, cpu = perf_counter(), time.process_time()
        if way == "one":
            for _ in range(n - 1):
                await one(perf_counter())
        elif way == "tasks" or many is None:

            async def several(count: int) -> None:
                for _ in range(count):
                    await one(perf_counter())

            await asyncio.gather(*[several((n - 1 + i) // TASKS) for i in range(TASKS)])
        else:
            await many(perf_counter(), n - 1)
        return {"count": n - 1, "seconds": perf_counter() - began, "cpu": time.process_time() - cpu}


async def latency(producer: Producer, n: int) -> None:
    """Enqueue one job at a time for an idle worker. The pauses between them are random, so that they are not in step
    with a contender's polling.
    """
    async with producer as (one, _):
        for _ in range(n):
            seen = count_records()
            await one(perf_counter())
            ends = perf_counter() + 30
            while count_records() <= seen:
                await asyncio.sleep(0.001)
                if perf_counter() > ends:
                    raise TimeoutError("a job was not run within 30 s")
            await asyncio.sleep(random.uniform(0.005, 0.03))


def main() -> None:
    name, role, url, *rest = sys.argv[1:]
    contender = importlib.import_module(f"bench.queues.{name}")
    if role == "work":
        contender.work(url, rest[0])
    elif role == "enqueue":
        print(json.dumps(run(enqueue(contender.open(url), rest[0], int(rest[1])))), flush=True)
        os._exit(0)  # do not wait for threads of the client
    elif role == "latency":
        run(latency(contender.open(url), int(rest[0])))
        os._exit(0)
    elif role == "reset":
        run(contender.reset(url))


if __name__ == "__main__":
    main()
