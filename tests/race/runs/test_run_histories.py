"""Servers, schedulers, workers and engines are killed and stopped while runs go on: each ends as the pure graph says,
no result is used twice, and whoever follows it over HTTP sees each event once.
"""

from __future__ import annotations

import os

import pytest
from run_race import RunRace

from backstay.testing.plugin import started_or_skip
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import lasting_port
from backstay.testing.servers.postgres import PostgresServer

#: A busy machine takes its time.
pytestmark = [pytest.mark.race, pytest.mark.chaos, pytest.mark.slow]

FEW = 12
#: An engine that is stopped is noticed soon, and one that is only slow is not taken for it.
PATIENT = "?timeout=2&connect_timeout=3"
SOAK = int(os.environ.get("BACKSTAY_SOAK_RUNS", "500"))
#: A soak sets its own length.
FOR_LONG = pytest.mark.timeout(0)
SEED = int(os.environ.get("BACKSTAY_SEED", "1"))


def race(folder, *, on, runs, shards=1, **options):
    """Prints its figures, claims that nothing is wrong and that there were troubles."""
    server = None
    if on == "sqlite":
        url = direct = f"sqlite:///{folder}/race.db"
    else:
        server = RedisServer(port=lasting_port(), aof=True) if on == "redis" else PostgresServer()
        started_or_skip(server)
        direct = server.url
        url = server.url + PATIENT
    try:
        race = RunRace(url, direct=direct, folder=folder, engine=server, runs=runs, seed=SEED, shards=shards, **options)
        verdict = race.run()
    finally:
        if server is not None:
            server.stop()
    print(f"\n{on}, seed {SEED}: {verdict}", *verdict.violations[:20], sep="\n")
    assert verdict.violations == []
    assert verdict.troubles
    return verdict


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
