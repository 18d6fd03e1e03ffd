"""Measure the HTTP API on SQLite with `synchronous=FULL`: jobs claimed and completed per second, the time from a job's
end to the start of the next one, and log lines per second from a worker to a reader.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.harness import Bench, Row, percentile
from bench.http_client import connect, database, serving
from bench.http_logs import measure_log_stream
from bench.http_workers import measure_claims

from backstay import Backstay, Flow
from backstay.job.worker.blocking import new_loop

WORKERS, LINKS = 8, 40
LEAST_JOBS, LEAST_LINES, MOST_MS = 1000, 20_000, 20.0


async def edges(url: str, runs: int) -> list[float]:
    """Return the milliseconds from the completion of each job in a chain until a worker has claimed the next one."""
    took: list[float] = []
    ends: dict[tuple[str, str], float] = {}

    async def work(port: int, name: str) -> None:
        connection = await connect(port)
        wish: dict[str, Any] = {"worker_id": name, "queues": ["default"], "wait_secs": 2}
        while (found := await connection.post("/api/jobs/claim", wish)) is not None:
            now = time.perf_counter()
            run = found["job"]["run_id"]
            took.extend((now - ends[run, parent]) * 1000 for parent in found["job"]["upstream_outputs"])
            ends[run, found["job"]["job_id"]] = time.perf_counter()
            await connection.post(f"/api/jobs/{found['lease']['lease_id']}/complete", {"outputs": {"a": "b"}})
        connection.close()

    async with Backstay(url) as stay, serving(url) as server:

        @stay.job(name="link")
        async def link() -> None: ...

        @stay.workflow
        def chained(flow: Flow) -> None:
            last = flow.add(link, key="0")
            for place in range(1, LINKS):
                last = flow.add(link, key=str(place), after=last)

        for _ in range(runs):
            await chained.start()
        await asyncio.gather(*[work(server.port, f"w{n}") for n in range(runs + 1)])
    assert len(took) == runs * (LINKS - 1)
    return took


def http(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    with asyncio.Runner(loop_factory=new_loop) as runner:
        bench.report("HTTP: claim and complete")
        with database() as url:
            done = runner.run(measure_claims(url, WORKERS, bench.pick(10_000, 2000)))
        rows.append(
            Row(
                f"claim and complete over HTTP, {WORKERS} workers",
                f"{done.sample.rate:,.0f}/s, {done.sample.cpu_us:.0f} µs CPU of the server,"
                f" p50 {percentile(done.waits, 50):.1f} ms",
                target=f"≥ {LEAST_JOBS:,}/s",
                met=done.sample.rate >= LEAST_JOBS,
                detail=done.sample._asdict(),
            )
        )
        bench.report("HTTP: edges")
        with database() as url:
            took = runner.run(edges(url, bench.pick(3, 1)))
        middle = percentile(took, 50)
        rows.append(
            Row(
                "time from a job's end to the next one's start, HTTP",
                f"p50 {middle:.2f} ms, p99 {percentile(took, 99):.2f} ms",
                target=f"< {MOST_MS:g} ms",
                met=middle < MOST_MS,
                detail={"p50": middle},
            )
        )
        bench.report("HTTP: logs")
        with database() as url:
            lines = runner.run(measure_log_stream(url, bench.pick(200_000, 30_000)))
        rows.append(
            Row(
                "log lines from worker to reader over HTTP, complete and in order",
                f"{lines.rate:,.0f}/s, {lines.cpu_us:.1f} µs CPU of the server",
                target=f"≥ {LEAST_LINES:,}/s",
                met=lines.rate >= LEAST_LINES,
                detail=lines._asdict(),
            )
        )
    return rows
