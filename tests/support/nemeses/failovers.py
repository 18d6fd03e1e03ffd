"""Faults of Redis groups: failovers behind Sentinels and in a Cluster, and slots that migrate."""

from __future__ import annotations

import random
import time
from collections.abc import Collection

from backstay.engine.base import steady
from backstay.engine.redis.topology.slots import slot_of
from backstay.testing.histories.history import Amnesia
from backstay.testing.servers import RedisCluster, RedisSentinel, say
from backstay.testing.servers.redis import until
from support.nemeses.nemesis import Nemesis, ProcessPool


def _slot(name: str) -> int:
    return slot_of(b"{%b}" % name.encode())


class Failover(Nemesis):
    """Kills the master behind Sentinels with SIGKILL, waits for the failover, and starts it again as a replica."""

    kind = "failover"

    def __init__(self, group: RedisSentinel) -> None:
        super().__init__()
        self._group = group

    def inject(self, pool: ProcessPool, dice: random.Random) -> None:
        master = self._group.master()
        if not say(master, "ROLE")[2]:
            return  # no replica has connected to this master yet, so none could replace it
        master.kill()
        # Acknowledged writes that were not replicated yet are lost; the test cannot know which.
        self.amnesia.append(Amnesia(steady(), time.time_ns() // 1000))
        self._group.await_failover(master)
        master.start()
        self.counts["failovers"] += 1

    def stop(self) -> None:
        """Wait until the master has a replica. With `min-replicas-to-write` it refuses writes before that, and no
        client could release its lock.
        """
        until(lambda: say(self._group.master(), "ROLE")[2], "the master has a replica again", 30.0)


class KillMaster(Nemesis):
    """Kills a master of a Cluster with SIGKILL, waits for the failover, and starts it again as a replica."""

    kind = "kill-master"

    def __init__(self, group: RedisCluster, names: Collection[str]) -> None:
        super().__init__()
        self._group = group
        self._names = names

    def inject(self, pool: ProcessPool, dice: random.Random) -> None:
        group = self._group
        master = group.master_of(_slot(dice.choice(sorted(self._names))))
        served = frozenset(name for name in self._names if group.master_of(_slot(name)) is master)
        master.kill()
        self.amnesia.append(Amnesia(steady(), time.time_ns() // 1000, served))
        group.await_failover(master)
        master.start()
        group.await_whole()
        self.counts["masters killed"] += 1


class Migrate(Nemesis):
    """Moves a slot to another master, key by key, while clients use it. No write may be lost."""

    kind = "migrate"
    #: Seconds between the steps of a migration, so that clients use the slot while both nodes have some of its keys.
    PAUSE = 0.1

    def __init__(self, group: RedisCluster, names: Collection[str]) -> None:
        super().__init__()
        self._group = group
        self._names = names

    def inject(self, pool: ProcessPool, dice: random.Random) -> None:
        slot = _slot(dice.choice(sorted(self._names)))
        source = self._group.master_of(slot)
        target = dice.choice([node for node in self._group.masters() if node is not source])
        self._group.migrate(slot, target, self.PAUSE)
        self.counts["slots moved"] += 1
