"""How a caller asks a limit. Written once; both APIs run it.

A hit counts. When its reply is lost, it is sent once more and may be counted twice: too much is never admitted, and at
most the hits whose reply was lost are counted in vain. A refund is not sent again once it may have arrived.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from backstay.engine.base import Apply, Command, Engine, Expired, Micros, Ping, steady
from backstay.errors import BackstayError, Decision, EngineRefused, RateLimited
from backstay.limit.local_fallback import Desk
from backstay.limit.machine import LIMIT, Admitted, Denied, Hit, Peek, Refund, Reply, Reset
from backstay.limit.n8n import flows as n8n
from backstay.limit.reconcile import AWAY, hand_over
from backstay.limit.spec import Spec
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import GRACE, PATIENCE_MICROS, Latch, ask, count_once, deadline
from backstay.runtime.validation import micros

#: A failure that comes quicker than this (s) may be a connection's last word: ask once more. A silence is an answer.
AT_ONCE = 1.0
#: Attempts after the first where nothing counts.
RETRIES = 1


#: Both APIs over one engine count together. A forked child begins without.
_DESKS: WeakKeyDictionary[Engine, Desk] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_DESKS.clear)


def desk_of(core: Core) -> Desk:
    desk: Desk | None = core.notes.get("limit")
    if desk is None:
        desk = core.notes["limit"] = _DESKS.setdefault(core.engine, Desk())
    return desk


async def hit(core: Core, spec: Spec, key: str, cost: int) -> Decision:
    """Take `cost` now, or learn when."""
    if spec.n8n:
        return await n8n.hit(core, spec, key, cost)
    if core.closed:
        core.check_open()
    cost, record = spec.cost(cost), spec.record(key)
    desk = desk_of(core)
    denial = desk.denials.get(record)
    if denial is not None and (again := desk.repeated(denial, record, spec.rules, cost)) is not None:
        core.telemetry.counts["limit.denied"] += 1
        return again
    sent = steady()
    reply, by = await _decide(core, desk, spec, record, Hit(deadline(core.engine), spec.law, spec.rules, cost))
    decision = _decision(spec, key, reply, by, desk)
    if decision.allowed:
        core.telemetry.counts["limit.allowed"] += 1
    else:
        core.telemetry.counts["limit.denied"] += 1
        if by == "engine":
            desk.remember(record, spec.rules, cost, decision, sent)
    return decision


async def peek(core: Core, spec: Spec, key: str, cost: int) -> Decision:
    """What a hit would hear."""
    if spec.n8n:
        return await n8n.peek(core, spec, key, cost)
    core.check_open()
    cost, record = spec.cost(cost), spec.record(key)
    desk = desk_of(core)
    reply, by = await _decide(core, desk, spec, record, Peek(deadline(core.engine), spec.law, spec.rules, cost))
    return _decision(spec, key, reply, by, desk)


async def wait(core: Core, spec: Spec, key: str, cost: int, timeout: float | None) -> Decision:
    """Take the next free moment and sleep until then. Given back when the caller is cancelled meanwhile."""
    if spec.n8n:
        raise n8n.refuse("wait")
    core.check_open()
    cost, record = spec.cost(cost), spec.record(key)
    desk = desk_of(core)
    patience = 0 if timeout == 0 else micros(validation.LONGEST_DURATION if timeout is None else timeout)
    command = Hit(deadline(core.engine), spec.law, spec.rules, cost, patience)
    told: list[tuple[Reply, str]] = []

    async def reserve() -> None:
        told.append(await _decide(core, desk, spec, record, command))

    try:
        await core.port.shield(reserve())
        reply, by = told[0]
        decision = _decision(spec, key, reply, by, desk)
        if type(reply) is Denied:
            core.telemetry.counts["limit.denied"] += 1
            raise RateLimited(decision, name=spec.name)
        if type(reply) is Admitted and reply.delay:
            core.telemetry.emit("limit.waiting", name=spec.name, key=key, seconds=reply.delay / 1_000_000)
            await _sleep(core, reply.delay / 1_000_000)
    except BaseException:
        if told and type(taken := told[0][0]) is Admitted and told[0][1] != "allow":  # which takes nothing
            await core.port.shield(_give_back(core, spec, record, cost, taken.at), GRACE)
        raise
    core.telemetry.counts["limit.allowed"] += 1
    return decision


class Sleeper:
    """Whoever waits is woken when the Backstay closes."""

    def __init__(self, latch: Latch) -> None:
        self._latch = latch

    def wake(self) -> None:
        self._latch.set()


async def _sleep(core: Core, seconds: float) -> None:
    latch = core.port.latch()
    sleeper = Sleeper(latch)
    core.sleepers.add(sleeper)
    try:
        await core.port.park(latch, seconds)
    finally:
        core.sleepers.discard(sleeper)
    core.check_open()


async def _give_back(core: Core, spec: Spec, record: str, cost: int, at: Micros) -> None:
    with suppress(BackstayError):  # time gives it back
        await _refund(core, spec, record, cost, at)


async def refund(core: Core, spec: Spec, key: str, cost: int) -> None:
    """Give back what was taken and not used. Raises OutcomeUnknown when that may or may not have arrived."""
    if spec.n8n:
        raise n8n.refuse("refund")
    core.check_open()
    await _refund(core, spec, spec.record(key), validation.count(cost, "cost"), 0)


async def _refund(core: Core, spec: Spec, record: str, cost: int, at: Micros) -> None:
    desk = desk_of(core)
    desk.forget(record)
    command = Refund(deadline(core.engine), spec.law, spec.rules, cost, at)
    if desk.away and record in desk.locals:
        desk.instead(spec, record, command, core.engine.now())
        return
    while True:
        reply = await count_once(core.port, Apply(LIMIT, record, command), retries=RETRIES, telemetry=core.telemetry)
        if type(reply) is not Expired:
            return
        core.engine.correct(reply.now)
        command = replace(command, not_after=reply.now + PATIENCE_MICROS)


async def reset_limit(core: Core, spec: Spec, key: str) -> None:
    """Forget what a key has taken of a limit."""
    await (n8n.reset(core, spec, key) if spec.n8n else reset(core, spec.record(key)))


async def reset(core: Core, record: str) -> None:
    """Forget what a key has taken."""
    core.check_open()
    desk = desk_of(core)
    desk.forget(record)
    desk.drop(record)
    await ask(core.port, core.engine, Apply(LIMIT, record, Reset(deadline(core.engine))), RETRIES, core.telemetry)


async def _decide(core: Core, desk: Desk, spec: Spec, record: str, command: Command) -> tuple[Reply, str]:
    """The engine's reply or, where it is away, the policy's; and who it was."""
    # Where something is to be handed over, the keeper looks.
    if not desk.away or (not desk.locals and desk.may_look() and await _is_back(core, desk)):
        began, again = steady(), True
        while True:
            try:
                reply: Reply = await core.port.apply(Apply(LIMIT, record, command))
            except AWAY as error:
                quick = steady() - began < AT_ONCE and not isinstance(error, EngineRefused)
                if again and quick:
                    again = False
                    core.telemetry.emit("engine.resend", what=f"limit {record}")
                    continue
                desk.lost(error)
                core.telemetry.emit("limit.unavailable", name=spec.name, policy=spec.on_unavailable, why=str(error))
                break
            if type(reply) is not Expired:
                return reply, "engine"
            core.engine.correct(reply.now)
            command = replace(command, not_after=reply.now + PATIENCE_MICROS)
    core.telemetry.counts[f"limit.{spec.on_unavailable}"] += 1
    reply = desk.instead(spec, record, command, core.engine.now())
    if desk.locals:
        core.keeper.errand("limit", partial(hand_over, core, desk))
    return reply, spec.on_unavailable


async def _is_back(core: Core, desk: Desk) -> bool:
    """Look whether the engine answers."""
    try:
        core.engine.correct(await core.port.apply(Ping()))
    except AWAY as error:
        desk.trouble = str(error)
        return False
    finally:
        desk.look_later()
    desk.away = False
    core.telemetry.emit("limit.back", handed_over=0)
    return True


def _decision(spec: Spec, key: str, reply: Reply, by: str, desk: Desk) -> Decision:
    if type(reply) is Admitted:
        retry = 0.0
    elif type(reply) is Denied:
        retry = reply.retry / 1_000_000
    else:
        raise TypeError(f"not a reply to a hit: {reply!r}")
    rate = spec.rates[reply.rate]
    return Decision(
        type(reply) is Admitted,
        key,
        reply.count,
        rate.limit,
        reply.remaining,
        reply.reset / 1_000_000,
        retry,
        rate.window / 1000,
        reply.at / 1_000_000,
        by,
        "" if by == "engine" else desk.trouble,
    )
