"""Read-only views of a gate for people: its holders, its queue and its fence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from backstay.engine.base import Micros
from backstay.errors import HolderInfo
from backstay.gate.commands import Holder
from backstay.gate.machine import UNLIMITED, Gate
from backstay.runtime.lease import instant


@dataclass(frozen=True, slots=True)
class WaiterInfo:
    """One waiter in the queue. `waiting`: seconds since it entered the queue. `offered`: whether the lock is reserved
    for this waiter now.
    """

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
    """A snapshot of one lock, semaphore or read-write lock. `capacity` is None for a read-write lock: any
    number of readers.
    """

    name: str
    fence: int
    capacity: int | None
    holders: tuple[HolderInfo, ...]
    queue: tuple[WaiterInfo, ...]
    #: Why the record cannot be read, or what is wrong with it; empty if it is sound.
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
    """The outcome of a release. `idempotent`: True if there was nothing left to release, because the lease had already
    ended or was already released.
    """

    released: bool
    idempotent: bool
    scope: str
    lock_id: str


@dataclass(frozen=True, slots=True)
class ForceReleased:
    """The holders that were removed, and the new fence. Guarded writes of these holders carry an older fence and are
    refused.
    """

    name: str
    fence: int
    holders: tuple[HolderInfo, ...]


@dataclass(frozen=True, slots=True)
class Cleanup:
    """The result of `locks.cleanup`, which releases the locks of a failed execution. `scopes`: the names of the
    released locks. `reason`: why it released nothing, or skipped a lock.
    """

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


def hide_lock_id(holder: HolderInfo | None) -> HolderInfo | None:
    """Return the holder as a client may see it that does not own the lock: with the lock_id it could release it."""
    return None if holder is None else replace(holder, lock_id="")


def inspection(
    name: str, gate: Gate | None, now: Micros, may_see: Callable[[str], bool] = lambda _: True
) -> Inspection:
    """Build the view of a gate's record (None: no record), without the leases and tickets that have ended at `now`.
    `may_see` decides by ticket whether the view shows a lock_id.
    """
    if gate is None:
        return Inspection(name, 0, None, (), ())
    waiters = [w for w in gate.queue if max(w.alive, w.offer) > now]
    return Inspection(
        name=name,
        fence=gate.last,
        capacity=None if gate.capacity == UNLIMITED else gate.capacity,
        holders=tuple(
            replace(holder_info(h), lock_id=h.lock_id if may_see(h.ticket) else "")
            for h in gate.holders
            if h.until > now
        ),
        queue=tuple(
            WaiterInfo(
                lock_id=w.lock_id if may_see(w.ticket) else "",
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
