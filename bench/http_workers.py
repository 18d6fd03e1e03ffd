"""Measure claim and complete over HTTP: one server process, workers with one keep-alive connection each.

python -m bench.http_workers --url sqlite:///bench.db --workers 8 --jobs 5000
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import NamedTuple

from bench.cpu import cpu_seconds
from bench.harness import Sample, percentile
from bench.http_client import Serving, connect, database, serving

from backstay import Backstay
from backstay.job.worker.blocking import new_loop


class ClaimTimes(NamedTuple):
    """The rate of jobs with the server's CPU, and for each job the milliseconds from its claim request to its end."""

    sample: Sample
    waits: list[float]


async def work(port: int, name: str, waits: list[float]) -> int:
    connection = await connect(port)
    done = 0
    while True:
        began = time.perf_counter()
        found = await connection.post("/api/jobs/claim", {"worker_id": name, "queues": ["default"]})
        if found is None:
            connection.close()
            return done
        await connection.post(f"/api/jobs/{found['lease']['lease_id']}/complete", {"outputs": {}})
        waits.append((time.perf_counter() - began) * 1000)
        done += 1


async def measure_claims(url: str, workers: int, jobs: int) -> ClaimTimes:
    async with Backstay(url) as stay:

        @stay.job(name="nothing")
        async def nothing(n: int) -> None: ...

        await nothing.enqueue_many([(n,) for n in range(jobs)])
    async with serving(url) as server:
        return await _drain(server, workers, jobs)


async def _drain(server: Serving, workers: int, jobs: int) -> ClaimTimes:
    waits: list[float] = []
    before, began = cpu_seconds(server.pid), time.perf_counter()
    counts = await asyncio.gather(*[work(server.port, f"w{n}", waits) for n in range(workers)])
    seconds, cpu = time.perf_counter() - began, cpu_seconds(server.pid) - before
    assert sum(counts) == jobs
    return ClaimTimes(Sample(jobs, seconds, cpu), waits)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--url", default="")
    options.add_argument("--workers", type=int, default=8)
    options.add_argument("--jobs", type=int, default=5000)
    given = options.parse_args()
    with database() as url, asyncio.Runner(loop_factory=new_loop) as runner:
        found = runner.run(measure_claims(given.url or url, given.workers, given.jobs))
    print(
        f"{found.sample.rate:,.0f} jobs/s claimed and completed over HTTP by {given.workers} workers; server CPU"
        f" {found.sample.cpu_us:,.0f} µs/job; p50 {percentile(found.waits, 50):.1f} ms,"
        f" p99 {percentile(found.waits, 99):.1f} ms"
    )


if __name__ == "__main__":
    main()
