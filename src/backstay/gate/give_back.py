"""Give back what an interrupted caller has taken: a ticket in the queue, or a lease. The keeper sends the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from backstay.engine.base import Apply, steady
from backstay.gate.commands import Withdraw
from backstay.gate.lease import GateLease
from backstay.gate.machine import GATE, LIFE
from backstay.runtime.core import Core
from backstay.runtime.lease import LOST, Handover
from backstay.runtime.lost_replies import deadline

if TYPE_CHECKING:
    from backstay.gate.flows import GateSpec

L = TypeVar("L", bound=GateLease)


def give_back(core: Core, hold: Handover[L]) -> None:
    """Undo an acquire whose caller was interrupted: before the lease reached it, or while it left its `with` block.
    Safe to call twice, and after a release.
    """
    core.forget_caller(hold.ticket)
    lease = hold.lease
    if lease is None:
        if hold.withdraw is not None:
            hold.withdraw()
        return
    lease.holds.pop(hold, None)
    if not lease.holds:
        settle(lease)


def settle(lease: GateLease) -> None:
    """Make sure that a lease which is no longer used is not renewed, and that its release is sent."""
    if not lease.confirmed and not lease.deferred and lease.state is not LOST:
        lease.finish()
        release_later(lease)
    lease.core.untrack(lease)


def release_later(lease: GateLease) -> None:
    """Have the keeper release the lease. It retries until the TTL has ended the lease."""
    core = lease.core
    core.keeper.send_later(lease.release_op(deadline(core.engine)), max(lease.deadline, steady()) + 1.0)
    lease.deferred = True
    core.telemetry.emit("lock.release_deferred", name=lease.name, fence=lease.fence)


def withdraw_later(core: Core, spec: GateSpec, command: Withdraw) -> None:
    """Have the keeper withdraw a ticket from the lock's queue."""
    core.keeper.send_later(Apply(GATE, spec.name, command), steady() + spec.ttl + LIFE / 1_000_000)


def withdraw_interrupted(core: Core, spec: GateSpec, ticket: str) -> None:
    """Have the keeper withdraw the ticket of a caller that was interrupted while it gave up. A copy of its Acquire may
    still be on its way.
    """
    withdraw_later(core, spec, Withdraw(deadline(core.engine), ticket, deadline(core.engine)))
