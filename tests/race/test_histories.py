"""Eight processes and a few locks under kills, pauses, restarts and network faults: every history is legal."""

import os
from contextlib import ExitStack

import pytest

from backstay.testing.plugin import started_or_skip
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import lasting_port
from backstay.testing.servers.postgres import PostgresServer
from support.nemeses.nemesis import Cut, Kill, Pause, Restart
from support.nemeses.postgres import Crash, Standstill
from support.race import QUICK, Race

pytestmark = [pytest.mark.race, pytest.mark.chaos, pytest.mark.slow]

TTL = 1.0
SOAK = float(os.environ.get("BACKSTAY_SOAK_SECONDS", "60"))
SEED = int(os.environ.get("BACKSTAY_SEED", "1"))


DONE = {
    "kill": ["kills"],
    "pause": ["pauses"],
    "restart": ["restarts"],
    "faults": ["faults"],
    "crash": ["crashes", "ended"],
    "standstill": ["standstills"],
}


def race(folder, kinds, *, seconds, on, aof=True, seed=SEED):
    """A race on a new engine with these nemeses; prints its figures, claims that nothing was violated."""
    with ExitStack() as stack:
        nemeses = []
        server = proxy = None
        if on == "sqlite":
            url = direct = f"sqlite:///{folder}/race.db"
        else:
            server = RedisServer(port=lasting_port(), aof=aof) if on == "redis" else PostgresServer()
            stack.callback(server.stop)
            started_or_skip(server)
            direct = server.url
            proxy = stack.enter_context(FaultProxy(server.port, seed=seed))
            url = proxy.instead_of(server.url) + QUICK
        for kind in kinds:
            match kind:
                case "kill":
                    nemeses.append(Kill())
                case "pause":
                    nemeses.append(Pause(TTL))
                case "restart":
                    nemeses.append(Restart(server))
                case "faults":
                    nemeses.append(Cut(proxy))
                case "crash":
                    nemeses.append(Crash(server))
                case "standstill":
                    nemeses.append(Standstill(server))
        result = Race(url, direct=direct, folder=folder, seconds=seconds, ttl=TTL, nemeses=nemeses, seed=seed).run()
    where = on if aof else f"{on} without AOF"
    print(f"\n{where}, {'+'.join(kinds)}, {seconds:g} s: {result}")
    assert result.violations == []
    assert result.report.grants > seconds
    for kind in kinds:
        assert sum(result.troubles[done] for done in DONE[kind]) > 0
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
