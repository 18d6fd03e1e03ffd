"""Measure the time from `enqueue` until `result()` returns, with an idle worker in another process.

The caller begins to wait at once, so it changes the job's record at the moment in which the worker claims the job. A
worker that then missed the job would start it only at its next poll: the longest time shows that.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import uvloop
from bench.harness import Bench, ContenderProcess, Row, percentile

from backstay import Backstay, sync
from backstay.testing.servers.postgres import PostgresServer

#: Less than the poll interval of a worker (2.5 s), in milliseconds.
LONGEST = 1000.0
#: Seconds between a result and the next job: the worker is idle again.
PAUSE = 0.002


@contextmanager
def working(url: str) -> Iterator[Any]:
    """Run a worker until the process ends. Yields a function that does nothing."""
    stay = sync.Backstay(url)

    @stay.job(name="echo")
    def echo(n: int) -> int:
        return n

    with stay:
        worker = stay.worker(concurrency=4, signals=False)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        yield lambda: None
        worker.stop()
        thread.join()


@contextmanager
def on_a_loop(url: str) -> Iterator[Any]:
    """Yield a function that enqueues `count` jobs one after another, and returns the milliseconds until each result."""
    stay = Backstay(url)

    @stay.job(name="echo")
    async def echo(n: int) -> int:
        return n

    async def run(count: int) -> list[float]:
        took = []
        for n in range(count):
            began = perf_counter()
            assert await (await echo.enqueue(n)).result(timeout=60) == n
            took.append((perf_counter() - began) * 1000)
            await asyncio.sleep(PAUSE)
        return took

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(stay.open())
        yield lambda count: runner.run(run(count))
        runner.run(stay.close())


@contextmanager
def on_a_thread(url: str) -> Iterator[Any]:
    """The same with the blocking API."""
    stay = sync.Backstay(url)

    @stay.job(name="echo")
    def echo(n: int) -> int:
        return n

    pause = threading.Event()

    def run(count: int) -> list[float]:
        took = []
        for n in range(count):
            began = perf_counter()
            assert echo.enqueue(n).result(timeout=60) == n
            took.append((perf_counter() - began) * 1000)
            pause.wait(PAUSE)
        return took

    with stay:
        yield run


def _rows(bench: Bench, what: str, url: str) -> list[Row]:
    count = bench.pick(1000, 200)
    rows: list[Row] = []
    with ContenderProcess(working, url) as worker:
        worker.call()
        for api, caller in (("async", on_a_loop), ("blocking", on_a_thread)):
            bench.report(f"enqueue to result, {api}, {what}")
            with ContenderProcess(caller, url) as process:
                process.call(20)
                took: list[float] = process.call(count)
            found = {"p50": percentile(took, 50), "p99": percentile(took, 99), "longest": max(took)}
            shown = f"{found['p50']:.2f} ms (p99 {found['p99']:.2f}, longest {found['longest']:.1f})"
            row = Row(f"enqueue → result p50, {api}, {what}", shown, detail={**found, "jobs": count})
            row.target, row.met = f"longest < {LONGEST:g} ms", found["longest"] < LONGEST
            rows.append(row)
    return rows


def results(bench: Bench) -> list[Row]:
    """Measure all engines: SQLite and PostgreSQL wait for the disk, as in production."""
    with tempfile.TemporaryDirectory(prefix="backstay-bench-") as folder:
        rows = _rows(bench, "SQLite", f"sqlite:///{Path(folder) / 'bench.db'}")
    with PostgresServer(settings={"fsync": "on", "full_page_writes": "on"}) as server:
        rows += _rows(bench, "PostgreSQL", server.url)
    return rows + _rows(bench, "Redis", bench.url)
