"""Races while masters die and slots move. What a failover forgets may be held twice, never with the same fence."""

from __future__ import annotations

import os

import pytest

from backstay.engine.redis.topology.slots import slot_of
from backstay.testing.plugin import started_or_skip
from backstay.testing.servers import RedisCluster, RedisSentinel
from support.nemeses.failovers import Failover, KillMaster, Migrate
from support.nemeses.nemesis import Kill, Pause
from support.race import NAMES, Race

pytestmark = [pytest.mark.redis, pytest.mark.race, pytest.mark.chaos, pytest.mark.slow]

TTL = 1.0
SEED = int(os.environ.get("BACKSTAY_SEED", "1"))


def lasting(seconds):
    """So long with the other tests, and a minute in the long runs."""
    long = pytest.param(60, id="soak", marks=[pytest.mark.soak, pytest.mark.timeout(300)])
    return pytest.mark.parametrize("seconds", [pytest.param(seconds, id="ci"), long])


def race(group, folder, nemeses, seconds, pace=0.6):
    """A race on these servers; prints its figures, claims that nothing was violated, answers the troubles."""
    url = group.url + "?timeout=1&connect_timeout=1"
    result = Race(url, folder=folder, seconds=seconds, ttl=TTL, nemeses=nemeses, seed=SEED, pace=pace).run()
    print(f"\n{type(group).__name__}, {seconds:g} s: {result}")
    assert result.violations == []
    assert result.report.grants > seconds
    return result.troubles


@lasting(14)
def test_history_behind_sentinels_under_failovers_kills_and_pauses(tmp_path, seconds):
    """Replacing a master that lives is another matter: hence the patience, and no writes without replicas."""
    group = RedisSentinel(down_after=2, options=("--min-replicas-to-write", "1", "--min-replicas-max-lag", "2"))
    try:
        started_or_skip(group)
        troubles = race(group, tmp_path, [Failover(group), Kill(), Pause(TTL)], seconds)
        assert troubles["failovers"] >= 1  # a Sentinel that loses a vote on a busy machine takes its time
        assert group.switches() <= troubles["failovers"]
    finally:
        group.stop()


@lasting(10)
def test_history_on_a_cluster_while_masters_are_killed(tmp_path, seconds):
    group = RedisCluster()
    try:
        started_or_skip(group)
        assert len({group.master_of(slot_of(b"{%b}" % name.encode())).port for name in NAMES}) == 3
        troubles = race(group, tmp_path, [KillMaster(group, NAMES), Kill(), Pause(TTL)], seconds)
        assert troubles["masters killed"] >= 2
    finally:
        group.stop()


@lasting(8)
def test_history_on_a_cluster_is_legal_while_slots_move(tmp_path, seconds):
    """No amnesia is granted here: a move that lost anything would be a violation."""
    group = RedisCluster(replicas=0, node_timeout=5)
    try:
        started_or_skip(group)
        mover = Migrate(group, NAMES)
        troubles = race(group, tmp_path, [mover, Kill(), Pause(TTL)], seconds, pace=0.3)
        assert troubles["slots moved"] >= 4
        assert mover.amnesia == []
    finally:
        group.stop()
