"""Operations on a gate: acquire, renew, release. The async and the blocking API run the same coroutines."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
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
from backstay.gate.give_back import release_later, withdraw_interrupted, withdraw_later
from backstay.gate.lease import RELEASED_NOW, GateLease, ReleaseOutcome
from backstay.gate.machine import DAY, GATE, UNLIMITED
from backstay.gate.view import Released, first_holder
from backstay.gate.wire import LockWire
from backstay.runtime.core import Core
from backstay.runtime.flows import Latch
from backstay.runtime.lease import LIVE, LOST, RELEASED, Handover
from backstay.runtime.lost_replies import (
    CLEANUP_GRACE,
    STILL_FRESH,
    CommandReply,
    deadline,
    retry_idempotent,
    send_idempotent,
)
from backstay.runtime.validation import to_micros

T = TypeVar("T")
L = TypeVar("L", bound=GateLease)


class GateSpec(Struct, frozen=True, gc=False):
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
    #: With `wire="n8n"`: the code that acquires the lock in n8n's Redis keys. None: the lock is a record of Backstay.
    wire: LockWire | None = None
    #: Seconds between the polls of a waiter. Used only with a wire, which has no queue and no notifications.
    poll: float = 0.0


class CallerOptions(Struct, frozen=True, gc=False):
    """The identity that a caller passes to `acquire`. If a field is empty, lock_id becomes a new id, execution_id the
    name of this process, workflow_id the name of this program, and workflow_name the workflow_id.
    """

    lock_id: str = ""
    execution_id: str = ""
    workflow_id: str = ""
    workflow_name: str = ""


ANONYMOUS = CallerOptions()


def send(core: Core, name: str, command: Command) -> Coroutine[Any, Any, CommandReply]:
    return send_idempotent(core.port, core.engine, Apply(GATE, name, command), core.policy.lock_retries, core.telemetry)


def apply_op(core: Core, op: Op[T]) -> Coroutine[Any, Any, T]:
    return retry_idempotent(core.port, op, retries=core.policy.lock_retries, telemetry=core.telemetry)


async def acquire(
    core: Core,
    spec: GateSpec,
    caller: CallerOptions,
    wait: float | None,
    make: type[L],
    hold: Handover[L] | None = None,
) -> L:
    """Enter the queue, wait for an offer and accept it. On failure or cancellation, withdraw the ticket. `hold` gets
    the lease as soon as there is one; a caller that is interrupted later passes it to `give_back`.
    """
    if core.closed:
        core.check_open()
    owner = core.port.owner()
    name = spec.name
    hold = hold or Handover()
    if spec.reentrant and (mine := _find_reentrant(core, spec, owner)):
        # A Core serves only the async or only the blocking API; L is its lease class.
        hold.lease = held = cast("L", mine)
        held.holds[hold] = None
        return held
    identity = _identify(core, caller)
    if spec.wire is not None:
        return await spec.wire.acquire(core, spec, identity, caller.lock_id, wait, make, hold)
    ticket = hold.ticket = core.identity.new_id()
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
        core.callers.add(ticket)
        if core.closed:  # read after `callers` was written: `close` does the two in the other order
            core.check_open()
        hold.withdraw = partial(withdraw_interrupted, core, spec, ticket)
        while True:
            under_way = op.command.not_after
            result = await send_idempotent(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
            doubt = max(doubt, result.doubt_until)
            reply = result.reply
            if type(reply) is Granted:
                lease = make(core, spec, ticket, lock_id, reply, result.sent_at, owner, identity, doubt)
                hold.lease = lease
                lease.holds[hold] = None
                core.track(lease)
                if core.closed:  # the keeper stops, so the lease would not be renewed
                    core.check_open()
                if spec.replicas:
                    await confirm(core, lease, spec.replicas, time_to_confirm(started, wait))
                core.telemetry.counts["lock.granted"] += 1
                if core.telemetry.has_subscribers:
                    core.telemetry.notify("lock.granted", name=name, fence=reply.fence, waited=steady() - started)
                return lease
            if type(reply) is not Queued:
                under_way = 0
                raise _refusal(spec, reply)
            is_new = latch is None
            if latch is None:
                latch = core.register_waiter(subscribers, ticket)
            under_way = 0  # after the latch was set: each of them makes an interrupted caller withdraw its ticket
            if is_new:
                core.telemetry.emit("lock.queued", name=name, position=reply.position, lock_id=lock_id)
                _refuse_deadlock(core, spec, owner)
            # Encode the next Acquire command before the wait, so that it is sent without delay when this waiter gets an
            # offer.
            op, ready = core.engine.prepare(step()), steady()
            if await core.subscribe_inbox(subscribers, result.sent_at):
                continue  # a hint may have been missed before the subscription was active: send Acquire at once
            if not await core.wait_for_turn(ticket, latch, reply.recheck_after / 1_000_000, started, wait):
                raise LockTimeout(name=name, waited=wait or 0.0, holder=first_holder(reply.holders))
            if steady() - ready > STILL_FRESH:
                op = step()
    except BaseException as error:
        if hold.lease is not None:
            await core.port.shield(_release_quietly(hold.lease), CLEANUP_GRACE)
            raise
        # EngineUnavailable means that the last Acquire was not sent, so no delayed copy of it can reach the engine.
        if isinstance(error, EngineUnavailable):
            under_way = 0
        # A delayed copy of the last Acquire may still arrive. Let the engine refuse it until its `not_after` has
        # passed. Compute that time anew, because the estimate of the engine's clock may have been corrected since the
        # Acquire was sent.
        gone_until = max(doubt, under_way, deadline(core.engine) if under_way else 0)
        if latch is not None or gone_until:
            withdrawal = Withdraw(deadline(core.engine), ticket, gone_until)
            if isinstance(error, EngineError):  # the engine just failed: do not make the caller wait for it again
                withdraw_later(core, spec, withdrawal)
            else:
                await core.port.shield(_withdraw_now(core, spec, withdrawal), CLEANUP_GRACE)
        hold.withdraw = None
        raise
    finally:
        core.forget_caller(ticket)


async def _release_quietly(lease: GateLease) -> None:
    # `_send_release` has passed the release to the keeper, which retries it.
    with suppress(EngineError, Closed):
        await _send_release(lease)


def _identify(core: Core, caller: CallerOptions) -> CallerIdentity:
    program = core.identity.program
    return CallerIdentity(
        caller.execution_id or core.identity.process,
        caller.workflow_id or program,
        caller.workflow_name or caller.workflow_id or program,
    )


async def _withdraw_now(core: Core, spec: GateSpec, command: Withdraw) -> None:
    """Withdraw the ticket from the lock's queue. If the engine is unavailable, the keeper withdraws it later."""
    try:
        reply = await core.port.apply(Apply(GATE, spec.name, command))
        if type(reply) is Expired:
            core.engine.correct_clock(reply.now)
            command = Withdraw(deadline(core.engine), command.ticket, deadline(core.engine))
            await core.port.apply(Apply(GATE, spec.name, command))
    except BaseException as error:
        withdraw_later(core, spec, command)
        if not isinstance(error, EngineError):
            raise


