"""Grants that outlive their server: `durability="replicas:1"` returns a lease only once so many replicas have it."""

from __future__ import annotations

import re
from functools import partial

from backstay.engine.base import Expired, steady
from backstay.errors import ConfigError, NotReplicated
from backstay.gate.lease import Held
from backstay.runtime.core import Core
from backstay.runtime.flows import CORRECTIONS, deadline

#: How long replicas have to confirm a grant.
CONFIRM_WITHIN = 1.0
#: What they have when the queue has used up the caller's `wait`: a healthy one needs a millisecond.
CONFIRM_AT_LEAST = 0.1

_SHAPE = re.compile(r"replicas:([1-9]\d{0,3})")


def replicas(core: Core, durability: str | None) -> int:
    """How many replicas must have a grant; 0: none."""
    if durability is None:
        return 0
    found = _SHAPE.fullmatch(str(durability))
    if not found:
        raise ConfigError(f'durability is "replicas:1", or another number of them; got {durability!r}')
    if core.engine.witness() is None:
        raise ConfigError(
            f"durability={durability!r} asks a server how many of its replicas have a grant, and"
            f" {type(core.engine).__name__} has nobody to ask. It is for Redis; a SQLite file is as durable as its disk"
        )
    return int(found[1])


def time_to_confirm(started: float, wait: float | None) -> float:
    """What replicas get of the caller's `wait`. With wait=0 they get all: that is about the queue."""
    if not wait:
        return CONFIRM_WITHIN
    return max(CONFIRM_AT_LEAST, min(CONFIRM_WITHIN, started + wait - steady()))


async def confirm(core: Core, lease: Held, wanted: int, within: float) -> None:
    """Write the lease once more, and wait until so many replicas have that. They read in order, so they have the
    grant as well. Raises NotReplicated; giving the lease back is the caller's.
    """
    witness = core.engine.witness()
    if witness is None:
        raise ConfigError("this engine cannot tell how many replicas have a grant")
    for _ in range(CORRECTIONS):
        op, sent = lease.renewal(deadline(core.engine), lease.ttl), steady()
        reply, confirmed = await core.port.invoke(partial(witness.confirm, op, wanted, within))
        until, lost = lease.judge(reply)
        if isinstance(reply, Expired):
            continue  # nothing was written, so nothing was confirmed; the clock is right now
        if lost:  # a server that never had it has taken over
            confirmed = 0
        if confirmed < wanted:
            raise NotReplicated(name=lease.name, wanted=wanted, confirmed=confirmed, within=within)
        lease.extend(until, sent, lease.ttl)
        core.keeper.changed(lease)
        return
    raise NotReplicated(name=lease.name, wanted=wanted, confirmed=0, within=within)
