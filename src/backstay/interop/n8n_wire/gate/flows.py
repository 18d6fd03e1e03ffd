"""Acquire the lock that n8n's Redis nodes use. It has no queue and no notifications, so a waiter polls."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.base import Apply, Expired, Micros, steady
from backstay.errors import (
    EngineError,
    EngineUnavailable,
    LockHeld,
    LockTimeout,
    OutcomeUnknown,
    WouldDeadlock,
)
from backstay.gate.commands import CallerIdentity
from backstay.gate.commands import Granted as Grant
from backstay.gate.flows import Spec
from backstay.gate.lease import GateLease
from backstay.interop.n8n_wire.gate.machine import WIRE, Busy, Granted, HalfReleased, Take, Withdraw
from backstay.interop.n8n_wire.gate.wire import N8nLease, holder_info, identity, millis, parse_micros
from backstay.runtime.core import Core
from backstay.runtime.flows import CLEANUP_GRACE, CORRECTIONS, RetryState, deadline
from backstay.runtime.lease import LIVE

L = TypeVar("L", bound=GateLease)

#: Seconds for which an identity without its counter is left alone: an n8n workflow deletes the two one after the other.
SETTLE = 1.0
#: Seconds between polls meanwhile.
SETTLE_POLL = 0.1


class TakeAttempt(Struct):
    """One caller's attempt to take the lock, over several requests. `again`: an earlier copy of the request may have
    arrived. `doubt`: until when a delayed copy may still arrive.
    """

    core: Core
    scope: str
    ticket: str
    lock_id: str
    identity: str
    ttl: float
    again: bool = False
    doubt: Micros = 0
    under_way: Micros = 0
    sent_at: float = 0.0
    #: The hash of an identity without a counter, and when it was first seen (steady clock).
    trace: str = ""
    since: float = 0.0

    async def send(self) -> Granted | Busy | HalfReleased:
        """Send one Take, with retries after lost replies and short outages. All copies carry the same ticket, so a
        second copy finds the lock of the first.
        """
        core = self.core
        over = self.trace if self.trace and steady() - self.since >= SETTLE else ""
        command = Take(
            deadline(core.engine), self.ticket, self.lock_id, self.identity, millis(self.ttl), self.again, over
        )
        attempts: RetryState | None = None
        started, corrections = steady(), 0
        while True:
            self.sent_at = steady()
            self.under_way = command.not_after
            try:
                reply = await core.port.apply(Apply(WIRE, self.scope, command))
            except (OutcomeUnknown, EngineUnavailable) as error:
                if isinstance(error, EngineUnavailable):
                    self.under_way = 0  # the engine did not receive this copy
                if attempts is None:
                    attempts = RetryState(
                        core.port, core.policy.lock_retries, core.telemetry, f"{WIRE.name} {self.scope}", started
                    )
                await attempts.back_off(error)
                if attempts.doubt:
                    self.doubt = max(self.doubt, command.not_after)
                    self.again = True
                    command = replace(command, again=True)
                continue
            self.under_way = 0
            if type(reply) is Expired:
                core.engine.correct_clock(reply.now)
                corrections += 1
                if corrections > CORRECTIONS:
                    raise EngineUnavailable(
                        f"{WIRE.name} {self.scope!r}: every attempt reached the engine after its expiry"
                    )
                command = replace(command, not_after=deadline(core.engine))
                continue
            self.track_remnant(reply)
            decoded: Granted | Busy | HalfReleased = reply
            return decoded

    def track_remnant(self, reply: object) -> None:
        """Record since when the identity has had no counter."""
        trace = reply.trace if isinstance(reply, HalfReleased) else ""
        if trace != self.trace:
            self.trace, self.since = trace, steady()

    def withdrawal(self) -> Withdraw | None:
        """Return the command that undoes a Take that may have arrived or may still arrive; None: there is none."""
        until = max(self.doubt, self.under_way, deadline(self.core.engine) if self.under_way else 0)
        if not until:
            return None
        return Withdraw(deadline(self.core.engine), self.ticket, self.lock_id, self.identity, until)


async def acquire(core: Core, spec: Spec, caller: CallerIdentity, lock_id: str, wait: float | None, make: type[L]) -> L:
    """Poll, and take the lock when its counter is absent. On failure or cancellation, withdraw the request."""
    owner = core.port.owner()
    ticket = core.identity.new_id()
    lock_id = lock_id or ticket
    identity_json = identity(lock_id, caller.workflow_id, caller.workflow_name, caller.execution_id)
    attempt = TakeAttempt(core, spec.name, ticket, lock_id, identity_json, spec.ttl)
    started = steady()
    latch = None
    last = False
    try:
        while True:
            reply = await attempt.send()
            if isinstance(reply, Granted):
                return _make_lease(core, spec, attempt, reply, owner, caller, make)
            pause = min(spec.poll, SETTLE_POLL) if isinstance(reply, HalfReleased) else spec.poll
            if wait is not None and (last or (wait == 0 and not isinstance(reply, HalfReleased))):
                raise _timeout_error(core, spec, reply, wait)
            if latch is None:
                latch = core.register_waiter(None, ticket)  # this wire sends no hints; close() wakes it
                core.telemetry.emit("lock.queued", name=spec.name, position=0, lock_id=lock_id)
                _refuse_deadlock(core, spec, owner)
            ends = max(wait, SETTLE + SETTLE_POLL) if wait is not None and isinstance(reply, HalfReleased) else wait
            last = not await core.wait_for_turn(ticket, latch, pause, started, ends)  # poll once more at the end
    except BaseException as error:
        if (leaving := attempt.withdrawal()) is not None:
            op = Apply(WIRE, spec.name, leaving)
            if isinstance(error, EngineError):  # the engine just failed: withdraw asynchronously, without another wait
                core.keeper.send_later(op, steady() + spec.ttl)
            else:
                await core.port.shield(_withdraw_now(core, op, spec.ttl), CLEANUP_GRACE)
        raise
    finally:
        if latch is not None:
            core.unregister_waiter(ticket)


def _make_lease(
    core: Core, spec: Spec, attempt: TakeAttempt, reply: Granted, owner: object, caller: CallerIdentity, make: type[L]
) -> L:
    grant = Grant(0, parse_micros(reply.locked_at), reply.until)
    lease = make(core, spec, attempt.ticket, attempt.lock_id, grant, attempt.sent_at, owner, caller, attempt.doubt)
    lease.wire = N8nLease(reply.count, reply.locked_at)
    core.track(lease)
    core.telemetry.counts["lock.granted"] += 1
    core.telemetry.emit("lock.granted", name=spec.name, fence=0, waited=0.0)
    return lease


async def _withdraw_now(core: Core, op: Apply, ttl: float) -> None:
    try:
        reply = await core.port.apply(op)
        if type(reply) is Expired:
            core.engine.correct_clock(reply.now)
            await core.port.apply(Apply(WIRE, op.name, replace(op.command, not_after=deadline(core.engine))))
    except EngineError:
        core.keeper.send_later(op, steady() + ttl)


def _timeout_error(core: Core, spec: Spec, reply: Busy | HalfReleased, wait: float) -> Exception:
    count = reply.count if isinstance(reply, Busy) else 0
    found = holder_info(max(1, count), reply.owner, core.engine.now())
    if wait == 0:
        return LockHeld(name=spec.name, holder=found, count=count)
    return LockTimeout(name=spec.name, waited=wait, holder=found)


def _refuse_deadlock(core: Core, spec: Spec, owner: object) -> None:
    for lease in core.held_leases.get((spec.name, owner), ()):
        if isinstance(lease, GateLease) and lease.wire is not None and lease.state is LIVE and not lease.is_lost:
            raise WouldDeadlock(name=spec.name, lock_id=lease.id)
