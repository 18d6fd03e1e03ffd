"""The gate's commands and replies. `machine.py` decides which reply a command gets."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from backstay.engine.base import Command, Expired, Micros


class CallerIdentity(Struct, frozen=True, array_like=True):
    """Identifies a caller to people who read the lock: which execution of which workflow."""

    execution_id: str = ""
    workflow_id: str = ""
    workflow_name: str = ""


class Holder(Struct, frozen=True, array_like=True):
    """A lease that the gate has granted."""

    ticket: str
    lock_id: str
    exclusive: bool
    fence: int
    since: Micros
    until: Micros
    caller: CallerIdentity


class Acquire(Command, frozen=True, array_like=True):
    """Advance a ticket: enter the queue, refresh its place, accept an offer, or repeat a grant whose reply was lost."""

    ticket: str
    lock_id: str
    exclusive: bool
    capacity: int
    ttl: Micros
    inbox: str
    #: 0: do not queue. Otherwise: join the queue only while it is shorter than this.
    max_waiters: int
    caller: CallerIdentity


class Renew(Command, frozen=True, array_like=True):
    """Extend a live lease. It never revives a lost one."""

    ticket: str
    fence: int
    ttl: Micros


class Release(Command, frozen=True, array_like=True):
    """Release a lease, by ticket or (ticket empty) by lock_id. Verifies ownership."""

    ticket: str
    lock_id: str
    fence: int
    #: Until then a delayed copy of this ticket's Acquire may still arrive and must be refused; 0: no copy is in flight.
    gone_until: Micros

    wakes_waiters: ClassVar[bool] = True


class Withdraw(Command, frozen=True, array_like=True):
    """Remove a ticket in any state: held, offered or queued. Safe when the outcome of its Acquire is unknown."""

    ticket: str
    gone_until: Micros


class ForceRelease(Command, frozen=True, array_like=True):
    """Remove all holders and advance the fence, so that a store that checks fences refuses their writes."""


class Evict(Command, frozen=True, array_like=True):
    """Remove the leases and the queued tickets of one execution, and nothing else."""

    execution_id: str


class Granted(Struct, frozen=True, array_like=True, tag="granted"):
    """The ticket holds a lease."""

    fence: int
    since: Micros
    until: Micros


class Queued(Struct, frozen=True, array_like=True, tag="queued"):
    """The ticket waits; send Acquire again after `recheck_after` µs. `count`: holders and waiters together."""

    position: int
    recheck_after: Micros
    count: int
    holders: tuple[Holder, ...]


class Busy(Struct, frozen=True, array_like=True, tag="held"):
    """Not granted, and the caller does not queue. `count`: holders and waiters together."""

    count: int
    holders: tuple[Holder, ...]


class Full(Struct, frozen=True, array_like=True, tag="full"):
    """Not queued: the queue already has `max_waiters` tickets."""

    waiters: int


class CapacityMismatch(Struct, frozen=True, array_like=True, tag="disagree"):
    """Refused: the gate is in use with another capacity, which is this one."""

    capacity: int


class Renewed(Struct, frozen=True, array_like=True, tag="renewed"):
    """The lease is extended."""

    until: Micros


class Lost(Struct, frozen=True, array_like=True, tag="lost"):
    """Not renewed: the ticket holds no lease. `holders`: the first current holder, if any."""

    holders: tuple[Holder, ...]


class Released(Struct, frozen=True, array_like=True, tag="released"):
    """The lease was the caller's and is released."""

    lock_id: str


class Absent(Struct, frozen=True, array_like=True, tag="absent"):
    """Nothing to release: the gate has no holder."""


class Foreign(Struct, frozen=True, array_like=True, tag="foreign"):
    """Not released: other callers hold the gate, not this one."""

    holders: tuple[Holder, ...]


class Withdrawn(Struct, frozen=True, array_like=True, tag="withdrawn"):
    """The ticket is gone. `was`: held, offered, queued or absent. `holders`: the first remaining holder, if any."""

    was: str
    holders: tuple[Holder, ...]


class Removed(Struct, frozen=True, array_like=True, tag="removed"):
    """The holders that were removed, and the new fence (0: the fence did not advance)."""

    fence: int
    holders: tuple[Holder, ...]


Reply = (
    Granted
    | Queued
    | Busy
    | Full
    | CapacityMismatch
    | Renewed
    | Lost
    | Released
    | Absent
    | Foreign
    | Withdrawn
    | Removed
    | Expired
)
