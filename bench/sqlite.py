"""Measure SQLite: pairs per second in one process, and how fairly three processes share one file."""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.harness import Bench, ContenderProcess, Row
from bench.pairs import backstay_tasks

TASKS, LEAST = 100, 5000
PROCESSES, SHARE = 3, 0.5


def sqlite(bench: Bench) -> list[Row]:
    rounds, seconds = bench.pick((5, 1.0), (2, 0.5))
    with tempfile.TemporaryDirectory(prefix="backstay-bench-") as folder, ExitStack() as stack:
        url = f"sqlite:///{Path(folder) / 'bench.db'}?synchronous=normal"
        workers = [stack.enter_context(ContenderProcess(backstay_tasks, url, TASKS)) for _ in range(PROCESSES)]
        alone = bench.interleave("SQLite, one process", {"Backstay": workers[0]}, rounds, seconds)["Backstay"]
        bench.report(f"SQLite, {PROCESSES} processes")
        for worker in workers:
            worker.call(0.1)
        for worker in workers:
            worker.send(seconds * 3)
        shared = [worker.receive() for worker in workers]
    rate = statistics.median(sample.rate for sample in alone)
    cpu = statistics.median(sample.cpu_us for sample in alone)
    share = min(s.rate for s in shared) / max(s.rate for s in shared)
    return [
        Row(
            f"SQLite pairs, {TASKS} tasks, synchronous=normal",
            f"{rate:,.0f}/s, {cpu:.0f} µs CPU",
            target=f"≥ {LEAST:,}/s",
            met=rate >= LEAST,
            detail={"rates": [round(sample.rate) for sample in alone]},
        ),
        Row(
            f"SQLite, {PROCESSES} processes: least / most served process",
            f"{share:.2f} ({', '.join(f'{s.rate:,.0f}/s' for s in shared)})",
            target=f"≥ {SHARE:g}",
            met=share >= SHARE,
            detail={"rates": [round(s.rate) for s in shared]},
        ),
    ]
