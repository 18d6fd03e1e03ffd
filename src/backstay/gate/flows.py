"""Operations on a gate: acquire, renew, release. The async and the blocking API run the same coroutines."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar, cast

from msgspec import Struct

from backstay.engine.base import Apply, Command, Expired, Op, Tag, steady
from backstay.errors import (
    Closed,
    ConfigError,
    EngineError,
    EngineUnavailable,
    LeaseLost,
    LockHeld,
    LockTimeout,
    NotOwner,
    QueueFull,
    WouldDeadlock,
)
from backstay.gate.commands import Acquire, Busy, CallerIdentity, CapacityMismatch, Full, Granted, Queued, Withdraw
from backstay.gate.durability import confirm, time_to_confirm
from backstay.gate.lease import RELEASED_NOW, GateLease, ReleaseOutcome
from backstay.gate.machine import DAY, GATE, LIFE, UNLIMITED
from backstay.gate.view import Released, first_holder
from backstay.gate.wire import LockWire
from backstay.runtime.core import Core
from backstay.runtime.flows import (
    CLEANUP_GRACE,
    STILL_FRESH,
    CommandReply,
    Latch,
    deadline,
    retry_idempotent,
    send_idempotent,
)
from backstay.runtime.lease import LIVE, LOST, RELEASED
from backstay.runtime.validation import to_micros

T = TypeVar("T")
L = TypeVar("L", bound=GateLease)


class Spec(Struct, frozen=True, gc=False):
    """The validated options of one lock, semaphore or side of a read-write lock."""

    name: str
    exclusive: bool
    capacity: int
    ttl: float
    renew: bool
    max_hold: float
    max_waiters: int
    reentrant: bool
    #: How many replicas must acknowledge a grant before `acquire` returns.
    replicas: int = 0
    #: Acquires the lock in another program's keys; None: the lock is a record of Backstay.
    wire: LockWire | None = None
    #: Seconds between the polls of a waiter on such a wire, which has no queue and no notifications.
    poll: float = 0.0


class CallerOptions(Struct, frozen=True, gc=False):
    """The identity a caller passes to `acquire`. Defaults: a new lock_id, this process, this program."""

    lock_id: str = ""
    execution_id: str = ""
    workflow_id: str = ""
    workflow_name: str = ""


ANONYMOUS = CallerOptions()


def send(core: Core, name: str, command: Command) -> Coroutine[Any, Any, CommandReply]:
    return send_idempotent(core.port, core.engine, Apply(GATE, name, command), core.policy.lock_retries, core.telemetry)


def apply_op(core: Core, op: Op[T]) -> Coroutine[Any, Any, T]:
    return retry_idempotent(core.port, op, retries=core.policy.lock_retries, telemetry=core.telemetry)


async def acquire(core: Core, spec: Spec, caller: CallerOptions, wait: float | None, make: type[L]) -> L:
    """Enter the queue, wait for an offer and accept it. On failure or cancellation, withdraw the ticket."""
    if core.closed:
        core.check_open()
    owner = core.port.owner()
    name = spec.name
    if spec.reentrant and (mine := _find_reentrant(core, spec, owner)):
        mine.depth += 1
        return cast("L", mine)  # a core serves one API, so its leases have one type
    identity = _identify(core, caller)
    if spec.wire is not None:
        return await spec.wire.acquire(core, spec, identity, caller.lock_id, wait, make)
    ticket = core.identity.new_id()
    lock_id = caller.lock_id or ticket
    if caller.execution_id:
        life = to_micros(max(spec.ttl, spec.max_hold)) + DAY
        await apply_op(core, Tag(GATE, caller.execution_id, name, life))

    started = steady()
    ttl = to_micros(spec.ttl)
    max_waiters = spec.max_waiters if wait is None or wait > 0 else 0
    latch: Latch | None = None
    under_way = doubt = 0
    subscribers = core.port.thread_subscribers() if max_waiters else None
    inbox = core.inbox_channel(subscribers) if max_waiters else ""
    exclusive, capacity = spec.exclusive, spec.capacity

    def step() -> Apply:
        not_after = deadline(core.engine)
        return Apply(
            GATE, name, Acquire(not_after, ticket, lock_id, exclusive, capacity, ttl, inbox, max_waiters, identity)
        )

    op = step()
    try:
        while True:
            under_way = op.command.not_after
            asked = await send_idempotent(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
            under_way = 0
            doubt = max(doubt, asked.doubt_until)
            reply = asked.reply
            if type(reply) is Granted:
                lease = make(core, spec, ticket, lock_id, reply, asked.sent_at, owner, identity, doubt)
                core.track(lease)
                if spec.replicas:
                    await _confirm_replicas(core, spec, lease, started, wait)
                core.telemetry.counts["lock.granted"] += 1
                if core.telemetry.has_subscribers:
                    core.telemetry.notify("lock.granted", name=name, fence=reply.fence, waited=steady() - started)
                return lease
            if type(reply) is not Queued:
                raise _refusal(spec, reply)
            if latch is None:
                latch = core.register_waiter(subscribers, ticket)
                core.telemetry.emit("lock.queued", name=name, position=reply.position, lock_id=lock_id)
                _refuse_deadlock(core, spec, owner)
            op, ready = core.engine.prepare(step()), steady()  # encode now, so that the handoff later is fast
            if await core.subscribe_inbox(subscribers, asked.sent_at):
                continue  # a hint may have been published before the subscription was active
            if not await core.wait_for_turn(ticket, latch, reply.recheck_after / 1_000_000, started, wait):
                raise LockTimeout(name=name, waited=wait or 0.0, holder=first_holder(reply.holders))
            if steady() - ready > STILL_FRESH:
                op = step()
    except BaseException as error:
        if isinstance(error, EngineUnavailable):  # the engine did not receive the last attempt
            under_way = 0
        # `deadline` again, because the clock offset may have changed since the request was sent.
        gone_until = max(doubt, under_way, deadline(core.engine) if under_way else 0)
        if latch is not None or gone_until:
            leaving = Withdraw(deadline(core.engine), ticket, gone_until)
            if isinstance(error, EngineError):  # the engine just failed: do not make the caller wait for it again
                _withdraw_later(core, spec, leaving)
            else:
                await core.port.shield(_withdraw_now(core, spec, leaving), CLEANUP_GRACE)
        raise
    finally:
        if latch is not None:
            core.unregister_waiter(ticket)


async def _confirm_replicas(core: Core, spec: Spec, lease: GateLease, started: float, wait: float | None) -> None:
    """Wait until enough replicas have the lease. On failure, release it."""
    try:
        await confirm(core, lease, spec.replicas, time_to_confirm(started, wait))
    except BaseException:
        await core.port.shield(_release_quietly(lease), CLEANUP_GRACE)
        raise


async def _release_quietly(lease: GateLease) -> None:
    with suppress(EngineError):  # the keeper retries the release
        await _send_release(lease)


def _identify(core: Core, caller: CallerOptions) -> CallerIdentity:
    program = core.identity.program
    return CallerIdentity(
        caller.execution_id or core.identity.process,
        caller.workflow_id or program,
        caller.workflow_name or caller.workflow_id or program,
    )


async def _withdraw_now(core: Core, spec: Spec, command: Withdraw) -> None:
    """Withdraw the ticket. While the engine is unavailable, the keeper retries it."""
    try:
        reply = await core.port.apply(Apply(GATE, spec.name, command))
        if type(reply) is Expired:
            core.engine.correct_clock(reply.now)
            command = Withdraw(deadline(core.engine), command.ticket, deadline(core.engine))
            await core.port.apply(Apply(GATE, spec.name, command))
    except EngineError:
        _withdraw_later(core, spec, command)


def _withdraw_later(core: Core, spec: Spec, command: Withdraw) -> None:
    core.keeper.send_later(Apply(GATE, spec.name, command), steady() + spec.ttl + LIFE / 1_000_000)


def _find_reentrant(core: Core, spec: Spec, owner: object) -> GateLease | None:
    for lease in core.held_leases.get((spec.name, owner), ()):
        if (
            isinstance(lease, GateLease)
            and lease.exclusive == spec.exclusive
            and (lease.wire is None) == (spec.wire is None)
            and lease.state is LIVE
            and not lease.is_lost
        ):
            return lease
    return None


def _refuse_deadlock(core: Core, spec: Spec, owner: object) -> None:
    """Raise WouldDeadlock when this task or thread already holds what it would wait for."""
    held = core.held_leases.get((spec.name, owner), ())
    mine = [x for x in held if isinstance(x, GateLease) and x.state is LIVE and x.wire is None]
    if not mine:
        return
    if spec.exclusive or mine[0].exclusive or (spec.capacity != UNLIMITED and len(mine) >= spec.capacity):
        raise WouldDeadlock(name=spec.name, lock_id=mine[0].id)


def _refusal(spec: Spec, reply: Any) -> Exception:
    match reply:
        case Busy(count, holders):
            return LockHeld(name=spec.name, holder=first_holder(holders), count=count)
        case Full(waiters):
            return QueueFull(name=spec.name, waiters=waiters)
        case CapacityMismatch(capacity):
            return ConfigError(
                f"{spec.name!r} is in use {_describe(capacity)}, but this caller wants it {_describe(spec.capacity)}:"
                " all callers of one name must agree"
            )
        case _:
            return TypeError(f"not a reply to an acquire: {reply!r}")


def _describe(capacity: int) -> str:
    if capacity == UNLIMITED:
        return "as a read-write lock"
    return "with permits=1 (a lock)" if capacity == 1 else f"with permits={capacity}"


async def renew(lease: GateLease, ttl: float | None) -> None:
    """Extend the lease now, optionally with another TTL. Raises LeaseLost; never revives a lost lease."""
    core = lease.core
    lease.check()
    wanted = ttl if ttl is not None else lease.ttl
    op = lease.renewal(deadline(core.engine), wanted)
    asked = await send_idempotent(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
    until, why = lease.judge(asked.reply)
    if why:
        core.untrack(lease)
        lease.lose(why)
        raise lease.loss()
    lease.ttl = wanted
    lease.extend(until, asked.sent_at, wanted)
    core.keeper.reschedule(lease)


async def release(lease: GateLease) -> Released:
    """Release the lease; a reentrant holder leaves one level. Raises NotOwner when another caller holds the lock."""
    if lease.depth > 0:
        lease.depth -= 1
        return Released(released=True, idempotent=False, scope=lease.name, lock_id=lease.id)
    if lease.confirmed:
        return Released(released=True, idempotent=True, scope=lease.name, lock_id=lease.id)
    outcome = await _send_release(lease)
    if outcome.kind == "foreign":
        raise NotOwner(name=lease.name, lock_id=lease.id, holder=outcome.holder)
    return Released(released=True, idempotent=outcome.kind == "absent", scope=lease.name, lock_id=lease.id)


async def release_at_exit(lease: GateLease) -> LeaseLost | None:
    """Release the lease at the end of a `with` block. Return LeaseLost if the lease was lost inside the block."""
    if lease.depth > 0:
        lease.depth -= 1
        return lease.loss() if lease.is_lost else None
    if lease.confirmed or lease.state is RELEASED:  # the body released it; if that failed, the keeper retries
        return None
    if lease.state is LOST:
        lease.core.untrack(lease)
        return lease.loss()
    loss = lease.loss() if lease.is_lost else None
    try:
        outcome = await _send_release(lease)
    except (EngineError, Closed):
        return loss  # the lease was held throughout; the keeper retries the release, or the TTL ends the lease
    if loss is None and outcome.kind != "released":
        lease.reason = "the engine no longer knew it at the end of the block"
        return lease.loss()
    return loss


async def _send_release(lease: GateLease) -> ReleaseOutcome:
    """Send the release. If that fails, the keeper retries it until the TTL has ended the lease."""
    core = lease.core
    state = lease.state
    lease.finish()
    op = lease.release_op(deadline(core.engine))
    try:
        asked = await send_idempotent(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
    except BaseException:
        core.keeper.send_later(op, max(lease.deadline, steady()) + 1.0)
        core.telemetry.emit("lock.release_deferred", name=lease.name, fence=lease.fence)
        raise
    finally:
        core.untrack(lease)  # after the request: the next holder waits for the request, not for this bookkeeping
    lease.confirmed = True
    core.telemetry.counts["lock.released"] += 1
    if core.telemetry.has_subscribers:
        core.telemetry.notify("lock.released", name=lease.name, fence=lease.fence)
    outcome = lease.decode_release(asked.reply)
    if asked.doubt_until and outcome.kind != "released" and state is not LOST and asked.began < lease.deadline:
        return RELEASED_NOW  # the lease was live when the first copy was sent: that copy, or the TTL, ended it
    return outcome
