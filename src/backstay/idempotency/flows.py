"""Operations on an idempotency key: begin a call, run it, store its outcome. Both APIs run the same coroutines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from msgspec import Struct

from backstay.engine.base import Apply, Expired, Micros, Room, steady
from backstay.errors import (
    Closed,
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
    KeyState,
    Lost,
    Mismatch,
    Running,
)
from backstay.runtime.core import Core
from backstay.runtime.flows import Latch, run
from backstay.runtime.lease import LIVE, LOST, Handover, instant
from backstay.runtime.lost_replies import CLEANUP_GRACE, STILL_FRESH, deadline, send_idempotent
from backstay.runtime.serialization import Codec
from backstay.runtime.validation import to_micros

#: For how many seconds the keeper tries to store an outcome that the call could not store.
STORE_RETRY_SECONDS = 60.0
#: Errors of an unavailable engine. After these, a call with on_unavailable="allow" runs unprotected.
UNAVAILABLE_ERRORS = (EngineUnavailable, OutcomeUnknown)


class IdempotencySpec(Struct, frozen=True, gc=False):
    """The validated options of one idempotent call."""

    name: str
    fingerprint: str
    ttl: float
    lease: float
    #: Seconds to wait for a running call with the same key; 0: do not wait; None: no limit.
    wait: float | None
    #: True: an exception is stored and replayed (on_error="replay").
    replays_failures: bool
    #: True: run unprotected while the engine is unavailable (on_unavailable="allow").
    allow: bool
    #: Where the key's record is stored: keys in different rooms never meet.
    room: Room[KeyState] = IDEMPOTENCY


#: A coroutine function that runs the user's function under a lease, or unprotected if the lease is None.
Perform = Callable[[IdempotencyLease | None], Awaitable[Any]]


def replay_or_raise(name: str, done: Done, codec: Codec) -> Any:
    """Return the stored outcome, or raise the stored failure as ReplayedFailure."""
    if done.failed:
        failure: Failure = unpack(name, FAILURES, done.body)
        raise ReplayedFailure(name=name, kind=failure.kind, reason=failure.reason)
    return unpack(name, codec, done.body)


async def begin(
    core: Core, spec: IdempotencySpec, handover: Handover[IdempotencyLease] | None = None
) -> IdempotencyLease | Done | None:
    """Begin a call. Returns its lease if the caller is to run the function. If another caller runs it, waits for its
    end and returns the stored outcome. Returns None if the engine is unavailable and the call may run unprotected. If
    this fails or is cancelled, this attempt is withdrawn from the engine (its ticket). `handover` gets the lease as
    soon as there is one; a caller that is interrupted later passes it to `give_back`.
    """
    if core.closed:
        core.check_open()
    port, engine, wait = core.port, core.engine, spec.wait
    handover = handover or Handover()
    ticket = handover.ticket = core.identity.new_id()
    started = steady()
    waits = wait is None or wait > 0
    subscribers = port.thread_subscribers() if waits else None
    inbox = core.inbox_channel(subscribers) if waits else ""
    latch: Latch | None = None
    under_way = doubt = 0
    op = _begin_op(core, spec, ticket, inbox)
    call: IdempotencyLease | None = None
    try:
        core.callers.add(ticket)
        if core.closed:  # read after `callers` was written: `close` does the two in the other order
            core.check_open()
        handover.withdraw = partial(_abandon_later, core, spec, ticket)
        while True:
            under_way = op.command.not_after
            result = await send_idempotent(port, engine, op, core.policy.lock_retries, core.telemetry)
            reply = result.reply
            if type(reply) is Done:
                under_way = 0
                handover.withdraw = None
                return reply
            doubt = max(doubt, result.doubt_until)
            if type(reply) is Begun:
                call = IdempotencyLease(
                    core, spec.name, ticket, spec.lease, reply, result.sent_at, port.owner(), doubt, spec.room
                )
                handover.lease = call
                core.track(call)
                if core.closed:  # the keeper stops, so the lease would not be renewed
                    core.check_open()
                core.telemetry.emit("idempotency.begun", name=spec.name, fence=reply.fence, waited=steady() - started)
                return call
            if type(reply) is not Running or not waits:
                under_way = 0
                raise _refusal(core, spec, reply, 0.0)
            is_new = latch is None
            if latch is None:
                latch = core.register_waiter(subscribers, ticket)
            under_way = 0  # after the latch was set: each of them makes an interrupted caller abandon its ticket
            if is_new:
                core.telemetry.emit("idempotency.waiting", name=spec.name, by=reply.by)
                _refuse_deadlock(core, spec, port.owner())
            # Encode the next Begin command while this caller waits, so that it is sent without delay when the running
            # call ends.
            op, ready = engine.prepare(_begin_op(core, spec, ticket, inbox)), steady()
            if await core.subscribe_inbox(subscribers, result.sent_at):
                continue  # the call may have ended before the subscription was active: send Begin again at once
            if not await core.wait_for_turn(ticket, latch, reply.recheck_after / 1_000_000, started, wait):
                raise _refusal(core, spec, reply, wait or 0.0)
            if steady() - ready > STILL_FRESH:
                op = _begin_op(core, spec, ticket, inbox)
    except BaseException as error:
        if call is not None:
            await port.shield(abandon(call), CLEANUP_GRACE)
            raise
        if isinstance(error, EngineUnavailable):  # the last Begin was not sent, so it cannot arrive late
            under_way = 0
        # The last Begin may still be on its way. It is valid until its `not_after`, so the engine must refuse this
        # ticket until then. Compute that time anew as well: the estimate of the engine's clock may have been corrected
        # since the Begin was sent.
        gone_until = max(doubt, under_way, deadline(engine) if under_way else 0)
        if latch is not None or gone_until:
            forget = _abandon_ticket(core, spec.room, spec.name, ticket, spec.lease, gone_until)
            await port.shield(forget, CLEANUP_GRACE)
        handover.withdraw = None
        if not spec.allow or not isinstance(error, UNAVAILABLE_ERRORS):
            raise
        core.telemetry.emit("idempotency.unprotected", name=spec.name, error=type(error).__name__)
        return None
    finally:
        core.forget_caller(ticket)


def _begin_op(core: Core, spec: IdempotencySpec, ticket: str, inbox: str) -> Apply:
    by, lease = core.identity.process, to_micros(spec.lease)
    return Apply(spec.room, spec.name, Begin(deadline(core.engine), ticket, by, spec.fingerprint, lease, inbox))


def _refusal(core: Core, spec: IdempotencySpec, reply: Any, waited: float) -> Exception:
    match reply:
        case Running(_, by, since, until):
            left = max(0.0, (until - core.engine.now()) / 1_000_000)
            return InProgress(name=spec.name, by=by, since=instant(since).isoformat(), waited=waited, retry_after=left)
        case Mismatch(_, since):
            return FingerprintMismatch(name=spec.name, since=instant(since).isoformat())
        case _:
            return TypeError(f"not a reply to a begin: {reply!r}")


def _refuse_deadlock(core: Core, spec: IdempotencySpec, owner: object) -> None:
    """Raise WouldDeadlock if this task or thread itself runs the call that it would wait for."""
    for mine in core.held_leases.get((spec.name, owner), ()):
        if isinstance(mine, IdempotencyLease) and mine.room is spec.room and mine.state is LIVE:
            raise WouldDeadlock(name=spec.name, lock_id=mine.id, way_out="A call cannot wait for its own key.")


async def execute(call: IdempotencyLease | None, spec: IdempotencySpec, perform: Perform, codec: Codec) -> Any:
    """Run the function and store its outcome. Without a lease it runs unprotected, and nothing is stored."""
    if call is None:
        return encode_and_rebuild(spec.name, codec, await perform(None))[1]
    core = call.core
    try:
        result = await perform(call)
    except BaseException as error:
        if call.state is LOST:
            call.settled = True
            core.untrack(call)
        elif spec.replays_failures and isinstance(error, Exception):
            await core.port.shield(_store_failure(call, spec, error))
        else:
            await core.port.shield(abandon(call))
        raise
    try:
        body, outcome = encode_and_rebuild(spec.name, codec, result)
    except ConfigError as error:  # the result cannot be stored: store this error, so that the function is not repeated
        await core.port.shield(_store_failure(call, spec, error))
        raise
    # The function has run: store its outcome even if the caller is cancelled now.
    await core.port.shield(store(call, spec, body))
    return outcome  # the result as decoded from its stored form: the same value that later callers get


async def _store_failure(call: IdempotencyLease, spec: IdempotencySpec, error: Exception) -> None:
    body = pack(spec.name, FAILURES, Failure.of(error))
    try:
        await _complete(call, spec, body, failed=True)
    except EngineError:
        return  # the keeper tries to store it again; the caller gets the exception of its own function


async def store(call: IdempotencyLease, spec: IdempotencySpec, body: bytes) -> None:
    """Store the outcome. Raises LeaseLost if another process has taken over the call: the outcome of that process
    counts.
    """
    try:
        reply = await _complete(call, spec, body, failed=False)
    except EngineError as error:
        call.core.telemetry.emit("idempotency.unstored", name=spec.name, error=type(error).__name__)
        if spec.allow and isinstance(error, UNAVAILABLE_ERRORS):
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


async def _complete(call: IdempotencyLease, spec: IdempotencySpec, body: bytes, *, failed: bool) -> Any:
    """Send the outcome to the engine and return its reply. If that fails, the keeper tries to send it later. Until the
    outcome is stored, the keeper renews the lease, so that no other process takes over the call.
    """
    core = call.core
    command = Complete(deadline(core.engine), call.id, call.fence, to_micros(spec.ttl), failed, body)
    op = Apply(call.room, call.name, command)
    try:
        result = await send_idempotent(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
    except BaseException:  # also an interrupt: the function has run, so its outcome is stored
        core.untrack(call)
        core.keeper.send_later(op, steady() + STORE_RETRY_SECONDS, call)
        call.settled = True
        raise
    core.untrack(call)
    call.settled = True
    call.finish()
    core.telemetry.emit("idempotency.stored", name=call.name, fence=call.fence, failed=failed)
    return result.reply


async def abandon(call: IdempotencyLease) -> None:
    """End the call without an outcome, so that the next call runs."""
    core = call.core
    call.finish()
    core.untrack(call)
    core.telemetry.emit("idempotency.abandoned", name=call.name, fence=call.fence)
    await _abandon_ticket(core, call.room, call.name, call.id, call.ttl, call.doubt_until)
    call.settled = True


def give_back(core: Core, handover: Handover[IdempotencyLease]) -> None:
    """End a call whose caller was interrupted (Ctrl-C) before its outcome, or its failure, was sent to the engine. Only
    for the blocking API. Safe to call twice.
    """
    core.forget_caller(handover.ticket)
    call = handover.lease
    if call is None:
        if handover.withdraw is not None:
            handover.withdraw()
        return
    if call.settled:  # the keeper may renew the lease until it has sent the outcome
        return
    with suppress(EngineError, Closed):
        run(abandon(call))
    core.untrack(call)


def _abandon_later(core: Core, spec: IdempotencySpec, ticket: str) -> None:
    """Have the keeper abandon the ticket of a caller that was interrupted while it gave up."""
    op = Apply(spec.room, spec.name, Abandon(deadline(core.engine), ticket, deadline(core.engine)))
    core.keeper.send_later(op, steady() + spec.lease + LIFE / 1_000_000)


async def _abandon_ticket(
    core: Core, room: Room[KeyState], name: str, ticket: str, lease: float, gone_until: Micros
) -> None:
    """Tell the engine that the ticket neither runs nor waits any more. If this request fails, the keeper sends it
    later.
    """
    command = Abandon(deadline(core.engine), ticket, gone_until)
    try:
        reply = await core.port.apply(Apply(room, name, command))
        if type(reply) is Expired:
            core.engine.correct_clock(reply.now)
            command = Abandon(deadline(core.engine), ticket, deadline(core.engine))
            await core.port.apply(Apply(room, name, command))
    except BaseException as error:
        core.keeper.send_later(Apply(room, name, command), steady() + lease + LIFE / 1_000_000)
        if not isinstance(error, EngineError):
            raise
