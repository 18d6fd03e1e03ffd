"""Operations on an idempotency key: begin a call, run it, store its outcome. Both APIs run the same coroutines."""

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
from backstay.idempotency.codec import FAILURES, Failure, encode_and_rebuild, pack, unpack
from backstay.idempotency.lease import IdempotencyLease, describe_loss
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
from backstay.runtime.flows import CLEANUP_GRACE, STILL_FRESH, Latch, deadline, send_idempotent
from backstay.runtime.lease import LIVE, LOST, instant
from backstay.runtime.serialization import Codec
from backstay.runtime.validation import to_micros

#: Seconds for which the keeper retries to store an outcome.
STORE_RETRY_SECONDS = 60.0
#: Errors of an unavailable engine. With on_unavailable="allow" the call runs unprotected.
AWAY = (EngineUnavailable, OutcomeUnknown)


class Spec(Struct, frozen=True, gc=False):
    """The validated options of one idempotent call."""

    name: str
    fingerprint: str
    ttl: float
    lease: float
    #: Seconds to wait for a running call; None: for ever, 0: not at all.
    wait: float | None
    #: True: an exception is stored and replayed (on_error="replay").
    replays_failures: bool
    #: True: run unprotected while the engine is unavailable (on_unavailable="allow").
    allow: bool


#: Runs the caller's function: under a lease, which may be lost, or (None) unprotected.
Perform = Callable[[IdempotencyLease | None], Awaitable[Any]]


def replay_or_raise(name: str, done: Done, codec: Codec) -> Any:
    """Return the stored outcome, or raise the stored failure as ReplayedFailure."""
    if done.failed:
        failure: Failure = unpack(name, FAILURES, done.body)
        raise ReplayedFailure(name=name, kind=failure.kind, reason=failure.reason)
    return unpack(name, codec, done.body)


async def begin(core: Core, spec: Spec) -> IdempotencyLease | Done | None:
    """Begin the call and return its lease, or wait for the running call and return its outcome. None: the engine is
    unavailable and the call may run unprotected. On failure or cancellation, abandon the ticket.
    """
    if core.closed:
        core.check_open()
    port, engine, wait = core.port, core.engine, spec.wait
    ticket = core.identity.new_id()
    started = steady()
    waits = wait is None or wait > 0
    subscribers = port.thread_subscribers() if waits else None
    inbox = core.inbox_channel(subscribers) if waits else ""
    latch: Latch | None = None
    under_way = doubt = 0
    op = _begin_op(core, spec, ticket, inbox)
    try:
        while True:
            under_way = op.command.not_after
            asked = await send_idempotent(port, engine, op, core.policy.lock_retries, core.telemetry)
            under_way = 0
            reply = asked.reply
            if type(reply) is Done:
                return reply
            doubt = max(doubt, asked.doubt_until)
            if type(reply) is Begun:
                call = IdempotencyLease(core, spec.name, ticket, spec.lease, reply, asked.sent_at, port.owner(), doubt)
                core.track(call)
                core.telemetry.emit("idempotency.begun", name=spec.name, fence=reply.fence, waited=steady() - started)
                return call
            if type(reply) is not Running or not waits:
                raise _refusal(core, spec, reply, 0.0)
            if latch is None:
                latch = core.register_waiter(subscribers, ticket)
                core.telemetry.emit("idempotency.waiting", name=spec.name, by=reply.by)
                _refuse_deadlock(core, spec.name, port.owner())
            # Encode the next request now, so that it leaves at once when the running call ends.
            op, ready = engine.prepare(_begin_op(core, spec, ticket, inbox)), steady()
            if await core.subscribe_inbox(subscribers, asked.sent_at):
                continue  # a hint may have been published before the subscription was active
            if not await core.wait_for_turn(ticket, latch, reply.recheck_after / 1_000_000, started, wait):
                raise _refusal(core, spec, reply, wait or 0.0)
            if steady() - ready > STILL_FRESH:
                op = _begin_op(core, spec, ticket, inbox)
    except BaseException as error:
        if isinstance(error, EngineUnavailable):  # the engine did not receive the last attempt
            under_way = 0
        # `deadline` again, because the clock offset may have changed since the request was sent.
        gone_until = max(doubt, under_way, deadline(engine) if under_way else 0)
        if latch is not None or gone_until:
            await port.shield(_abandon_ticket(core, spec.name, ticket, spec.lease, gone_until), CLEANUP_GRACE)
        if not spec.allow or not isinstance(error, AWAY):
            raise
        core.telemetry.emit("idempotency.unprotected", name=spec.name, error=type(error).__name__)
        return None
    finally:
        if latch is not None:
            core.unregister_waiter(ticket)


