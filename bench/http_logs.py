"""Measure a job's log over HTTP: a worker sends lines in batches, and a reader follows the stream. The reader checks
that all lines arrive in order.

python -m bench.http_logs --lines 50000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

from bench.cpu import cpu_seconds
from bench.harness import Sample
from bench.http_client import connect, database, serving

from backstay import Backstay
from backstay.job.worker.blocking import new_loop

BATCH = 1000


def text(n: int) -> str:
    return f"line {n} of a log\n"


async def follow(port: int, job: str, lines: int) -> float:
    """Follow the log until all lines have arrived, and return the time of the last one. Check the order of the lines by
    their sequence numbers and texts.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    path = f"/api/workflows/-/jobs/{job}/logs/stream"
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    seen = 0
    while seen < lines:
        line = await reader.readline()
        assert line, f"the stream ended after {seen} of {lines} lines"
        if line.startswith(b"id: "):
            assert int(line[4:]) == seen, (line, seen)
        elif line.startswith(b"data: "):
            assert json.loads(line[6:])["data"] == text(seen), (line, seen)
            seen += 1
    writer.close()
    return time.perf_counter()


async def measure_log_stream(url: str, lines: int) -> Sample:
    async with Backstay(url) as stay:
        job = (await stay.jobs.enqueue("talk", {}, queue="default", retries=0)).id
    async with serving(url) as server:
        worker = await connect(server.port)
        found = await worker.post("/api/jobs/claim", {"worker_id": "w", "queues": ["default"]})
        lease = found["lease"]["lease_id"]
        reads = asyncio.create_task(follow(server.port, job, lines))
        before, began = cpu_seconds(server.pid), time.perf_counter()
        for first in range(0, lines, BATCH):
            chunks = [{"sequence": n, "data": text(n), "timestamp_ms": n} for n in range(first, first + BATCH)]
            await worker.post(f"/api/jobs/{lease}/logs", {"chunks": chunks})
        seconds = await reads - began
        cpu = cpu_seconds(server.pid) - before
        worker.close()
    return Sample(lines, seconds, cpu)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--url", default="")
    options.add_argument("--lines", type=int, default=50_000)
    given = options.parse_args()
    with database() as url, asyncio.Runner(loop_factory=new_loop) as runner:
        found = runner.run(measure_log_stream(given.url or url, given.lines))
    print(f"{found.rate:,.0f} lines/s from worker to reader over HTTP; server CPU {found.cpu_us:,.1f} µs/line")


if __name__ == "__main__":
    main()
