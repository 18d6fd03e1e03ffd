"""Measure the time to import Backstay, beside redis.asyncio. The time of an interpreter that imports nothing is
subtracted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from time import perf_counter

from bench.harness import Bench, Row

MOST = 0.150


def _time_program(program: str) -> float:
    began = perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return perf_counter() - began


def startup(bench: Bench) -> list[Row]:
    """Measure the imports. `import backstay` loads names only when they are used, so `from backstay import Backstay` is
    what a real program pays.
    """
    runs = bench.pick(10, 4)
    programs = ("import backstay", "from backstay import Backstay", "import redis.asyncio")
    took: dict[str, list[float]] = {program: [] for program in programs}
    for program in programs:
        _time_program(program)  # warm-up: fill the page cache, write bytecode
    for run in range(runs):
        bench.report(f"import, {run + 1} of {runs}")
        bare = _time_program("pass")
        for program in programs:
            took[program].append(_time_program(program) - bare)
    *ours, peer = (statistics.median(took[program]) for program in programs)
    return [
        Row(
            program,
            f"{mine * 1000:.0f} ms",
            f"redis.asyncio {peer * 1000:.0f} ms",
            mine / peer,
            f"< {most * 1000:.0f} ms" if most else "–",
            mine < most if most else None,
            {"ms": [round(t * 1000, 1) for t in took[program]]},
        )
        for program, mine, most in zip(programs, ours, (MOST, None), strict=False)
    ]
