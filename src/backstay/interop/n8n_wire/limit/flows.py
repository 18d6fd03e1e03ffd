"""Operations on a rate limit that shares its counters (one per time window) with n8n workflows: hit, peek, reset.

Every hit counts, even a denied one. So denials are not cached, and a hit whose reply was lost is not sent again: it
raises OutcomeUnknown, because it may have been counted.
"""

from __future__ import annotations

from msgspec.structs import replace

from backstay.engine.base import Apply, Expired, Micros
from backstay.errors import ConfigError, Decision, EngineError, EngineUnavailable, OutcomeUnknown
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.limit.machine import WIRE, Counted, Hit, Peek, Reset
from backstay.interop.n8n_wire.option import require_scope
from backstay.limit.spec import LimitSpec
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.lost_replies import COMMAND_LIFE_MICROS, CORRECTIONS, retry_idempotent, send_at_most_once

#: How often a request is retried that the engine did not receive.
RETRIES = 1


async def hit(core: Core, spec: LimitSpec, scope: str, cost: int) -> Decision:
    """Count a hit. The decision admits it if the count is within the limit."""
    core.check_open()
    cost, scope = validation.check_count(cost, "cost"), require_scope(scope, "key")
    try:
        counted = await _send_in_window(core, spec, scope, Hit(0, _window(spec), 0, cost))
    except EngineError as error:
        core.telemetry.emit("limit.unavailable", name=spec.name, policy=spec.on_unavailable, why=str(error))
        return _decide_by_policy(core, spec, scope, error)
    decision = _decision(spec, scope, counted.count, counted.now)
    core.telemetry.counts["limit.allowed" if decision.allowed else "limit.denied"] += 1
    return decision


async def peek(core: Core, spec: LimitSpec, scope: str, cost: int) -> Decision:
    """Return the decision that a hit would get now, without counting."""
    core.check_open()
    cost, scope = validation.check_count(cost, "cost"), require_scope(scope, "key")
    try:
        counted = await _send_in_window(core, spec, scope, Peek(0, _window(spec), 0))
    except EngineError as error:
        return _decide_by_policy(core, spec, scope, error)
    return _decision(spec, scope, counted.count + cost, counted.now)


async def reset(core: Core, spec: LimitSpec, scope: str) -> None:
    """Delete the counter of the current window."""
    core.check_open()
    await _send_in_window(core, spec, require_scope(scope, "key"), Reset(0, _window(spec), 0))


def refuse(what: str) -> ConfigError:
    return ConfigError(f"wire='n8n' counts every hit and refunds none, so it has no {what}: use hit and retry_after")


def _window(spec: LimitSpec) -> int:
    return spec.rates[0].window


async def _send_in_window(core: Core, spec: LimitSpec, scope: str, command: Hit | Peek | Reset) -> Counted:
    """Send the command for the current window. If the server's clock is in another window, correct this process's
    estimate of that clock and retry.
    """
    now = core.engine.now()
    for _ in range(CORRECTIONS + 1):
        bucket = keys.limit_bucket(now // 1000, _window(spec) // 1000)
        command = replace(command, not_after=now + COMMAND_LIFE_MICROS, bucket=bucket)
        op = Apply(WIRE, keys.limit_key(scope, bucket), command)
        if isinstance(command, Hit):
            reply = await send_at_most_once(core.port, op, retries=RETRIES, telemetry=core.telemetry)
        else:
            reply = await retry_idempotent(core.port, op, retries=RETRIES, telemetry=core.telemetry)
        if isinstance(reply, Counted):
            return reply
        if not isinstance(reply, Expired):
            raise TypeError(f"not a reply to a hit: {reply!r}")
        core.engine.correct_clock(reply.now)
        now = reply.now
    raise EngineUnavailable(f"{WIRE.name} {scope!r}: every attempt reached the engine after its expiry")


def _decide_by_policy(core: Core, spec: LimitSpec, scope: str, error: EngineError) -> Decision:
    """Decide by `on_unavailable` of the limit, because the engine failed. With "deny", a hit that may have been counted
    gets no decision: OutcomeUnknown is raised.
    """
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


def _left(spec: LimitSpec, now: Micros) -> float:
    """Return the seconds until the window ends."""
    window = _window(spec) * 1000
    return (window - now % window) / 1_000_000


def _decision(spec: LimitSpec, scope: str, count: int, now: Micros) -> Decision:
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
