"""Eight processes hit one limit as fast as they can. In any trailing window of the engine's clock, the number of
admitted hits stays within the bound of the algorithm; for `sliding`, which is exact, the bound is the limit itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from bisect import bisect_right
from pathlib import Path

import pytest

#: `timed`: the processes must be fast enough to use up the limit.
pytestmark = [pytest.mark.race, pytest.mark.slow, pytest.mark.redis, pytest.mark.timed]

LIMIT, WINDOW = 100, 1_000_000
PROCESSES, SECONDS = 8, 3.2
#: The documented bounds: the most hits that any trailing second may admit.
BOUNDS = {
    "sliding": LIMIT,
    "fixed": 2 * LIMIT,
    "sliding-counter": 2 * LIMIT - 1,
    "token-bucket": 2 * LIMIT,
    "gcra": 2 * LIMIT,
}


def burst(url, namespace, algorithm):
    """Run the processes and return the times of all admitted hits, in order."""
    program = [sys.executable, str(Path(__file__).with_name("limit_burster.py"))]
    args = [url, namespace, algorithm, f"{LIMIT}/second", str(SECONDS)]
    processes = [
        subprocess.Popen([*program, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        results = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return sorted(time for times in results for time in times)


def worst(times):
    """Return the largest number of hits in any trailing window (at - WINDOW, at]."""
    return max(nth + 1 - bisect_right(times, at - WINDOW) for nth, at in enumerate(times))


@pytest.mark.parametrize("algorithm", BOUNDS)
def test_no_trailing_second_holds_more_than_the_bound(backstay_redis, namespace, algorithm, record_property):
    times = burst(backstay_redis.url, namespace, algorithm)
    most = worst(times)
    bound = f"bound {BOUNDS[algorithm]} at {LIMIT}/s"
    record_property("measured", f"{algorithm}: {most} admitted in the worst trailing second, {bound}")
    assert most <= BOUNDS[algorithm]
    assert len(times) >= 2 * LIMIT  # the processes were fast enough to use up the limit


@pytest.mark.postgres
def test_no_trailing_second_holds_more_than_the_bound_on_postgres(backstay_postgres, namespace):
    times = burst(backstay_postgres.url, namespace, "sliding")
    assert worst(times) <= LIMIT
    assert len(times) >= LIMIT


def test_no_trailing_second_holds_more_than_the_bound_on_sqlite(tmp_path, namespace):
    times = burst(f"sqlite:///{tmp_path}/burst.db?synchronous=normal", namespace, "sliding")
    assert worst(times) <= LIMIT
    assert len(times) >= LIMIT
