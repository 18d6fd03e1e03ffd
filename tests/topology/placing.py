"""Names that live on a node of one's choice."""

from __future__ import annotations

from itertools import count, islice

from backstay.engine.redis.topology.slots import slot_of


def slot(name):
    return slot_of(b"{%b}" % name.encode())


def names_on(cluster, node, wanted=1, prefix="name"):
    """As many names as wanted that `node` serves."""
    mine = (name for nth in count() if cluster.master_of(slot(name := f"{prefix}-{nth}")) is node)
    return list(islice(mine, wanted))


def one_on_each(cluster, prefix="name"):
    """A name for each master."""
    return {node: names_on(cluster, node, prefix=prefix)[0] for node in cluster.masters()}
