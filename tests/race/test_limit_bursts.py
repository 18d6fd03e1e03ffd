"""Eight processes hit one limit as fast as they can. What is admitted in any trailing window, by the engine's clock,
stays within each algorithm's bound; for the exact one that is the limit itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from bisect import bisect_right
from pathlib import Path

import pytest

#: `timed`, since they must be quick enough to use the limit up.
pytestmark = [pytest.mark.race, pytest.mark.slow, pytest.mark.redis, pytest.mark.timed]

LIMIT, WINDOW = 100, 1_000_000
PROCESSES, SECONDS = 8, 3.2
#: What the docs promise: the most in any trailing second.
BOUNDS = {
    "sliding": LIMIT,
    "fixed": 2 * LIMIT,
    "sliding-counter": 2 * LIMIT - 1,
    "token-bucket": 2 * LIMIT,
    "gcra": 2 * LIMIT,
}


def burst(url, namespace, algorithm):
    """The times of all admitted hits, in order."""
    program = [sys.executable, str(Path(__file__).with_name("limit_burster.py"))]
    args = [url, namespace, algorithm, f"{LIMIT}/second", str(SECONDS)]
    crowd = [
        subprocess.Popen([*program, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    try:
        for process in crowd:
            assert process.stdout.readline() == "ready\n"
        for process in crowd:
            process.stdin.write("go\n")
            process.stdin.flush()
        told = [json.loads(process.communicate(timeout=60)[0]) for process in crowd]
    finally:
        for process in crowd:
            process.kill()
            process.communicate()
    return sorted(moment for moments in told for moment in moments)


def worst(moments):
    """The most in any trailing window: (at - WINDOW, at]."""
    return max(nth + 1 - bisect_right(moments, at - WINDOW) for nth, at in enumerate(moments))


@pytest.mark.parametrize("algorithm", BOUNDS)
def test_no_trailing_second_holds_more_than_the_bound(backstay_redis, namespace, algorithm, record_property):
    moments = burst(backstay_redis.url, namespace, algorithm)
    most = worst(moments)
    bound = f"bound {BOUNDS[algorithm]} at {LIMIT}/s"
    record_property("measured", f"{algorithm}: {most} admitted in the worst trailing second, {bound}")
    assert most <= BOUNDS[algorithm]
    assert len(moments) >= 2 * LIMIT  # they were as many as the limit lets in


@pytest.mark.postgres
def test_no_trailing_second_holds_more_than_the_bound_on_postgres(backstay_postgres, namespace):
    moments = burst(backstay_postgres.url, namespace, "sliding")
    assert worst(moments) <= LIMIT
    assert len(moments) >= LIMIT


def test_no_trailing_second_holds_more_than_the_bound_on_sqlite(tmp_path, namespace):
    moments = burst(f"sqlite:///{tmp_path}/burst.db?synchronous=normal", namespace, "sliding")
    assert worst(moments) <= LIMIT
    assert len(moments) >= LIMIT
