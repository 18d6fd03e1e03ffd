"""Replicated grants: with `durability="replicas:n"`, `acquire` returns only once n Redis replicas have the lease."""

from __future__ import annotations

import re
from functools import partial

from backstay.engine.base import Expired, steady
from backstay.errors import ConfigError, NotReplicated
from backstay.gate.lease import GateLease
from backstay.runtime.core import Core
from backstay.runtime.lost_replies import CORRECTIONS, deadline

#: How many seconds `acquire` waits for the replicas to acknowledge a grant.
CONFIRM_WITHIN = 1.0
#: The replicas get at least this many seconds, even if the caller's `wait` was used up in the queue. A healthy replica
#: needs about a millisecond.
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
    """Return how many seconds of the caller's `wait` are left for the replicas to confirm. `wait=0` only forbids
    queueing, so the replicas then get the full CONFIRM_WITHIN.
    """
    if not wait:
        return CONFIRM_WITHIN
    return max(CONFIRM_AT_LEAST, min(CONFIRM_WITHIN, started + wait - steady()))


async def confirm(core: Core, lease: GateLease, wanted: int, within: float) -> None:
    """Renew the lease and wait until `wanted` replicas have received the renewal. Replication keeps the order of
    writes, so these replicas have the grant, too. Raises NotReplicated; the caller of this function must then release
    the lease.
    """
    replica_acks = core.engine.replica_acks()
    if replica_acks is None:
        raise ConfigError("this engine does not count replica acknowledgements")
    for _ in range(CORRECTIONS):
        op, sent = lease.renewal(deadline(core.engine), lease.ttl), steady()
        reply, confirmed = await core.port.invoke(partial(replica_acks.confirm, op, wanted, within))
        result = lease.judge(reply)
        if isinstance(reply, Expired):
            # The renewal arrived after its deadline and wrote nothing, so the replicas have confirmed nothing. Its
            # deadline was computed with a wrong estimate of the engine's clock, which `lease.judge` has corrected from
            # the reply. Try again.
            continue
        if result.lost:  # a failover happened, and the new master does not have this lease
            confirmed = 0
        if confirmed < wanted:
            raise NotReplicated(name=lease.name, wanted=wanted, confirmed=confirmed, within=within)
        lease.record_renewal(result, sent, lease.ttl)
        core.keeper.reschedule(lease)
        return
    raise NotReplicated(name=lease.name, wanted=wanted, confirmed=0, within=within)
