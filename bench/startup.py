"""What `import holdfast` costs, beside an interpreter that imports nothing."""

from __future__ import annotations

import statistics
import subprocess
import sys
from time import perf_counter

from bench.harness import Bench, Row

MOST = 0.150


def _timed(program: str) -> float:
    began = perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return perf_counter() - began


def startup(bench: Bench) -> list[Row]:
    runs = bench.pick(10, 4)
    ours, peer = [], []
    _timed("import holdfast, redis.asyncio")  # files in the page cache, bytecode written
    for run in range(runs):
        bench.say(f"import, {run + 1} of {runs}")
        bare = _timed("pass")
        ours.append(_timed("import holdfast") - bare)
        peer.append(_timed("import redis.asyncio") - bare)
    took, other = statistics.median(ours), statistics.median(peer)
    return [
        Row(
            "import holdfast",
            f"{took * 1000:.0f} ms",
            f"redis.asyncio {other * 1000:.0f} ms",
            took / other,
            f"< {MOST * 1000:.0f} ms",
            took < MOST,
            {"ms": [round(t * 1000, 1) for t in ours]},
        )
    ]
