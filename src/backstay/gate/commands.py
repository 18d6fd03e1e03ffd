"""The gate's commands and replies. `machine.py` decides which reply a command gets."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from backstay.engine.base import Command, Expired, Micros


class CallerIdentity(Struct, frozen=True, array_like=True):
    """Who acquires a lock, as `inspect` shows it: which execution of which workflow."""

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
    #: The number of the lease's current TTL: 0 at the grant, then the `ttl_number` of the last `Renew` that set a new
    #: TTL.
    ttl_number: int = 0


class Acquire(Command, frozen=True, array_like=True):
    """Ask for the lock with a ticket. A new ticket gets a lease, enters the queue or is refused. A queued ticket
    refreshes its place or accepts its offer. A ticket that already holds the lease gets the same grant again, because
    its reply was lost.
    """

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
    """Extend a lease that has not ended. It never revives a lease that has ended.

    The holder numbers the TTLs that it sets for a lease (`ttl_number`), so that a delayed command cannot bring back an
    old TTL. A higher number than the lease has sets a new TTL, longer or shorter. An equal number (the keeper's
    renewal, or a resend) never shortens the lease. A lower number belongs to a TTL that was replaced, and changes
    nothing.
    """

    ticket: str
    fence: int
    ttl: Micros
    ttl_number: int = 0

    renews_lease: ClassVar[bool] = True


class Release(Command, frozen=True, array_like=True):
    """Release the lease of a ticket or, if `ticket` is empty, the lease with this lock_id, the id that users see.
    Releases nothing if the gate has no such lease.
    """

    ticket: str
    lock_id: str
    fence: int
    #: Until this time (engine clock) a delayed copy of this ticket's Acquire may still arrive and must be refused; 0:
    #: no copy is in flight.
    gone_until: Micros

    wakes_waiters: ClassVar[bool] = True


class Withdraw(Command, frozen=True, array_like=True):
    """Remove a ticket in any state: held, offered or queued. Sent when acquiring fails or is
    cancelled. The ticket is gone afterwards, whether or not its Acquire has arrived: until `gone_until` (engine clock)
    a delayed copy of the Acquire is refused.
    """

    ticket: str
    gone_until: Micros


class ForceRelease(Command, frozen=True, array_like=True):
    """Remove all holders and advance the fence, so that guarded writes of these holders are refused."""


class Evict(Command, frozen=True, array_like=True):
    """Remove the leases and the queued tickets of one workflow execution (see `CallerIdentity`), and nothing else."""

    execution_id: str
    #: Remove only those whose ticket starts with this text; empty: all. A server gives the tickets of one owner the
    #: same prefix, so that an owner's clean-up never touches the locks of another.
    ticket_prefix: str = ""


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
    """Not granted, and not queued because `max_waiters` is 0. `count`: holders and waiters together."""

    count: int
    holders: tuple[Holder, ...]


class Full(Struct, frozen=True, array_like=True, tag="full"):
    """Not queued: the queue already has `max_waiters` tickets."""

    waiters: int


class CapacityMismatch(Struct, frozen=True, array_like=True, tag="disagree"):
    """Refused: the gate is in use with another capacity. `capacity`: the one in use."""

    capacity: int


class Renewed(Struct, frozen=True, array_like=True, tag="renewed"):
    """The ticket holds a lease that ends at `until`. `now` is the engine's time, and `ttl_number` the number of the
    lease's current TTL.
    """

    until: Micros
    now: Micros = 0
    ttl_number: int = 0


class Lost(Struct, frozen=True, array_like=True, tag="lost"):
    """Not renewed: the ticket holds no lease. `holders`: only the first of the gate's holders; empty if it has none."""

    holders: tuple[Holder, ...]


class Released(Struct, frozen=True, array_like=True, tag="released"):
    """The lease was the caller's and is released."""

    lock_id: str


class Absent(Struct, frozen=True, array_like=True, tag="absent"):
    """Nothing to release: the gate has no holder."""


class Foreign(Struct, frozen=True, array_like=True, tag="foreign"):
    """Not released: the gate is held, but not by this caller. `holders`: only the first of the gate's holders."""

    holders: tuple[Holder, ...]


class Withdrawn(Struct, frozen=True, array_like=True, tag="withdrawn"):
    """The ticket is gone.

    was: The ticket's state before: "held", "offered", "queued", or "absent" if the gate did not have the ticket.
    holders: The first remaining holder, if any.
    """

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
