"""How a caller gets through a gate and out again. Written once; both APIs run it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from holdfast import inputs
from holdfast.core import Core
from holdfast.engine.base import Apply, Command, Micros, Read, Scan, Tag, Tagged, Untag, steady
from holdfast.errors import (
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
from holdfast.flow import PATIENCE, Asked, ask
from holdfast.gate.held import Held
from holdfast.gate.machine import (
    DAY,
    GATE,
    LIFE,
    UNLIMITED,
    Absent,
    Acquire,
    Disagree,
    Evict,
    ForceRelease,
    Foreign,
    Full,
    Granted,
    Queued,
    Release,
    Who,
    Withdraw,
)
from holdfast.gate.machine import Held as HeldReply
from holdfast.gate.machine import Released as ReleasedReply
from holdfast.gate.view import (
    Cleanup,
    ForceReleased,
    Inspection,
    Released,
    first,
    holder_info,
    inspection,
)
from holdfast.inputs import micros
from holdfast.lease import LOST

L = TypeVar("L", bound=Held)


@dataclass(frozen=True, slots=True)
class Spec:
    """What a caller wants of a gate, checked."""

    name: str
    exclusive: bool
    capacity: int
    ttl: float
    renew: bool
    max_hold: float
    max_waiters: int
    reentrant: bool


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. What is empty is filled in: a lock_id of its own, this process, this program."""

    lock_id: str = ""
    execution_id: str = ""
    workflow_id: str = ""
    workflow_name: str = ""


NOBODY = Caller()


def _ask(core: Core, name: str, build: Callable[[Micros], Command]) -> Coroutine[Any, Any, Asked]:
    return ask(
        core.port,
        core.engine,
        GATE,
        name,
        build,
        retries=core.policy.lock_retries,
        telemetry=core.telemetry,
    )


async def acquire(core: Core, spec: Spec, caller: Caller, wait: float | None, make: type[L]) -> L:
    """Enter, wait for the turn, confirm. Leaves nothing behind when it fails or is cancelled."""
    core.check_open()
    owner = core.port.owner()
    if spec.reentrant and (mine := _own(core, spec, owner)):
        mine.depth += 1
        return cast("L", mine)  # leases of one core are of one API
    identity = core.identity
    program = identity.program
    who = Who(
        caller.execution_id or identity.execution_id,
        caller.workflow_id or program,
        caller.workflow_name or caller.workflow_id or program,
    )
    ticket = secrets.token_hex(16)
    lock_id = caller.lock_id or ticket
    if caller.execution_id:
        life = micros(max(spec.ttl, spec.max_hold)) + DAY
        await core.port.apply(Tag(GATE, caller.execution_id, spec.name, life))

    started = steady()
    patient = wait is None or wait > 0
    latch = None
    under_way: Micros = 0

    def build(not_after: Micros) -> Command:
        nonlocal under_way
        under_way = not_after
        return Acquire(
            not_after,
            ticket,
            lock_id,
            spec.exclusive,
            spec.capacity,
            micros(spec.ttl),
            identity.inbox,
            spec.max_waiters if patient else 0,
            who,
        )

    if patient:
        latch = core.latches[ticket] = core.port.latch()
    entered = False
    doubt = 0
    try:
        while True:
            asked = await _ask(core, spec.name, build)
            doubt = max(doubt, asked.doubt_until)
            under_way = 0
            reply = asked.reply
            if type(reply) is Granted:
                lease = make(
                    core,
                    name=spec.name,
                    ticket=ticket,
                    lock_id=lock_id,
                    grant=reply,
                    ttl=spec.ttl,
                    sent_at=asked.sent_at,
                    renews=spec.renew,
                    max_hold=spec.max_hold,
                    exclusive=spec.exclusive,
                    owner=owner,
                    who=who,
                    doubt_until=doubt,
                )
                core.hold(lease)
                core.telemetry.emit("lock.granted", name=spec.name, fence=reply.fence, waited=steady() - started)
                return lease
            if type(reply) is not Queued:
                raise _refusal(spec, reply)
            if not entered:
                entered = True
                core.telemetry.emit("lock.queued", name=spec.name, position=reply.position)
                _refuse_deadlock(core, spec, owner)
                if await core.listen():
                    continue  # a hint may have passed before we listened
            left = None if wait is None else started + wait - steady()
            if left is not None and left <= 0:
                raise LockTimeout(name=spec.name, waited=wait or 0.0, holder=first(reply.holders))
            nap = reply.recheck_after / 1_000_000
            assert latch is not None  # noqa: S101 - only the patient are queued
            await core.port.park(latch, nap if left is None else min(nap, left))
            latch.clear()
    except BaseException as error:
        if isinstance(error, EngineUnavailable):  # nothing of the last attempt arrived
            under_way = 0
        gone_until = max(doubt, under_way)
        if entered or gone_until:
            await core.port.shield(_leave(core, spec, ticket, gone_until))
        raise
    finally:
        if latch is not None:
            core.latches.pop(ticket, None)


async def _leave(core: Core, spec: Spec, ticket: str, gone_until: Micros) -> None:
    """Withdraw, now or (the engine is away) as soon as it can be told."""
    not_after = core.engine.now() + int(PATIENCE * 1_000_000)
    try:
        await core.port.apply(Apply(GATE, spec.name, Withdraw(not_after, ticket, gone_until)))
    except EngineError:
        life = spec.ttl + LIFE / 1_000_000
        forever = core.engine.now() + micros(life)
        core.keeper.later(Apply(GATE, spec.name, Withdraw(forever, ticket, gone_until)), steady() + life)


