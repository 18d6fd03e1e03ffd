"""Troubles of servers that come in groups: a master dies and a replica takes over, a slot moves."""

from __future__ import annotations

import random
import time
from collections.abc import Collection

from backstay.engine.base import steady
from backstay.engine.redis.topology.slots import slot_of
from backstay.testing.histories.history import Amnesia
from backstay.testing.servers import RedisCluster, RedisSentinel, say
from backstay.testing.servers.redis import until
from support.nemeses.nemesis import Nemesis, Ring


def _slot(name: str) -> int:
    return slot_of(b"{%b}" % name.encode())


class Failover(Nemesis):
    """kill -9 for the master that Sentinels watch. It comes back, and Sentinels make a replica of it."""

    kind = "failover"

    def __init__(self, group: RedisSentinel) -> None:
        super().__init__()
        self._group = group

    def strike(self, ring: Ring, dice: random.Random) -> None:
        master = self._group.master()
        if not say(master, "ROLE")[2]:
            return  # it has no replica yet that could take over
        master.kill()
        # Writes that it acknowledged and did not replicate are lost; which ones is unknown.
        self.amnesia.append(Amnesia(steady(), time.time_ns() // 1000))
        self._group.await_failover(master)
        master.start()
        self.done["failovers"] += 1

    def settle(self) -> None:
        """A master with `min-replicas-to-write` refuses writes until it has replicas: until then no client can
        release.
        """
        until(lambda: say(self._group.master(), "ROLE")[2], "the master is followed again", 30.0)


class KillMaster(Nemesis):
    """kill -9 for a master of a Cluster. It comes back as the replica of its successor."""

    kind = "kill-master"

    def __init__(self, group: RedisCluster, names: Collection[str]) -> None:
        super().__init__()
        self._group = group
        self._names = names

    def strike(self, ring: Ring, dice: random.Random) -> None:
        group = self._group
        master = group.master_of(_slot(dice.choice(sorted(self._names))))
        served = frozenset(name for name in self._names if group.master_of(_slot(name)) is master)
        master.kill()
        self.amnesia.append(Amnesia(steady(), time.time_ns() // 1000, served))
        group.await_failover(master)
        master.start()
        group.await_whole()
        self.done["masters killed"] += 1


class Migrate(Nemesis):
    """A slot moves to another master, key by key, while it is in use. Nothing may be lost by that."""

    kind = "migrate"
    #: Between the steps of a move, so that callers meet a slot that is half here and half there.
    PAUSE = 0.1

    def __init__(self, group: RedisCluster, names: Collection[str]) -> None:
        super().__init__()
        self._group = group
        self._names = names

    def strike(self, ring: Ring, dice: random.Random) -> None:
        slot = _slot(dice.choice(sorted(self._names)))
        source = self._group.master_of(slot)
        target = dice.choice([node for node in self._group.masters() if node is not source])
        self._group.migrate(slot, target, self.PAUSE)
        self.done["slots moved"] += 1
