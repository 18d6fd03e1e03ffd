"""Acquire the lock that n8n's Redis nodes use. It has no queue and no notifications, so a waiter polls."""

from __future__ import annotations

from functools import partial
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
from backstay.gate.flows import GateSpec
from backstay.gate.give_back import give_back
from backstay.gate.lease import GateLease
from backstay.interop.n8n_wire.gate.machine import WIRE, Busy, Granted, HalfReleased, Take, Withdraw
from backstay.interop.n8n_wire.gate.wire import N8nLease, holder_info, identity, millis, parse_micros
from backstay.runtime.core import Core
from backstay.runtime.lease import LIVE, Handover
from backstay.runtime.lost_replies import CLEANUP_GRACE, CORRECTIONS, RetryState, deadline

L = TypeVar("L", bound=GateLease)

#: A lock consists of a counter and the holder's identity. Seconds for which an identity without a counter is not
#: replaced. An n8n workflow that releases the lock deletes the counter first and the identity a moment later; the
#: second deletion would hit the identity of a new holder.
SETTLE = 1.0
#: Seconds between the polls of a waiter that finds an identity without a counter.
SETTLE_POLL = 0.1


class TakeAttempt(Struct):
    """One caller's attempt to acquire the lock. It sends the command Take until the lock is free, always with the same
    ticket.

    is_resend: An earlier Take of this attempt may have been applied.
    doubt: Until this time (engine clock, µs) an earlier Take whose reply was lost may still be applied; 0: there is no
        such Take.
    under_way: Until this time (engine clock, µs) the Take that was sent last may be applied; 0: it was refused.
    identity_hash: The hash of the stored identity if the lock is half released (an identity without a counter); else
        empty.
    since: Since when (monotonic clock, seconds) this caller has seen that identity.
    """

    core: Core
    scope: str
    ticket: str
    lock_id: str
    identity: str
    ttl: float
    is_resend: bool = False
    doubt: Micros = 0
    under_way: Micros = 0
    sent_at: float = 0.0
    identity_hash: str = ""
    since: float = 0.0

    async def send(self) -> Granted | Busy | HalfReleased:
        """Send one Take, and resend it after a lost reply or a short outage. All copies have the same ticket. So if the
        first copy has taken the lock and only its reply was lost, the second copy recognizes that lock as its own.
        """
        core = self.core
        replaces = self.identity_hash if self.identity_hash and steady() - self.since >= SETTLE else ""
        command = Take(
            deadline(core.engine), self.ticket, self.lock_id, self.identity, millis(self.ttl), self.is_resend, replaces
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
                    self.is_resend = True
                    command = replace(command, is_resend=True)
                continue
            if type(reply) is not Granted:
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
        """Remember since when this caller has found the lock half released: the holder's identity is stored, but no
        counter. After SETTLE seconds, a Take may replace this identity.
        """
        identity_hash = reply.identity_hash if isinstance(reply, HalfReleased) else ""
        if identity_hash != self.identity_hash:
            self.identity_hash, self.since = identity_hash, steady()

    def withdrawal(self) -> Withdraw | None:
        """Return the command that undoes a Take that may have arrived or may still arrive; None if there is no such
        Take.
        """
        until = max(self.doubt, self.under_way, deadline(self.core.engine) if self.under_way else 0)
        if not until:
            return None
        return Withdraw(deadline(self.core.engine), self.ticket, self.lock_id, self.identity, until)


async def acquire(
    core: Core,
    spec: GateSpec,
    caller: CallerIdentity,
    lock_id: str,
    wait: float | None,
    make: type[L],
    hold: Handover[L],
) -> L:
    """Poll until the lock's counter is absent, then take the lock. On failure or cancellation, undo a request that may
    have taken it.
    """
    owner = core.port.owner()
    ticket = hold.ticket = core.identity.new_id()
    lock_id = lock_id or ticket
    identity_json = identity(lock_id, caller.workflow_id, caller.workflow_name, caller.execution_id)
    attempt = TakeAttempt(core, spec.name, ticket, lock_id, identity_json, spec.ttl)
    started = steady()
    latch = None
    last = False
    try:
        core.callers.add(ticket)
        core.check_open()
        hold.withdraw = partial(_withdraw_later, attempt)
        while True:
            reply = await attempt.send()
            if isinstance(reply, Granted):
                return _make_lease(core, spec, attempt, reply, owner, caller, make, hold)
            pause = min(spec.poll, SETTLE_POLL) if isinstance(reply, HalfReleased) else spec.poll
            if wait is not None and (last or (wait == 0 and not isinstance(reply, HalfReleased))):
                raise _timeout_error(core, spec, reply, wait)
            if latch is None:
                latch = core.register_waiter(None, ticket)  # n8n's nodes send no hints, but close() wakes the waiter
                core.telemetry.emit("lock.queued", name=spec.name, position=0, lock_id=lock_id)
                _refuse_deadlock(core, spec, owner)
            ends = max(wait, SETTLE + SETTLE_POLL) if wait is not None and isinstance(reply, HalfReleased) else wait
            # False: the caller's `wait` is over, so the next Take is the last one.
            last = not await core.wait_for_turn(ticket, latch, pause, started, ends)
    except BaseException as error:
        if hold.lease is not None:
            give_back(core, hold)
        elif (command := attempt.withdrawal()) is not None:
            op = Apply(WIRE, spec.name, command)
            if isinstance(error, EngineError):  # the engine just failed: do not wait for it again, the keeper withdraws
                core.keeper.send_later(op, steady() + spec.ttl)
            else:
                await core.port.shield(_withdraw_now(core, op, spec.ttl), CLEANUP_GRACE)
        hold.withdraw = None
        raise
    finally:
        core.forget_caller(ticket)


def _make_lease(
    core: Core,
    spec: GateSpec,
    attempt: TakeAttempt,
    reply: Granted,
    owner: object,
    caller: CallerIdentity,
    make: type[L],
    hold: Handover[L],
) -> L:
    grant = Grant(0, parse_micros(reply.locked_at), reply.until)
    lease = make(core, spec, attempt.ticket, attempt.lock_id, grant, attempt.sent_at, owner, caller, attempt.doubt)
    lease.wire = N8nLease(reply.count, reply.locked_at)
    hold.lease = lease
    lease.holds[hold] = None
    core.track(lease)
    core.check_open()  # after `close` the keeper renews no lease
    core.telemetry.counts["lock.granted"] += 1
    core.telemetry.emit("lock.granted", name=spec.name, fence=0, waited=0.0)
    return lease


def _withdraw_later(attempt: TakeAttempt) -> None:
    """Have the keeper undo the Take of a caller that was interrupted while it gave up."""
    if (command := attempt.withdrawal()) is not None:
        attempt.core.keeper.send_later(Apply(WIRE, attempt.scope, command), steady() + attempt.ttl)


async def _withdraw_now(core: Core, op: Apply, ttl: float) -> None:
    try:
        reply = await core.port.apply(op)
        if type(reply) is Expired:
            core.engine.correct_clock(reply.now)
            await core.port.apply(Apply(WIRE, op.name, replace(op.command, not_after=deadline(core.engine))))
    except BaseException as error:
        core.keeper.send_later(op, steady() + ttl)
        if not isinstance(error, EngineError):
            raise


def _timeout_error(core: Core, spec: GateSpec, reply: Busy | HalfReleased, wait: float) -> Exception:
    count = reply.count if isinstance(reply, Busy) else 0
    found = holder_info(max(1, count), reply.owner, core.engine.now())
    if wait == 0:
        return LockHeld(name=spec.name, holder=found, count=count)
    return LockTimeout(name=spec.name, waited=wait, holder=found)


def _refuse_deadlock(core: Core, spec: GateSpec, owner: object) -> None:
    for lease in core.held_leases.get((spec.name, owner), ()):
        if isinstance(lease, GateLease) and lease.wire is not None and lease.state is LIVE and not lease.is_lost:
            raise WouldDeadlock(name=spec.name, lock_id=lease.id)
