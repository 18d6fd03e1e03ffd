"""Replicated grants: with `durability="replicas:1"`, `acquire` returns only once that many replicas have the lease."""

from __future__ import annotations

import re
from functools import partial

from backstay.engine.base import Expired, steady
from backstay.errors import ConfigError, NotReplicated
from backstay.gate.lease import GateLease
from backstay.runtime.core import Core
from backstay.runtime.flows import CORRECTIONS, deadline

#: Seconds in which replicas must acknowledge a grant.
CONFIRM_WITHIN = 1.0
#: Replicas get at least this many seconds, even if the caller's `wait` was used up in the queue. A healthy replica
#: needs a millisecond.
CONFIRM_AT_LEAST = 0.1

_SHAPE = re.compile(r"replicas:([1-9]\d{0,3})")


def required_replicas(core: Core, durability: str | None) -> int:
    """Parse `durability=` into the number of replicas that must have a grant; 0: none."""
    if durability is None:
        return 0
    found = _SHAPE.fullmatch(str(durability))
    if not found:
        raise ConfigError(f'durability must be "replicas:1", or another number of replicas; got {durability!r}')
    if core.engine.replica_acks() is None:
        raise ConfigError(
            f"durability={durability!r} needs an engine that counts replica acknowledgements, and"
            f" {type(core.engine).__name__} does not: use it with Redis. A SQLite file is as durable as its disk"
        )
    return int(found[1])


def time_to_confirm(started: float, wait: float | None) -> float:
    """Return the seconds of the caller's `wait` that are left for the replicas. `wait=0` only forbids queueing, so then
    they get the full time.
    """
    if not wait:
        return CONFIRM_WITHIN
    return max(CONFIRM_AT_LEAST, min(CONFIRM_WITHIN, started + wait - steady()))


async def confirm(core: Core, lease: GateLease, wanted: int, within: float) -> None:
    """Renew the lease and wait until `wanted` replicas have that write. Replication keeps the order of writes, so they
    have the grant as well. Raises NotReplicated; the caller of this function must then release the lease.
    """
    replica_acks = core.engine.replica_acks()
    if replica_acks is None:
        raise ConfigError("this engine does not count replica acknowledgements")
    for _ in range(CORRECTIONS):
        op, sent = lease.renewal(deadline(core.engine), lease.ttl), steady()
        reply, confirmed = await core.port.invoke(partial(replica_acks.confirm, op, wanted, within))
        until, lost = lease.judge(reply)
        if isinstance(reply, Expired):
            continue  # nothing was written, so nothing was confirmed; `judge` has corrected the clock: try again
        if lost:  # after a failover, a server without this lease is the master
            confirmed = 0
        if confirmed < wanted:
            raise NotReplicated(name=lease.name, wanted=wanted, confirmed=confirmed, within=within)
        lease.extend(until, sent, lease.ttl)
        core.keeper.reschedule(lease)
        return
    raise NotReplicated(name=lease.name, wanted=wanted, confirmed=0, within=within)