def _own(core: Core, spec: Spec, owner: object) -> Held | None:
    for lease in core.held.get(spec.name, ()):
        if isinstance(lease, Held) and lease.owner is owner and lease.exclusive == spec.exclusive:
            return None if lease.is_lost else lease
    return None


def _refuse_deadlock(core: Core, spec: Spec, owner: object) -> None:
    """Nobody else can end this wait: say so instead of waiting for ever."""
    mine = [x for x in core.held.get(spec.name, ()) if isinstance(x, Held) and x.owner is owner and not x.is_lost]
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

    def build(not_after: Micros) -> Command:
        return lease.renewal(not_after, wanted).command

    asked = await _ask(core, lease.name, build)
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
    verdict = await give_back(lease)
    if isinstance(verdict, Foreign):
        raise NotOwner(name=lease.name, lock_id=lease.id, holder=first(verdict.holders))
    gone = isinstance(verdict, Absent)
    return Released(released=True, idempotent=gone, scope=lease.name, lock_id=lease.id)


async def give_back(lease: Held) -> ReleasedReply | Absent | Foreign:
    """Send the release. If that fails, the keeper goes on trying until the lease has ended by itself."""
    core = lease.core
    core.let_go(lease)
    lease.finish()

    def build(not_after: Micros) -> Command:
        return Release(not_after, lease.ticket, lease.id, lease.fence, lease.doubt_until)

    try:
        asked = await _ask(core, lease.name, build)
    except BaseException:
        left = max(0.0, lease.deadline - steady()) + 1.0
        not_after = core.engine.now() + micros(left)
        core.keeper.later(Apply(GATE, lease.name, build(not_after)), steady() + left)
        core.telemetry.emit("lock.release_deferred", name=lease.name, fence=lease.fence)
        raise
    lease.confirmed = True
    core.telemetry.emit("lock.released", name=lease.name, fence=lease.fence)
    if asked.doubt_until and not isinstance(asked.reply, ReleasedReply) and steady() < lease.deadline:
        # An earlier copy did it: a lease that had not run out cannot have gone otherwise.
        return ReleasedReply(lease.id)
    reply: ReleasedReply | Absent | Foreign = asked.reply
    return reply


async def leave_body(lease: Held) -> LeaseLost | None:
    """The end of a `with` block: give the lease back; say so when it had been lost before."""
    if lease.depth > 0:
        lease.depth -= 1
        return lease.loss() if lease.is_lost else None
    if lease.confirmed:  # the body released it
        return None
    if lease.state is LOST:
        lease.core.let_go(lease)
        return lease.loss()
    loss = lease.loss() if lease.is_lost else None
    try:
        verdict = await give_back(lease)
    except EngineError:
        return loss  # it was ours all the time; the keeper goes on giving it back
    if loss is None and isinstance(verdict, (Absent, Foreign)):
        lease.reason = "the engine no longer knew it at the end"
        return lease.loss()
    return loss


async def release_by_id(core: Core, name: str, lock_id: str) -> Released:
    """Release what another process took, by its lock_id."""
    core.check_open()
    asked = await _ask(core, name, lambda not_after: Release(not_after, "", lock_id, 0, 0))
    match asked.reply:
        case ReleasedReply():
            return Released(released=True, idempotent=False, scope=name, lock_id=lock_id)
        case Foreign(holders) if not asked.doubt_until:
            raise NotOwner(name=name, lock_id=lock_id, holder=first(holders))
        case _:
            return Released(released=True, idempotent=True, scope=name, lock_id=lock_id)


async def force_release(core: Core, name: str) -> ForceReleased:
    core.check_open()
    asked = await _ask(core, name, ForceRelease)
    holders = tuple(holder_info(h) for h in asked.reply.holders)
    core.telemetry.emit("lock.forced", name=name, fence=asked.reply.fence)
    return ForceReleased(name, asked.reply.fence, holders)


async def inspect(core: Core, name: str) -> Inspection:
    core.check_open()
    reading = await core.port.apply(Read(GATE, name))
    return inspection(name, reading.state, reading.now)


async def list_gates(core: Core, prefix: str) -> list[Inspection]:
    """All gates that somebody holds or waits for. Walks every name: for people, not for programs."""
    core.check_open()
    names = await core.port.apply(Scan(GATE, prefix))
    found = [
        inspection(name, reading.state, reading.now)
        for name, reading in zip(names, await core.port.apply_all([Read(GATE, n) for n in names]), strict=True)
    ]
    return [item for item in found if item.count]


async def cleanup(core: Core, execution_id: str, scopes: Sequence[str] | None) -> Cleanup:
    """Release what one failed execution owns, and nothing else."""
    core.check_open()
    if scopes is not None and not scopes:
        return Cleanup(
            cleaned=False,
            cleaned_count=0,
            scopes=(),
            reason="the list of scopes is empty: nothing to look at",
        )
    indexed = scopes is None
    names = await core.port.apply(Tagged(GATE, execution_id)) if scopes is None else list(dict.fromkeys(scopes))
    cleaned: list[str] = []
    count = 0
    for name in names:
        asked = await _ask(core, name, lambda not_after: Evict(not_after, execution_id))
        if asked.reply.holders:
            cleaned.append(name)
            count += len(asked.reply.holders)
    if indexed and names:
        await core.port.apply(Untag(GATE, execution_id, tuple(names)))
    reason = "" if count else f"execution {execution_id} holds none of the {len(names)} scopes looked at"
    return Cleanup(cleaned=count > 0, cleaned_count=count, scopes=tuple(cleaned), reason=reason)


def checked(scopes: Sequence[str] | None) -> list[str] | None:
    if isinstance(scopes, str):
        raise ConfigError(f"scopes is a list of names, as in scopes=[{scopes!r}]")
    return None if scopes is None else [inputs.name(scope, "scope") for scope in scopes]
