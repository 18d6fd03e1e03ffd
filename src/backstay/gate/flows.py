"""How a caller gets through a gate and out again. Written once; both APIs run it."""

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
from backstay.gate.durability import confirm, time_to_confirm
from backstay.gate.lease import RELEASED_NOW, Held, Verdict
from backstay.gate.machine import (
    DAY,
    GATE,
    LIFE,
    UNLIMITED,
    Acquire,
    Disagree,
    Full,
    Granted,
    Queued,
    Who,
    Withdraw,
)
from backstay.gate.machine import Held as HeldReply
from backstay.gate.view import Released, first
from backstay.runtime.core import Core
from backstay.runtime.flows import GRACE, STILL_FRESH, Asked, Latch, ask, deadline, persist
from backstay.runtime.lease import LIVE, LOST, RELEASED
from backstay.runtime.validation import micros

T = TypeVar("T")
L = TypeVar("L", bound=Held)


class Spec(Struct, frozen=True, gc=False):
    """What a caller wants of a gate, checked."""

    name: str
    exclusive: bool
    capacity: int
    ttl: float
    renew: bool
    max_hold: float
    max_waiters: int
    reentrant: bool
    #: How many replicas must have a grant before it is handed out.
    replicas: int = 0
    #: Above 0: it lives in n8n's keys, and whoever waits looks so often (s).
    poll: float = 0.0


class Caller(Struct, frozen=True, gc=False):
    """Who asks. What is empty is filled in: a lock_id of its own, this process, this program."""

    lock_id: str = ""
    execution_id: str = ""
    workflow_id: str = ""
    workflow_name: str = ""


NOBODY = Caller()


def send(core: Core, name: str, command: Command) -> Coroutine[Any, Any, Asked]:
    return ask(core.port, core.engine, Apply(GATE, name, command), core.policy.lock_retries, core.telemetry)


def carry_out(core: Core, op: Op[T]) -> Coroutine[Any, Any, T]:
    return persist(core.port, op, retries=core.policy.lock_retries, telemetry=core.telemetry)


