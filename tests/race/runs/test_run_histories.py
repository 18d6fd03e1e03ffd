"""Runs while servers, schedulers, workers and engines are killed and paused: each run ends as the pure graph says, no
result is used twice, and a client that follows the run over HTTP receives each event once.
"""

from __future__ import annotations

import os

import pytest
from run_race import RunRace

from support.races.engines import race_server

pytestmark = [pytest.mark.race, pytest.mark.chaos, pytest.mark.slow]

FEW = 12
#: URL options: short enough that processes soon detect a paused engine, long enough that a slow one is not mistaken for
#: a paused one.
TIMEOUTS = "?timeout=2&connect_timeout=3"
SOAK = int(os.environ.get("BACKSTAY_SOAK_RUNS", "500"))
#: Without a timeout: the number of runs decides how long a soak test takes.
FOR_LONG = pytest.mark.timeout(0)
SEED = int(os.environ.get("BACKSTAY_SEED", "1"))


def race(folder, *, on, runs, shards=1):
    """Run a race, print its result, and assert that it has no violation and that faults were injected."""
    options = {"folder": folder, "runs": runs, "seed": SEED, "shards": shards}
    if on == "sqlite":
        result = RunRace(f"sqlite:///{folder}/race.db", **options).run()
    else:
        with race_server(on) as server:
            result = RunRace(server.url + TIMEOUTS, direct=server.url, engine=server, **options).run()
    print(f"\n{on}, seed {SEED}: {result}", *result.violations[:20], sep="\n")
    assert result.violations == []
    assert result.faults


def test_runs_on_sqlite_reach_the_expected_state_despite_kills(tmp_path):
    race(tmp_path, on="sqlite", runs=FEW)


@pytest.mark.redis
def test_runs_on_redis_reach_the_expected_state_despite_kills(tmp_path):
    race(tmp_path, on="redis", runs=FEW, shards=2)


@pytest.mark.postgres
def test_runs_on_postgres_reach_the_expected_state_despite_kills(tmp_path):
    race(tmp_path, on="postgres", runs=FEW)


@FOR_LONG
@pytest.mark.soak
def test_five_hundred_runs_on_sqlite(tmp_path):
    race(tmp_path, on="sqlite", runs=SOAK)


@FOR_LONG
@pytest.mark.soak
@pytest.mark.redis
def test_five_hundred_runs_on_redis(tmp_path):
    race(tmp_path, on="redis", runs=SOAK, shards=2)


@FOR_LONG
@pytest.mark.soak
@pytest.mark.postgres
def test_five_hundred_runs_on_postgres(tmp_path):
    race(tmp_path, on="postgres", runs=SOAK)
