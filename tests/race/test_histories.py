"""Eight processes and a few locks under kills, pauses, restarts and network faults: every history is legal."""

import os

import pytest

from support.races.engines import assert_faults_were_injected, race_engine
from support.races.lock_race import LockRace

pytestmark = [pytest.mark.race, pytest.mark.chaos, pytest.mark.slow]

TTL = 1.0
SOAK = float(os.environ.get("BACKSTAY_SOAK_SECONDS", "60"))
SEED = int(os.environ.get("BACKSTAY_SEED", "1"))


def race(folder, kinds, *, seconds, on, aof=True, seed=SEED):
    """Run a race with these nemeses on a new engine, print its result, and assert that it has no violation."""
    with race_engine(on, folder, seed, aof=aof) as engine:
        nemeses = engine.nemeses(kinds, TTL)
        result = LockRace(
            engine.url, direct=engine.direct, folder=folder, seconds=seconds, ttl=TTL, nemeses=nemeses, seed=seed
        ).run()
    where = on if aof else f"{on} without AOF"
    print(f"\n{where}, {'+'.join(kinds)}, {seconds:g} s: {result}")
    assert result.violations == []
    assert result.report.grants > seconds
    assert_faults_were_injected(result.faults, kinds)
    return result


def test_history_on_sqlite_under_kills_and_pauses(tmp_path):
    race(tmp_path, ["kill", "pause"], seconds=8, on="sqlite")


@pytest.mark.redis
def test_history_on_redis_under_kills_pauses_restarts_and_faults(tmp_path):
    race(tmp_path, ["kill", "pause", "restart", "faults"], seconds=8, on="redis")


@pytest.mark.redis
def test_fences_grow_after_redis_loses_its_data(tmp_path):
    race(tmp_path, ["restart"], seconds=4, on="redis", aof=False)


@pytest.mark.postgres
def test_history_on_postgres_under_kills_pauses_restarts_crashes_and_faults(tmp_path):
    race(tmp_path, ["kill", "pause", "restart", "crash", "standstill", "faults"], seconds=12, on="postgres")


@pytest.mark.soak
@pytest.mark.parametrize("kinds", [["kill"], ["pause"], ["kill", "pause"]], ids="+".join)
def test_long_history_on_sqlite(tmp_path, kinds):
    race(tmp_path, kinds, seconds=SOAK, on="sqlite")


@pytest.mark.soak
@pytest.mark.redis
@pytest.mark.parametrize(
    "kinds",
    [["kill"], ["pause"], ["restart"], ["faults"], ["kill", "pause", "restart", "faults"]],
    ids="+".join,
)
def test_long_history_on_redis(tmp_path, kinds):
    race(tmp_path, kinds, seconds=SOAK, on="redis")


@pytest.mark.soak
@pytest.mark.redis
def test_long_history_on_a_redis_that_loses_its_data(tmp_path):
    race(tmp_path, ["kill", "pause", "restart"], seconds=SOAK, on="redis", aof=False)


@pytest.mark.soak
@pytest.mark.postgres
@pytest.mark.parametrize(
    "kinds",
    [
        ["kill"],
        ["pause"],
        ["restart"],
        ["crash"],
        ["standstill"],
        ["faults"],
        ["kill", "pause", "restart", "crash", "faults"],
    ],
    ids="+".join,
)
def test_long_history_on_postgres(tmp_path, kinds):
    race(tmp_path, kinds, seconds=SOAK, on="postgres")
