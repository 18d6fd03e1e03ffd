"""How a caller counts in the windows that n8n counts in.

Every hit counts, also a denied one, so nothing is answered from memory, and a hit whose reply was lost is not sent
again: OutcomeUnknown says that it may have been counted.
"""

from __future__ import annotations

from msgspec.structs import replace

from backstay.engine.base import Apply, Expired, Micros
from backstay.errors import ConfigError, Decision, EngineError, EngineUnavailable, OutcomeUnknown
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.option import taken_scope
from backstay.limit.n8n.machine import WIRE, Counted, Hit, Peek, Reset
from backstay.limit.spec import Spec
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import CORRECTIONS, PATIENCE_MICROS, count_once, persist

#: Attempts after the first where nothing was sent.
RETRIES = 1


async def hit(core: Core, spec: Spec, scope: str, cost: int) -> Decision:
    """Count, and hear whether that is still within the limit."""
    core.check_open()
    cost, scope = validation.count(cost, "cost"), taken_scope(scope, "key")
    try:
        counted = await _in_window(core, spec, scope, Hit(0, _window(spec), 0, cost))
    except EngineError as error:
        core.telemetry.emit("limit.unavailable", name=spec.name, policy=spec.on_unavailable, why=str(error))
        return _instead(core, spec, scope, error)
    decision = _decision(spec, scope, counted.count, counted.now)
    core.telemetry.counts["limit.allowed" if decision.allowed else "limit.denied"] += 1
    return decision


async def peek(core: Core, spec: Spec, scope: str, cost: int) -> Decision:
    """What a hit would hear now."""
    core.check_open()
    cost, scope = validation.count(cost, "cost"), taken_scope(scope, "key")
    try:
        counted = await _in_window(core, spec, scope, Peek(0, _window(spec), 0))
    except EngineError as error:
        return _instead(core, spec, scope, error)
    return _decision(spec, scope, counted.count + cost, counted.now)


async def reset(core: Core, spec: Spec, scope: str) -> None:
    """Forget the window that is open now."""
    core.check_open()
    await _in_window(core, spec, taken_scope(scope, "key"), Reset(0, _window(spec), 0))


def refuse(what: str) -> ConfigError:
    return ConfigError(f"wire='n8n' counts every hit and takes none back, so it has no {what}: use hit and retry_after")


def _window(spec: Spec) -> int:
    return spec.rates[0].window


async def _in_window(core: Core, spec: Spec, scope: str, command: Hit | Peek | Reset) -> Counted:
    """In the window that the server's clock is in; near an edge, or with a clock corrected meanwhile, on the way."""
    now = core.engine.now()
    for _ in range(CORRECTIONS + 1):
        bucket = keys.limit_bucket(now // 1000, _window(spec) // 1000)
        command = replace(command, not_after=now + PATIENCE_MICROS, bucket=bucket)
        op = Apply(WIRE, keys.limit_key(scope, bucket), command)
        if isinstance(command, Hit):
            reply = await count_once(core.port, op, retries=RETRIES, telemetry=core.telemetry)
        else:
            reply = await persist(core.port, op, retries=RETRIES, telemetry=core.telemetry)
        if isinstance(reply, Counted):
            return reply
        if not isinstance(reply, Expired):
            raise TypeError(f"not a reply to a hit: {reply!r}")
        core.engine.correct(reply.now)
        now = reply.now
    raise EngineUnavailable(f"{WIRE.name} {scope!r}: the engine found every attempt too late")


def _instead(core: Core, spec: Spec, scope: str, error: EngineError) -> Decision:
    """What the policy says while the engine is away. A hit that may have been counted is no denial: it is raised."""
    if spec.on_unavailable == "deny" and isinstance(error, OutcomeUnknown):
        raise error
    core.telemetry.counts[f"limit.{spec.on_unavailable}"] += 1
    allowed, rate, now = spec.on_unavailable == "allow", spec.rates[0], core.engine.now()
    left = _left(spec, now)
    count = 0 if allowed else rate.limit
    return Decision(
        allowed,
        scope,
        count,
        rate.limit,
        rate.limit - count,
        left,
        0.0 if allowed else left,
        rate.window / 1000,
        now / 1_000_000,
        spec.on_unavailable,
        str(error),
    )


def _left(spec: Spec, now: Micros) -> float:
    """Seconds until the window is over."""
    window = _window(spec) * 1000
    return (window - now % window) / 1_000_000


def _decision(spec: Spec, scope: str, count: int, now: Micros) -> Decision:
    rate = spec.rates[0]
    allowed = count <= rate.limit
    left = _left(spec, now)
    return Decision(
        allowed,
        scope,
        count,
        rate.limit,
        max(0, rate.limit - count),
        left,
        0.0 if allowed else left,
        rate.window / 1000,
        now / 1_000_000,
    )
