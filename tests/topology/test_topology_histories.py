"""Races while masters are killed and slots move. A lock whose grant was lost in a failover may be granted a second
time, but never with the same fence.
"""

from __future__ import annotations

import os

import pytest

from backstay.engine.redis.topology.slots import slot_of
from backstay.testing.servers import RedisCluster, RedisSentinel
from support.nemeses.failovers import Failover, KillMaster, Migrate
from support.nemeses.nemesis import Kill, Pause
from support.races.lock_race import NAMES, LockRace
from support.servers import running

pytestmark = [pytest.mark.redis, pytest.mark.race, pytest.mark.chaos, pytest.mark.slow]

TTL = 1.0
SEED = int(os.environ.get("BACKSTAY_SEED", "1"))


def lasting(seconds):
    """Parametrize a test with the duration of its race: `seconds` in CI, a minute as a soak test."""
    long = pytest.param(60, id="soak", marks=[pytest.mark.soak, pytest.mark.timeout(300)])
    return pytest.mark.parametrize("seconds", [pytest.param(seconds, id="ci"), long])


def race(group, folder, nemeses, seconds, pace=0.6):
    """Run a race on these servers, print its result, assert that it has no violation, and return the fault counts."""
    url = group.url + "?timeout=1&connect_timeout=1"
    result = LockRace(url, folder=folder, seconds=seconds, ttl=TTL, nemeses=nemeses, seed=SEED, pace=pace).run()
    print(f"\n{type(group).__name__}, {seconds:g} s: {result}")
    assert result.violations == []
    assert result.report.grants > seconds
    return result.faults


@lasting(14)
def test_history_behind_sentinels_under_failovers_kills_and_pauses(tmp_path, seconds):
    """Sentinels must not replace a live master here, since its later grants would be lost: they wait two seconds before
    a failover, and a master without replicas refuses writes.
    """
    options = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "2")
    with running(RedisSentinel(down_after=2, options=options)) as group:
        faults = race(group, tmp_path, [Failover(group), Kill(), Pause(TTL)], seconds)
        assert faults["failovers"] >= 1  # not more: on a busy machine a failover may need a second vote
        assert group.switches() <= faults["failovers"]


@lasting(10)
def test_history_on_a_cluster_while_masters_are_killed(tmp_path, seconds):
    with running(RedisCluster()) as group:
        assert len({group.master_of(slot_of(b"{%b}" % name.encode())).port for name in NAMES}) == 3
        faults = race(group, tmp_path, [KillMaster(group, NAMES), Kill(), Pause(TTL)], seconds)
        assert faults["masters killed"] >= 2


@lasting(8)
def test_history_on_a_cluster_is_legal_while_slots_move(tmp_path, seconds):
    """The checker excuses no lost write here: a migration must not lose any."""
    with running(RedisCluster(replicas=0, node_timeout=5)) as group:
        mover = Migrate(group, NAMES)
        faults = race(group, tmp_path, [mover, Kill(), Pause(TTL)], seconds, pace=0.3)
        assert faults["slots moved"] >= 4
        assert mover.amnesia == []
