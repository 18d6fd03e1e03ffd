"""Every job completes exactly once while workers are killed, paused and drained, servers restart and replies are
lost.
"""

import os

import pytest

from support.races.engines import assert_faults_were_injected, race_engine
from support.races.job_race import JobRace

pytestmark = [pytest.mark.race, pytest.mark.chaos, pytest.mark.slow]

LEASE = 2.0
SOAK = int(os.environ.get("BACKSTAY_SOAK_JOBS", "200000"))
SEED = int(os.environ.get("BACKSTAY_SEED", "1"))
EVERYTHING = ["kill", "pause", "term", "restart", "faults"]


def race(folder, kinds, *, jobs, on, seed=SEED, **options):
    """Run a race with these nemeses on a new engine, print its result, and assert that it has no violation."""
    options.setdefault("lease", LEASE)
    with race_engine(on, folder, seed) as engine:
        nemeses = engine.nemeses(kinds, LEASE)
        result = JobRace(
            engine.url, direct=engine.direct, folder=folder, jobs=jobs, nemeses=nemeses, seed=seed, **options
        ).run()
    print(f"\n{on}, {'+'.join(kinds)}: {result}")
    assert result.violations == []
    assert_faults_were_injected(result.faults, kinds)
    return result


def test_jobs_on_sqlite_complete_once_while_workers_are_killed_paused_and_drained(tmp_path):
    race(tmp_path, ["kill", "pause", "term"], jobs=4000, on="sqlite", chore=0.02)


@pytest.mark.redis
def test_jobs_on_redis_complete_once_under_kills_pauses_deployments_restarts_and_faults(tmp_path):
    race(tmp_path, EVERYTHING, jobs=6000, on="redis", chore=0.02)


@pytest.mark.postgres
def test_jobs_on_postgres_complete_once_under_kills_pauses_deployments_restarts_and_faults(tmp_path):
    race(tmp_path, EVERYTHING, jobs=4000, on="postgres", chore=0.02)


@pytest.mark.soak
@pytest.mark.parametrize("kinds", [["kill"], ["kill", "pause", "term"]], ids="+".join)
def test_two_hundred_thousand_jobs_on_sqlite(tmp_path, kinds):
    result = race(tmp_path, kinds, jobs=SOAK, on="sqlite")
    if kinds == ["kill"]:  # not with pauses: a worker paused inside a transaction blocks all writers of the file
        assert result.report.restart(99) <= LEASE + 1


@pytest.mark.soak
@pytest.mark.redis
@pytest.mark.parametrize("kinds", [["kill"], EVERYTHING], ids="+".join)
def test_two_hundred_thousand_jobs_on_redis(tmp_path, kinds):
    result = race(tmp_path, kinds, jobs=SOAK, on="redis")
    if kinds == ["kill"]:  # not with restarts: no job can be claimed while the server is down
        assert result.report.restart(99) <= LEASE + 1


@pytest.mark.soak
@pytest.mark.postgres
@pytest.mark.parametrize("kinds", [["kill"], EVERYTHING], ids="+".join)
def test_two_hundred_thousand_jobs_on_postgres(tmp_path, kinds):
    result = race(tmp_path, kinds, jobs=SOAK, on="postgres")
    if kinds == ["kill"]:  # not with restarts: no job can be claimed while the server is down
        assert result.report.restart(99) <= LEASE + 1
