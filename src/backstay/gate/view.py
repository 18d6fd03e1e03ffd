"""What people see of a gate: holders, queue, fence. Read from the record, never changing it."""

from __future__ import annotations

from dataclasses import dataclass

from backstay.engine.base import Micros
from backstay.errors import HolderInfo
from backstay.gate.machine import UNLIMITED, Gate, Holder
from backstay.runtime.lease import instant


@dataclass(frozen=True, slots=True)
class WaiterInfo:
    """One place in the queue."""

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
    """One lock, semaphore or read-write lock at one moment. `capacity` None: no limit (a read-write lock)."""

    name: str
    fence: int
    capacity: int | None
    holders: tuple[HolderInfo, ...]
    queue: tuple[WaiterInfo, ...]
    #: Why its record cannot be read; empty when it can.
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
        """Holders and waiters together."""
        return len(self.holders) + len(self.queue)


@dataclass(frozen=True, slots=True)
class Released:
    """A release's outcome. `idempotent`: it was gone already and nobody else has it; nothing was deleted."""

    released: bool
    idempotent: bool
    scope: str
    lock_id: str


@dataclass(frozen=True, slots=True)
class ForceReleased:
    """Who was removed, and the fence from now on: their writes bear an older one."""

    name: str
    fence: int
    holders: tuple[HolderInfo, ...]


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What a clean-up released, and why it released nothing when it did not."""

    cleaned: bool
    cleaned_count: int
    scopes: tuple[str, ...]
    reason: str


def holder_info(holder: Holder) -> HolderInfo:
    return HolderInfo(
        lock_id=holder.lock_id,
        fence=holder.fence,
        execution_id=holder.who.execution_id,
        workflow_id=holder.who.workflow_id,
        workflow_name=holder.who.workflow_name,
        locked_at=instant(holder.since).isoformat(),
        expires_at=instant(holder.until).isoformat(),
        exclusive=holder.exclusive,
    )


def first(holders: tuple[Holder, ...]) -> HolderInfo | None:
    return holder_info(holders[0]) if holders else None


def inspection(name: str, gate: Gate | None, now: Micros) -> Inspection:
    """The record as it stands at `now`: what has ended does not show."""
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
                execution_id=w.who.execution_id,
                workflow_id=w.who.workflow_id,
                workflow_name=w.who.workflow_name,
            )
            for i, w in enumerate(waiters)
        ),
    )
