"""Operations on a rate limit: hit, peek, wait, refund, reset. Both APIs run the same coroutines.

A hit is not idempotent. When its reply is lost, it is sent once more and may be charged twice: that never admits too
much, and the key loses at most the cost of the hits whose reply was lost. A refund is sent at most once, because a
second copy would refund too much.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from backstay.engine.base import Apply, Command, Engine, Expired, Micros, Ping, steady
from backstay.errors import BackstayError, Decision, EngineRefused, RateLimited
from backstay.limit.local_fallback import LocalFallback
from backstay.limit.machine import LIMIT, Admitted, Denied, Hit, Peek, Refund, Reply, Reset
from backstay.limit.reconcile import UNAVAILABLE_ERRORS, reconcile
from backstay.limit.spec import LimitSpec
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.lost_replies import (
    CLEANUP_GRACE,
    COMMAND_LIFE_MICROS,
    deadline,
    send_at_most_once,
    send_idempotent,
)
from backstay.runtime.services import Service
from backstay.runtime.validation import to_micros

#: A failure within this many seconds may only be a stale connection, so the hit is sent once more. After a slower
#: failure (a timeout) the engine counts as unavailable.
QUICK_FAILURE = 1.0
#: How often an operation that charges nothing, such as a reset, is retried while the engine is unreachable.
RETRIES = 1


#: A LocalFallback decides hits while its engine is unavailable, and counts them in this process. There is one per
#: engine, so that an async and a blocking Backstay on one engine share these counts. A forked child starts without any.
_FALLBACKS: WeakKeyDictionary[Engine, LocalFallback] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_FALLBACKS.clear)


LOCAL_FALLBACK: Service[LocalFallback] = Service(
    "local limits", lambda core: _FALLBACKS.setdefault(core.engine, LocalFallback())
)


async def hit(core: Core, spec: LimitSpec, key: str, cost: int) -> Decision:
    """Charge `cost` now, or return a denial that says when to retry."""
    if spec.wire is not None:
        return await spec.wire.hit(core, spec, key, cost)
    if core.closed:
        core.check_open()
    fallback = core.services.get(LOCAL_FALLBACK)
    # A cached denial needs no validation: its key and cost were validated before the engine denied them.
    record = spec.prefix + key if type(key) is str else spec.record(key)
    denied = fallback.repeat_denial(record, spec.rules, cost)
    if denied is not None:
        core.telemetry.counts["limit.denied"] += 1
        return denied
    cost, record = spec.cost(cost), spec.record(key)
    sent = steady()
    reply, by = await _decide(
        core, fallback, spec, record, Hit(deadline(core.engine), spec.algorithm_id, spec.rules, cost)
    )
    decision = _decision(spec, key, reply, by, fallback)
    if decision.allowed:
        core.telemetry.counts["limit.allowed"] += 1
    else:
        core.telemetry.counts["limit.denied"] += 1
        if by == "engine":
            fallback.cache_denial(record, spec.rules, cost, decision, sent)
    return decision


async def peek(core: Core, spec: LimitSpec, key: str, cost: int) -> Decision:
    """Return the decision that a hit would get, without charging."""
    if spec.wire is not None:
        return await spec.wire.peek(core, spec, key, cost)
    core.check_open()
    cost, record = spec.cost(cost), spec.record(key)
    fallback = core.services.get(LOCAL_FALLBACK)
    reply, by = await _decide(
        core, fallback, spec, record, Peek(deadline(core.engine), spec.algorithm_id, spec.rules, cost)
    )
    return _decision(spec, key, reply, by, fallback)


async def wait(core: Core, spec: LimitSpec, key: str, cost: int, timeout: float | None) -> Decision:
    """Reserve the earliest time at which the limit allows the cost, and sleep until then. Cancellation refunds the
    reservation.
    """
    if spec.wire is not None:
        raise spec.wire.refuse("wait")
    core.check_open()
    cost, record = spec.cost(cost), spec.record(key)
    fallback = core.services.get(LOCAL_FALLBACK)
    patience = 0 if timeout == 0 else to_micros(validation.LONGEST_DURATION if timeout is None else timeout)
    command = Hit(deadline(core.engine), spec.algorithm_id, spec.rules, cost, patience)
    decided: list[tuple[Reply, str]] = []
    caller = core.identity.new_id()

    async def reserve() -> None:
        decided.append(await _decide(core, fallback, spec, record, command))

    core.callers.add(caller)
    try:
        core.check_open()
        await core.port.shield(reserve())
        reply, by = decided[0]
        decision = _decision(spec, key, reply, by, fallback)
        if type(reply) is Denied:
            core.telemetry.counts["limit.denied"] += 1
            raise RateLimited(decision, name=spec.name)
        if type(reply) is Admitted and reply.delay:
            core.telemetry.emit("limit.waiting", name=spec.name, key=key, seconds=reply.delay / 1_000_000)
            await core.park(core.port.latch(), reply.delay / 1_000_000)
    except BaseException:
        # Refund what was charged. If the policy "allow" decided instead of the engine, nothing was charged.
        if decided and type(taken := decided[0][0]) is Admitted and decided[0][1] != "allow":
            await core.port.shield(_refund_quietly(core, spec, record, cost, taken.at), CLEANUP_GRACE)
        raise
    finally:
        core.callers.discard(caller)
    core.telemetry.counts["limit.allowed"] += 1
    return decision


async def _refund_quietly(core: Core, spec: LimitSpec, record: str, cost: int, at: Micros) -> None:
    with suppress(BackstayError):  # a reservation that is not refunded expires by itself
        await _refund(core, spec, record, cost, at)


async def refund(core: Core, spec: LimitSpec, key: str, cost: int) -> None:
    """Refund a cost that was not used. Raises OutcomeUnknown when it is unknown whether the engine refunded it."""
    if spec.wire is not None:
        raise spec.wire.refuse("refund")
    core.check_open()
    await _refund(core, spec, spec.record(key), validation.check_count(cost, "cost"), 0)


async def _refund(core: Core, spec: LimitSpec, record: str, cost: int, at: Micros) -> None:
    fallback = core.services.get(LOCAL_FALLBACK)
    fallback.drop_denial(record)
    command = Refund(deadline(core.engine), spec.algorithm_id, spec.rules, cost, at)
    if fallback.is_unavailable and record in fallback.locals:
        fallback.decide(spec, record, command, core.engine.now())
        return
    while True:
        reply = await send_at_most_once(
            core.port, Apply(LIMIT, record, command), retries=RETRIES, telemetry=core.telemetry
        )
        if type(reply) is not Expired:
            return
        core.engine.correct_clock(reply.now)
        command = replace(command, not_after=reply.now + COMMAND_LIFE_MICROS)


async def reset_limit(core: Core, spec: LimitSpec, key: str) -> None:
    """Set the count of a key to zero, in Backstay's record or, with `wire="n8n"`, in n8n's."""
    await (reset(core, spec.record(key)) if spec.wire is None else spec.wire.reset(core, spec, key))


async def reset(core: Core, record: str) -> None:
    """Delete the record of one key on the engine, and what this process counted for the key while the engine was
    unavailable (LocalFallback).
    """
    core.check_open()
    fallback = core.services.get(LOCAL_FALLBACK)
    fallback.drop_denial(record)
    fallback.drop(record)
    await send_idempotent(
        core.port, core.engine, Apply(LIMIT, record, Reset(deadline(core.engine))), RETRIES, core.telemetry
    )


async def _decide(
    core: Core, fallback: LocalFallback, spec: LimitSpec, record: str, command: Command
) -> tuple[Reply, str]:
    """Return the reply to the command, and who decided it: "engine", or the policy ("deny", "allow" or "local") while
    the engine is unavailable.
    """
    # While there are local records, no caller probes the engine: the keeper does, and charges the engine with the local
    # records before the engine decides again.
    if not fallback.is_unavailable or (
        not fallback.locals and fallback.may_probe() and await _probe_engine(core, fallback)
    ):
        began, may_resend = steady(), True
        while True:
            try:
                reply: Reply = await core.port.apply(Apply(LIMIT, record, command))
            except UNAVAILABLE_ERRORS as error:
                quick = steady() - began < QUICK_FAILURE and not isinstance(error, EngineRefused)
                if may_resend and quick:
                    may_resend = False
                    core.telemetry.emit("engine.resend", what=f"limit {record}")
                    continue
                fallback.mark_unavailable(error)
                core.telemetry.emit("limit.unavailable", name=spec.name, policy=spec.on_unavailable, why=str(error))
                break
            if type(reply) is not Expired:
                return reply, "engine"
            core.engine.correct_clock(reply.now)
            command = replace(command, not_after=reply.now + COMMAND_LIFE_MICROS)
    core.telemetry.counts[f"limit.{spec.on_unavailable}"] += 1
    reply = fallback.decide(spec, record, command, core.engine.now())
    if fallback.locals:
        core.keeper.run_until_done("limit", partial(reconcile, core, fallback))
    return reply, spec.on_unavailable


async def _probe_engine(core: Core, fallback: LocalFallback) -> bool:
    """Send a Ping to the engine. Returns True if it replied: from then on the engine decides, no longer the policy."""
    try:
        core.engine.correct_clock(await core.port.apply(Ping()))
    except UNAVAILABLE_ERRORS as error:
        fallback.last_error = str(error)
        return False
    finally:
        fallback.probe_later()
    fallback.is_unavailable = False
    core.telemetry.emit("limit.recovered", reconciled=0)
    return True


def _decision(spec: LimitSpec, key: str, reply: Reply, by: str, fallback: LocalFallback) -> Decision:
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
        "" if by == "engine" else fallback.last_error,
    )
