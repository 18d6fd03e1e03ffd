"""Read-only views of a gate for people: its holders, its queue and its fence."""

from __future__ import annotations

from dataclasses import dataclass

from backstay.engine.base import Micros
from backstay.errors import HolderInfo
from backstay.gate.commands import Holder
from backstay.gate.machine import UNLIMITED, Gate
from backstay.runtime.lease import instant


@dataclass(frozen=True, slots=True)
class WaiterInfo:
    """One waiter in the queue. `waiting`: seconds since it entered. `offered`: it may take the lock now."""

    lock_id: str
    position: int
    waiting: float
    offered: bool
    exclusive: bool
    execution_id: str
    workflow_id: str
    workflow_name: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """A snapshot of one lock, semaphore or read-write lock. `capacity` None: unlimited (a read-write lock)."""

    name: str
    fence: int
    capacity: int | None
    holders: tuple[HolderInfo, ...]
    queue: tuple[WaiterInfo, ...]
    #: Why the record cannot be read, or what is wrong with it; empty: nothing.
    trouble: str = ""

    @property
    def held(self) -> bool:
        return bool(self.holders)

    @property
    def holder_count(self) -> int:
        return len(self.holders)

    @property
    def waiter_count(self) -> int:
        return len(self.queue)

    @property
    def count(self) -> int:
        """The number of holders and waiters together."""
        return len(self.holders) + len(self.queue)


@dataclass(frozen=True, slots=True)
class Released:
    """The outcome of a release. `idempotent`: the lease had ended already, and this release deleted nothing."""

    released: bool
    idempotent: bool
    scope: str
    lock_id: str


@dataclass(frozen=True, slots=True)
class ForceReleased:
    """The holders that were removed, and the new fence. The writes of the old holders carry older fences."""

    name: str
    fence: int
    holders: tuple[HolderInfo, ...]


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What a cleanup released. `reason`: why it released nothing, or less than it could."""

    cleaned: bool
    cleaned_count: int
    scopes: tuple[str, ...]
    reason: str


def holder_info(holder: Holder) -> HolderInfo:
    return HolderInfo(
        lock_id=holder.lock_id,
        fence=holder.fence,
        execution_id=holder.caller.execution_id,
        workflow_id=holder.caller.workflow_id,
        workflow_name=holder.caller.workflow_name,
        locked_at=instant(holder.since).isoformat(),
        expires_at=instant(holder.until).isoformat(),
        exclusive=holder.exclusive,
    )


def first_holder(holders: tuple[Holder, ...]) -> HolderInfo | None:
    return holder_info(holders[0]) if holders else None


def inspection(name: str, gate: Gate | None, now: Micros) -> Inspection:
    """Build the view of a record at `now`, without what has ended by then."""
    if gate is None:
        return Inspection(name, 0, None, (), ())
    waiters = [w for w in gate.queue if max(w.alive, w.offer) > now]
    return Inspection(
        name=name,
        fence=gate.last,
        capacity=None if gate.capacity == UNLIMITED else gate.capacity,
        holders=tuple(holder_info(h) for h in gate.holders if h.until > now),
        queue=tuple(
            WaiterInfo(
                lock_id=w.lock_id,
                position=i,
                waiting=max(0, now - w.since) / 1_000_000,
                offered=w.offer > now,
                exclusive=w.exclusive,
                execution_id=w.caller.execution_id,
                workflow_id=w.caller.workflow_id,
                workflow_name=w.caller.workflow_name,
            )
            for i, w in enumerate(waiters)
        ),
    )