def _begin_op(core: Core, spec: Spec, ticket: str, inbox: str) -> Apply:
    by, lease = core.identity.process, to_micros(spec.lease)
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
    """Raise WouldDeadlock when the running call belongs to this same task or thread."""
    for mine in core.held_leases.get((name, owner), ()):
        if isinstance(mine, IdempotencyLease) and mine.state is LIVE:
            raise WouldDeadlock(name=name, lock_id=mine.id, way_out="A call cannot wait for its own key.")


async def execute(call: IdempotencyLease | None, spec: Spec, perform: Perform, codec: Codec) -> Any:
    """Run the function and store its outcome. Without a lease it runs unprotected, and nothing is stored."""
    if call is None:
        return encode_and_rebuild(spec.name, codec, await perform(None))[1]
    core = call.core
    try:
        result = await perform(call)
    except BaseException as error:
        if call.state is LOST:
            core.untrack(call)
        elif spec.replays_failures and isinstance(error, Exception):
            await core.port.shield(_store_failure(call, spec, error))
        else:
            await core.port.shield(abandon(call))
        raise
    try:
        body, outcome = encode_and_rebuild(spec.name, codec, result)
    except ConfigError as error:  # The function has run: store the failure, so that it does not run again.
        await core.port.shield(_store_failure(call, spec, error))
        raise
    # The work is done: store the outcome even when the caller is cancelled now.
    await core.port.shield(store(call, spec, body))
    return outcome  # the decoded value, as later callers get it


async def _store_failure(call: IdempotencyLease, spec: Spec, error: Exception) -> None:
    body = pack(spec.name, FAILURES, Failure.of(error))
    try:
        await _complete(call, spec, body, failed=True)
    except EngineError:
        return  # the keeper retries it; the caller gets the exception of its function


async def store(call: IdempotencyLease, spec: Spec, body: bytes) -> None:
    """Store the outcome. Raises LeaseLost when another process has taken over the call: then its outcome is stored."""
    try:
        reply = await _complete(call, spec, body, failed=False)
    except EngineError as error:
        call.core.telemetry.emit("idempotency.unstored", name=spec.name, error=type(error).__name__)
        if spec.allow and isinstance(error, AWAY):
            return
        raise OutcomeUnknown(
            f"{spec.name!r} ran, but its outcome could not be stored: {error}. Backstay retries for"
            f" {STORE_RETRY_SECONDS:g} s; after that the call may run again"
        ) from error
    if isinstance(reply, Lost):
        _raise_lost(call, reply)


def _raise_lost(call: IdempotencyLease, reply: Lost) -> NoReturn:
    call.reason = call.reason or describe_loss(reply.by)
    raise call.loss()


async def _complete(call: IdempotencyLease, spec: Spec, body: bytes, *, failed: bool) -> Any:
    """Send the outcome. The keeper renews the lease until it is stored, so that an engine that recovers late still has
    the call.
    """
    core = call.core
    command = Complete(deadline(core.engine), call.id, call.fence, to_micros(spec.ttl), failed, body)
    op = Apply(IDEMPOTENCY, call.name, command)
    try:
        asked = await send_idempotent(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
    except EngineError:
        core.keeper.send_later(op, steady() + STORE_RETRY_SECONDS)
        raise
    finally:
        call.finish()
        core.untrack(call)
    core.telemetry.emit("idempotency.stored", name=call.name, fence=call.fence, failed=failed)
    return asked.reply


async def abandon(call: IdempotencyLease) -> None:
    """End the call without an outcome, so that the next call runs."""
    core = call.core
    call.finish()
    core.untrack(call)
    core.telemetry.emit("idempotency.abandoned", name=call.name, fence=call.fence)
    await _abandon_ticket(core, call.name, call.id, call.ttl, call.doubt_until)


async def _abandon_ticket(core: Core, name: str, ticket: str, lease: float, gone_until: Micros) -> None:
    """Abandon the ticket. While the engine is unavailable, the keeper retries it."""
    command = Abandon(deadline(core.engine), ticket, gone_until)
    try:
        reply = await core.port.apply(Apply(IDEMPOTENCY, name, command))
        if type(reply) is Expired:
            core.engine.correct_clock(reply.now)
            command = Abandon(deadline(core.engine), ticket, deadline(core.engine))
            await core.port.apply(Apply(IDEMPOTENCY, name, command))
    except EngineError:
        core.keeper.send_later(Apply(IDEMPOTENCY, name, command), steady() + lease + LIFE / 1_000_000)
