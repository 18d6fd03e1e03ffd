"""Find lock names whose slot a given node of a Cluster serves."""

from __future__ import annotations

from itertools import count, islice

from backstay.engine.redis.topology.slots import slot_of


def slot(name):
    return slot_of(b"{%b}" % name.encode())


def names_on(cluster, node, wanted=1, prefix="name"):
    """Return `wanted` names that `node` serves."""
    mine = (name for nth in count() if cluster.master_of(slot(name := f"{prefix}-{nth}")) is node)
    return list(islice(mine, wanted))


def one_on_each(cluster, prefix="name"):
    """Return a name that each master serves, by master."""
    return {node: names_on(cluster, node, prefix=prefix)[0] for node in cluster.masters()}
