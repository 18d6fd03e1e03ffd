"""Workers are killed, stopped and sent away, servers restart, replies are lost: every job is done once."""

import os
from contextlib import ExitStack

import pytest

from backstay.testing.plugin import started_or_skip
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import lasting_port
from backstay.testing.servers.postgres import PostgresServer
from support.job_race import JobRace, Term, TimedKill
from support.nemeses.nemesis import Cut, Pause, Restart
from support.race import QUICK

#: A busy machine takes its time.
pytestmark = [pytest.mark.race, pytest.mark.chaos, pytest.mark.slow]

LEASE = 2.0
SOAK = int(os.environ.get("BACKSTAY_SOAK_JOBS", "200000"))
SEED = int(os.environ.get("BACKSTAY_SEED", "1"))
DONE = {"kill": "kills", "pause": "pauses", "term": "terms", "restart": "restarts", "faults": "faults"}
EVERYTHING = ["kill", "pause", "term", "restart", "faults"]


def race(folder, kinds, *, jobs, on, seed=SEED, **options):
    """A race on a new engine with these nemeses; prints its figures, claims that nothing was violated."""
    with ExitStack() as stack:
        nemeses = []
        server = proxy = None
        if on == "sqlite":
            url = direct = f"sqlite:///{folder}/race.db"
        else:
            server = RedisServer(port=lasting_port(), aof=True) if on == "redis" else PostgresServer()
            stack.callback(server.stop)
            started_or_skip(server)
            direct = server.url
            proxy = stack.enter_context(FaultProxy(server.port, seed=seed))
            url = proxy.instead_of(server.url) + QUICK
        for kind in kinds:
            match kind:
                case "kill":
                    nemeses.append(TimedKill())
                case "pause":
                    nemeses.append(Pause(LEASE))
                case "term":
                    nemeses.append(Term())
                case "restart":
                    nemeses.append(Restart(server))
                case "faults":
                    nemeses.append(Cut(proxy))
        options.setdefault("lease", LEASE)
        result = JobRace(url, direct=direct, folder=folder, jobs=jobs, nemeses=nemeses, seed=seed, **options).run()
    print(f"\n{on}, {'+'.join(kinds)}: {result}")
    assert result.violations == []
    for kind in kinds:
        assert result.troubles[DONE[kind]] > 0
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
    if kinds == ["kill"]:  # one that stands still inside a transaction holds the whole file
        assert result.report.restart(99) <= LEASE + 1


@pytest.mark.soak
@pytest.mark.redis
@pytest.mark.parametrize("kinds", [["kill"], EVERYTHING], ids="+".join)
def test_two_hundred_thousand_jobs_on_redis(tmp_path, kinds):
    result = race(tmp_path, kinds, jobs=SOAK, on="redis")
    if kinds == ["kill"]:  # a server that is away hands out nothing
        assert result.report.restart(99) <= LEASE + 1


@pytest.mark.soak
@pytest.mark.postgres
@pytest.mark.parametrize("kinds", [["kill"], EVERYTHING], ids="+".join)
def test_two_hundred_thousand_jobs_on_postgres(tmp_path, kinds):
    result = race(tmp_path, kinds, jobs=SOAK, on="postgres")
    if kinds == ["kill"]:
        assert result.report.restart(99) <= LEASE + 1