def _find_reentrant(core: Core, spec: GateSpec, owner: object) -> GateLease | None:
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


def _refuse_deadlock(core: Core, spec: GateSpec, owner: object) -> None:
    """Raise WouldDeadlock if this task or thread would wait for a lock that it holds itself."""
    held = core.held_leases.get((spec.name, owner), ())
    mine = [x for x in held if isinstance(x, GateLease) and x.state is LIVE and x.wire is None]
    if not mine:
        return
    if spec.exclusive or mine[0].exclusive or (spec.capacity != UNLIMITED and len(mine) >= spec.capacity):
        raise WouldDeadlock(name=spec.name, lock_id=mine[0].id)


def _refusal(spec: GateSpec, reply: Any) -> Exception:
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
    """Extend the lease now, optionally with another TTL, which later renewals keep. Raises LeaseLost; never revives a
    lost lease.
    """
    core = lease.core
    lease.check()
    wanted = ttl if ttl is not None else lease.ttl
    number = None if ttl is None or lease.wire is not None else lease.number_ttl(ttl)
    op = lease.renewal(deadline(core.engine), wanted, number)
    sent = await send_idempotent(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
    result = lease.judge(sent.reply)
    if result.lost:
        core.untrack(lease)
        lease.lose(result.lost)
        raise lease.loss()
    if lease.wire is not None:
        lease.ttl = wanted  # n8n's keys store no number of the TTL (`number_ttl`), so no renewal shortens a lease there
    lease.record_renewal(result, sent.sent_at, wanted)
    core.keeper.reschedule(lease)


async def release(lease: GateLease) -> Released:
    """Release the lease; if a reentrant holder has acquired it several times, only undo the last acquire. Raises
    NotOwner if another caller holds the lock.
    """
    if len(lease.holds) > 1:
        lease.holds.popitem()
        return Released(released=True, idempotent=False, scope=lease.name, lock_id=lease.id)
    if lease.confirmed:
        return Released(released=True, idempotent=True, scope=lease.name, lock_id=lease.id)
    outcome = await _send_release(lease)
    if outcome.kind == "foreign":
        raise NotOwner(name=lease.name, lock_id=lease.id, holder=outcome.holder)
    return Released(released=True, idempotent=outcome.kind == "absent", scope=lease.name, lock_id=lease.id)


async def release_at_exit(lease: GateLease, hold: object = None) -> LeaseLost | None:
    """Release the lease at the end of a `with` block; if a reentrant holder has acquired it several times, only undo
    the acquire of this block (`hold`, by default the last one). Return LeaseLost if the lease was lost inside the
    block.
    """
    was_undone = hold is not None and bool(lease.holds) and hold not in lease.holds  # by a release() inside the block
    if was_undone or len(lease.holds) > 1:
        if hold is None:
            lease.holds.popitem()
        else:
            lease.holds.pop(hold, None)
        return lease.loss() if lease.is_lost else None
    # The code inside the `with` block has already released the lease, so there is nothing to do. If that release
    # request failed, the keeper repeats it.
    if lease.confirmed or lease.state is RELEASED:
        return None
    if lease.state is LOST:
        lease.core.untrack(lease)
        return lease.loss()
    loss = lease.loss() if lease.is_lost else None
    try:
        outcome = await _send_release(lease)
    except (EngineError, Closed):
        return loss  # a failed release is no error for the caller: the keeper retries it, or the TTL ends the lease
    if loss is None and outcome.kind != "released":
        lease.reason = "the engine no longer knew it at the end of the block"
        return lease.loss()
    return loss


async def _send_release(lease: GateLease) -> ReleaseOutcome:
    """Send the release. If that fails, the keeper retries it until the TTL has ended the lease."""
    core = lease.core
    state = lease.state
    try:
        lease.finish()
        op = lease.release_op(deadline(core.engine))
        result = await send_idempotent(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
        lease.confirmed = True
    except BaseException:
        release_later(lease)
        raise
    finally:
        lease.holds.clear()
        core.untrack(lease)  # after the request was sent, so that this bookkeeping does not delay the next holder
    core.telemetry.counts["lock.released"] += 1
    if core.telemetry.has_subscribers:
        core.telemetry.notify("lock.released", name=lease.name, fence=lease.fence)
    outcome = lease.decode_release(result.reply)
    if result.doubt_until and outcome.kind != "released" and state is not LOST and result.began < lease.deadline:
        return RELEASED_NOW  # the lease was live when the first copy was sent: that copy, or the TTL, ended it
    return outcome