async def acquire(core: Core, spec: Spec, caller: Caller, wait: float | None, make: type[L]) -> L:
    """Enter, wait for the turn, confirm. Leaves nothing behind when it fails or is cancelled."""
    if core.closed:
        core.check_open()
    owner = core.port.owner()
    name = spec.name
    if spec.reentrant and (mine := _own(core, spec, owner)):
        mine.depth += 1
        return cast("L", mine)  # leases of one core are of one API
    who = _who(core, caller)
    if spec.poll:
        from backstay.gate.n8n import flows as n8n  # for the few who share a lock with n8n

        return await n8n.acquire(core, spec, who, caller.lock_id, wait, make)
    ticket = core.identity.new_id()
    lock_id = caller.lock_id or ticket
    if caller.execution_id:
        life = micros(max(spec.ttl, spec.max_hold)) + DAY
        await carry_out(core, Tag(GATE, caller.execution_id, name, life))

    started = steady()
    ttl = micros(spec.ttl)
    max_waiters = spec.max_waiters if wait is None or wait > 0 else 0
    latch: Latch | None = None
    under_way = doubt = 0
    ears = core.port.ears() if max_waiters else None
    inbox = core.inbox(ears) if max_waiters else ""
    exclusive, capacity = spec.exclusive, spec.capacity

    def step() -> Apply:
        not_after = deadline(core.engine)
        return Apply(GATE, name, Acquire(not_after, ticket, lock_id, exclusive, capacity, ttl, inbox, max_waiters, who))

    op = step()
    try:
        while True:
            under_way = op.command.not_after
            asked = await ask(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
            under_way = 0
            doubt = max(doubt, asked.doubt_until)
            reply = asked.reply
            if type(reply) is Granted:
                lease = make(core, spec, ticket, lock_id, reply, asked.sent_at, owner, who, doubt)
                core.hold(lease)
                if spec.replicas:
                    await _secure(core, spec, lease, started, wait)
                core.telemetry.counts["lock.granted"] += 1
                if core.telemetry.active:
                    core.telemetry.tell("lock.granted", name=name, fence=reply.fence, waited=steady() - started)
                return lease
            if type(reply) is not Queued:
                raise _refusal(spec, reply)
            if latch is None:
                latch = core.await_hint(ears, ticket)
                core.telemetry.emit("lock.queued", name=name, position=reply.position, lock_id=lock_id)
                _refuse_deadlock(core, spec, owner)
            op, ready = core.engine.prepare(step()), steady()  # there is time now, and none at the hand-over
            if await core.listen(ears, asked.sent_at):
                continue  # a hint may have passed before we listened
            if not await core.nap(ticket, latch, reply.recheck_after / 1_000_000, started, wait):
                raise LockTimeout(name=name, waited=wait or 0.0, holder=first(reply.holders))
            if steady() - ready > STILL_FRESH:
                op = step()
    except BaseException as error:
        if isinstance(error, EngineUnavailable):  # nothing of the last attempt arrived
            under_way = 0
        gone_until = max(doubt, under_way, deadline(core.engine) if under_way else 0)  # the clock may be corrected
        if latch is not None or gone_until:
            leaving = Withdraw(deadline(core.engine), ticket, gone_until)
            if isinstance(error, EngineError):  # it was away just now: whoever gives up is not made to wait again
                _leave_later(core, spec, leaving)
            else:
                await core.port.shield(_leave(core, spec, leaving), GRACE)
        raise
    finally:
        if latch is not None:
            core.forget_hint(ticket)


async def _secure(core: Core, spec: Spec, lease: Held, started: float, wait: float | None) -> None:
    """Wait for replicas, or give the lease back."""
    try:
        await confirm(core, lease, spec.replicas, time_to_confirm(started, wait))
    except BaseException:
        await core.port.shield(_hand_back(lease), GRACE)
        raise


async def _hand_back(lease: Held) -> None:
    with suppress(EngineError):  # the keeper goes on giving it back
        await _give_back(lease)


def _who(core: Core, caller: Caller) -> Who:
    program = core.identity.program
    return Who(
        caller.execution_id or core.identity.process,
        caller.workflow_id or program,
        caller.workflow_name or caller.workflow_id or program,
    )


async def _leave(core: Core, spec: Spec, command: Withdraw) -> None:
    """Withdraw, now or (the engine is away) as soon as it can be told."""
    try:
        reply = await core.port.apply(Apply(GATE, spec.name, command))
        if type(reply) is Expired:
            core.engine.correct(reply.now)
            command = Withdraw(deadline(core.engine), command.ticket, deadline(core.engine))
            await core.port.apply(Apply(GATE, spec.name, command))
    except EngineError:
        _leave_later(core, spec, command)


def _leave_later(core: Core, spec: Spec, command: Withdraw) -> None:
    core.keeper.later(Apply(GATE, spec.name, command), steady() + spec.ttl + LIFE / 1_000_000)


def _own(core: Core, spec: Spec, owner: object) -> Held | None:
    for lease in core.held.get((spec.name, owner), ()):
        if (
            isinstance(lease, Held)
            and lease.exclusive == spec.exclusive
            and (lease.wired is not None) == (spec.poll > 0)
            and lease.state is LIVE
            and not lease.is_lost
        ):
            return lease
    return None


def _refuse_deadlock(core: Core, spec: Spec, owner: object) -> None:
    """Nobody else can end this wait: say so instead of waiting for ever."""
    held = core.held.get((spec.name, owner), ())
    mine = [x for x in held if isinstance(x, Held) and x.state is LIVE and x.wired is None]
    if not mine:
        return
    if spec.exclusive or mine[0].exclusive or (spec.capacity != UNLIMITED and len(mine) >= spec.capacity):
        raise WouldDeadlock(name=spec.name, lock_id=mine[0].id)


def _refusal(spec: Spec, reply: Any) -> Exception:
    match reply:
        case HeldReply(count, holders):
            return LockHeld(name=spec.name, holder=first(holders), count=count)
        case Full(waiters):
            return QueueFull(name=spec.name, waiters=waiters)
        case Disagree(capacity):
            return ConfigError(
                f"{spec.name!r} is in use {_describe(capacity)}, and this caller wants it {_describe(spec.capacity)}:"
                " all callers of one name must agree"
            )
        case _:
            return TypeError(f"not a reply to an acquire: {reply!r}")


def _describe(capacity: int) -> str:
    if capacity == UNLIMITED:
        return "as a read-write lock"
    return "with permits=1 (a lock)" if capacity == 1 else f"with permits={capacity}"


async def renew(lease: Held, ttl: float | None) -> None:
    """Extend now, perhaps to another TTL. Raises LeaseLost; never brings a lost lease back."""
    core = lease.core
    lease.check()
    wanted = ttl if ttl is not None else lease.ttl
    op = lease.renewal(deadline(core.engine), wanted)
    asked = await ask(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
    until, why = lease.judge(asked.reply)
    if why:
        core.let_go(lease)
        lease.lose(why)
        raise lease.loss()
    lease.ttl = wanted
    lease.extend(until, asked.sent_at, wanted)
    core.keeper.changed(lease)


async def release(lease: Held) -> Released:
    """Give it back after checking that it is ours. Raises NotOwner when somebody else has it."""
    if lease.depth > 0:
        lease.depth -= 1
        return Released(released=True, idempotent=False, scope=lease.name, lock_id=lease.id)
    if lease.confirmed:
        return Released(released=True, idempotent=True, scope=lease.name, lock_id=lease.id)
    verdict = await _give_back(lease)
    if verdict.kind == "foreign":
        raise NotOwner(name=lease.name, lock_id=lease.id, holder=verdict.holder)
    return Released(released=True, idempotent=verdict.kind == "absent", scope=lease.name, lock_id=lease.id)


async def leave_body(lease: Held) -> LeaseLost | None:
    """The end of a `with` block: give the lease back; say so when it had been lost before."""
    if lease.depth > 0:
        lease.depth -= 1
        return lease.loss() if lease.is_lost else None
    if lease.confirmed or lease.state is RELEASED:  # the body released it; the keeper goes on where that failed
        return None
    if lease.state is LOST:
        lease.core.let_go(lease)
        return lease.loss()
    loss = lease.loss() if lease.is_lost else None
    try:
        verdict = await _give_back(lease)
    except (EngineError, Closed):
        return loss  # it was ours all the time; the keeper goes on giving it back, or time does
    if loss is None and verdict.kind != "released":
        lease.reason = "the engine no longer knew it at the end"
        return lease.loss()
    return loss


async def _give_back(lease: Held) -> Verdict:
    """Send the release. If that fails, the keeper goes on trying until the lease has ended by itself."""
    core = lease.core
    state = lease.state
    lease.finish()
    op = lease.giving_back(deadline(core.engine))
    try:
        asked = await ask(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
    except BaseException:
        core.keeper.later(op, max(lease.deadline, steady()) + 1.0)
        core.telemetry.emit("lock.release_deferred", name=lease.name, fence=lease.fence)
        raise
    finally:
        core.let_go(lease)  # not before: the next holder waits for the request, nobody for this
    lease.confirmed = True
    core.telemetry.counts["lock.released"] += 1
    if core.telemetry.active:
        core.telemetry.tell("lock.released", name=lease.name, fence=lease.fence)
    verdict = lease.verdict(asked.reply)
    if asked.doubt_until and verdict.kind != "released" and state is not LOST and asked.began < lease.deadline:
        return RELEASED_NOW  # it was ours when the first copy left, so that copy did it or time has
    return verdict
