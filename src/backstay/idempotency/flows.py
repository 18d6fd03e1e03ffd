"""How a call gets its key, runs, and leaves its outcome. Written once; both APIs run it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from msgspec import Struct

from backstay.engine.base import Apply, Expired, Micros, steady
from backstay.errors import (
    ConfigError,
    EngineError,
    EngineUnavailable,
    FingerprintMismatch,
    InProgress,
    OutcomeUnknown,
    ReplayedFailure,
    WouldDeadlock,
)
from backstay.idempotency.codec import FAILURES, Failure, keep, pack, unpack
from backstay.idempotency.lease import Call, why_lost
from backstay.idempotency.machine import (
    IDEMPOTENCY,
    LIFE,
    Abandon,
    Begin,
    Begun,
    Complete,
    Done,
    Lost,
    Mismatch,
    Running,
)
from backstay.runtime.core import Core
from backstay.runtime.flows import GRACE, STILL_FRESH, Latch, ask, deadline
from backstay.runtime.lease import LIVE, LOST, instant
from backstay.runtime.serialization import Codec
from backstay.runtime.validation import micros

#: An outcome that could not be stored at once goes on being offered for this many seconds.
GO_ON = 60.0
#: The engine is away: under `allow` the call runs all the same.
AWAY = (EngineUnavailable, OutcomeUnknown)


class Spec(Struct, frozen=True, gc=False):
    """What a caller wants of a key, checked."""

    name: str
    fingerprint: str
    ttl: float
    lease: float
    #: None: for ever; 0: not at all.
    wait: float | None
    #: Failures are kept and replayed, too.
    replays_failures: bool
    #: An engine that is away does not stop the call.
    allow: bool


#: Runs the caller's function: under a call, which may be lost, or (None) unprotected.
Perform = Callable[[Call | None], Awaitable[Any]]


def replayed(name: str, done: Done, codec: Codec) -> Any:
    if done.failed:
        failure: Failure = unpack(name, FAILURES, done.body)
        raise ReplayedFailure(name=name, kind=failure.kind, reason=failure.reason)
    return unpack(name, codec, done.body)


async def begin(core: Core, spec: Spec) -> Call | Done | None:
    """Start the call, or wait for the one that runs. None: the engine is away, and the call may run all the same.
    Leaves nothing behind when it fails or is cancelled.
    """
    if core.closed:
        core.check_open()
    port, engine, wait = core.port, core.engine, spec.wait
    ticket = core.identity.new_id()
    started = steady()
    waits = wait is None or wait > 0
    ears = port.ears() if waits else None
    inbox = core.inbox(ears) if waits else ""
    latch: Latch | None = None
    under_way = doubt = 0
    op = _step(core, spec, ticket, inbox)
    try:
        while True:
            under_way = op.command.not_after
            asked = await ask(port, engine, op, core.policy.lock_retries, core.telemetry)
            under_way = 0
            reply = asked.reply
            if type(reply) is Done:
                return reply
            doubt = max(doubt, asked.doubt_until)
            if type(reply) is Begun:
                call = Call(core, spec.name, ticket, spec.lease, reply, asked.sent_at, port.owner(), doubt)
                core.hold(call)
                core.telemetry.emit("idempotency.begun", name=spec.name, fence=reply.fence, waited=steady() - started)
                return call
            if type(reply) is not Running or not waits:
                raise _refusal(core, spec, reply, 0.0)
            if latch is None:
                latch = core.await_hint(ears, ticket)
                core.telemetry.emit("idempotency.waiting", name=spec.name, by=reply.by)
                _refuse_deadlock(core, spec.name, port.owner())
            # There is time now, and none when the call has ended.
            op, ready = engine.prepare(_step(core, spec, ticket, inbox)), steady()
            if await core.listen(ears, asked.sent_at):
                continue  # a hint may have passed before we listened
            if not await core.nap(ticket, latch, reply.recheck_after / 1_000_000, started, wait):
                raise _refusal(core, spec, reply, wait or 0.0)
            if steady() - ready > STILL_FRESH:
                op = _step(core, spec, ticket, inbox)
    except BaseException as error:
        if isinstance(error, EngineUnavailable):  # nothing of the last attempt arrived
            under_way = 0
        gone_until = max(doubt, under_way, deadline(engine) if under_way else 0)  # the clock may be corrected
        if latch is not None or gone_until:
            await port.shield(_leave(core, spec.name, ticket, spec.lease, gone_until), GRACE)
        if not spec.allow or not isinstance(error, AWAY):
            raise
        core.telemetry.emit("idempotency.unprotected", name=spec.name, error=type(error).__name__)
        return None
    finally:
        if latch is not None:
            core.forget_hint(ticket)


def _step(core: Core, spec: Spec, ticket: str, inbox: str) -> Apply:
    by, lease = core.identity.process, micros(spec.lease)
    return Apply(IDEMPOTENCY, spec.name, Begin(deadline(core.engine), ticket, by, spec.fingerprint, lease, inbox))


def _refusal(core: Core, spec: Spec, reply: Any, waited: float) -> Exception:
    match reply:
        case Running(_, by, since, until):
            left = max(0.0, (until - core.engine.now()) / 1_000_000)
            return InProgress(name=spec.name, by=by, since=instant(since).isoformat(), waited=waited, retry_after=left)
        case Mismatch(_, since):
            return FingerprintMismatch(name=spec.name, since=instant(since).isoformat())
        case _:
            return TypeError(f"not a reply to a begin: {reply!r}")


def _refuse_deadlock(core: Core, name: str, owner: object) -> None:
    """The call that runs is the one we are in: say so instead of waiting for ever."""
    for mine in core.held.get((name, owner), ()):
        if isinstance(mine, Call) and mine.state is LIVE:
            raise WouldDeadlock(name=name, lock_id=mine.id, way_out="A call cannot wait for its own key.")


async def execute(call: Call | None, spec: Spec, perform: Perform, codec: Codec) -> Any:
    """Run the function and keep its outcome. Without a call it runs unprotected, and nothing is kept."""
    if call is None:
        return keep(spec.name, codec, await perform(None))[1]
    core = call.core
    try:
        result = await perform(call)
    except BaseException as error:
        if call.state is LOST:
            core.let_go(call)
        elif spec.replays_failures and isinstance(error, Exception):
            await core.port.shield(_store_failure(call, spec, error))
        else:
            await core.port.shield(abandon(call))
        raise
    try:
        body, outcome = keep(spec.name, codec, result)
    except ConfigError as error:  # It has run: it must not run again because of that.
        await core.port.shield(_store_failure(call, spec, error))
        raise
    # Whoever is cancelled now has done its work, and the next must hear of it.
    await core.port.shield(store(call, spec, body))
    return outcome  # what the others get, not what the function happened to return


async def _store_failure(call: Call, spec: Spec, error: Exception) -> None:
    body = pack(spec.name, FAILURES, Failure.of(error))
    try:
        await _complete(call, spec, body, failed=True)
    except EngineError:
        return  # the keeper goes on offering it; the caller hears what its function raised


async def store(call: Call, spec: Spec, body: bytes) -> None:
    """Keep the outcome. Raises LeaseLost when somebody else has taken the call over: then theirs counts."""
    try:
        reply = await _complete(call, spec, body, failed=False)
    except EngineError as error:
        call.core.telemetry.emit("idempotency.unstored", name=spec.name, error=type(error).__name__)
        if spec.allow and isinstance(error, AWAY):
            return
        raise OutcomeUnknown(
            f"{spec.name!r} ran, but its outcome could not be stored: {error}. It goes on being offered for {GO_ON:g}"
            " s; after that the call may run again"
        ) from error
    if isinstance(reply, Lost):
        _refuse(call, reply)


def _refuse(call: Call, reply: Lost) -> NoReturn:
    call.reason = call.reason or why_lost(reply.by)
    raise call.loss()


async def _complete(call: Call, spec: Spec, body: bytes, *, failed: bool) -> Any:
    """Renewed until it is stored: an engine that comes back late finds the call still ours."""
    core = call.core
    command = Complete(deadline(core.engine), call.id, call.fence, micros(spec.ttl), failed, body)
    op = Apply(IDEMPOTENCY, call.name, command)
    try:
        asked = await ask(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
    except EngineError:
        core.keeper.later(op, steady() + GO_ON)
        raise
    finally:
        call.finish()
        core.let_go(call)
    core.telemetry.emit("idempotency.stored", name=call.name, fence=call.fence, failed=failed)
    return asked.reply


async def abandon(call: Call) -> None:
    """Leave without an outcome: the next call runs."""
    core = call.core
    call.finish()
    core.let_go(call)
    core.telemetry.emit("idempotency.abandoned", name=call.name, fence=call.fence)
    await _leave(core, call.name, call.id, call.ttl, call.doubt_until)


async def _leave(core: Core, name: str, ticket: str, lease: float, gone_until: Micros) -> None:
    """Say so, now or (the engine is away) as soon as it can be told."""
    command = Abandon(deadline(core.engine), ticket, gone_until)
    try:
        reply = await core.port.apply(Apply(IDEMPOTENCY, name, command))
        if type(reply) is Expired:
            core.engine.correct(reply.now)
            command = Abandon(deadline(core.engine), ticket, deadline(core.engine))
            await core.port.apply(Apply(IDEMPOTENCY, name, command))
    except EngineError:
        core.keeper.later(Apply(IDEMPOTENCY, name, command), steady() + lease + LIFE / 1_000_000)
