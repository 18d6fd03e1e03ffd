"""Idempotent calls over HTTP: begin, complete, fail.

Owner, request id and fence identify the client that began a call, so the client may report the outcome to any server,
and no other owner can. Outcomes are stored in the format of the Python API, so a call recorded through one API is
replayed by the other.
"""

from __future__ import annotations

import msgspec

from backstay.engine.base import Apply, steady
from backstay.errors import FingerprintMismatch, InProgress, LeaseLost
from backstay.http.idempotency import KEY_PREFIX
from backstay.idempotency.codec import FAILURES, Failure, pack, unpack
from backstay.idempotency.fingerprint import fingerprint
from backstay.idempotency.lease import describe_loss
from backstay.idempotency.machine import (
    DAY,
    IDEMPOTENCY,
    Abandon,
    Begin,
    Begun,
    Complete,
    Done,
    Lost,
    Mismatch,
    Running,
)
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.lease import instant
from backstay.runtime.lost_replies import deadline, send_idempotent
from backstay.runtime.serialization import PLAIN_CODEC
from backstay.runtime.validation import to_micros
from backstay.server.coordination.ownership import make_ticket
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Request
from backstay.server.schemas.coordination import BeginReply, BeginRequest


async def _send(core: Core, key: str, command: object) -> object:
    op = Apply(IDEMPOTENCY, key, command)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - callers pass commands of this machine
    sent = await send_idempotent(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
    return sent.reply


async def begin(request: Request, key: str, body: BeginRequest) -> BeginReply:
    """Begin the call `key`, or return its recorded outcome. Raises Refusal (409) while another client runs the call,
    and FingerprintMismatch (422).
    """
    core = request.server.core
    check_key(key)
    request_id = body.request_id or core.identity.new_id()
    ticket = make_ticket(request.principal, key, request_id)
    about = fingerprint(body.fingerprint)
    until = steady() + body.wait_seconds
    waits = body.wait_seconds > 0
    latch = core.register_waiter(None, ticket) if waits else None
    try:
        while True:
            inbox = core.identity.inbox if waits else ""
            sent = steady()
            command = Begin(
                deadline(core.engine), ticket, core.identity.process, about, to_micros(body.lease_seconds), inbox
            )
            reply = await _send(core, key, command)
            if isinstance(reply, Begun):
                return BeginReply(
                    state="begun",
                    key=key,
                    request_id=request_id,
                    fence=str(reply.fence),
                    until=instant(reply.until).isoformat(),
                )
            if isinstance(reply, Done):
                return _outcome_reply(key, reply)
            if isinstance(reply, Mismatch):
                raise FingerprintMismatch(name=key, since=instant(reply.since).isoformat())
            if not isinstance(reply, Running):
                raise TypeError(f"not a reply to a begin: {reply!r}")
            left = until - steady()
            if latch is None or left <= 0 or request.server.is_closing:
                raise _in_progress_refusal(core, key, reply, body.wait_seconds)
            if not await core.subscribe_inbox(None, sent):
                pause = min(reply.recheck_after / 1_000_000, left)
                await request.wait_for(core.wait_for_turn(ticket, latch, pause, steady(), None))
    finally:
        if latch is not None:
            core.unregister_waiter(ticket)


def _in_progress_refusal(core: Core, key: str, reply: Running, waited: float) -> Refusal:
    left = max(0.0, (reply.until - core.engine.now()) / 1_000_000)
    error = InProgress(name=key, by=reply.by, since=instant(reply.since).isoformat(), waited=waited, retry_after=left)
    return Refusal(409, str(error), headers={"retry-after": "1"}, retry_after=round(left, 3), since=error.since)


def _outcome_reply(key: str, done: Done) -> BeginReply:
    until = instant(done.until).isoformat()
    if done.failed:
        failure: Failure = unpack(key, FAILURES, done.body)
        error = f"{failure.kind}: {failure.reason}"
        return BeginReply(state="failed", key=key, request_id="", fence="", until=until, error=error)
    result = unpack(key, PLAIN_CODEC, done.body)
    try:
        msgspec.json.encode(result)
    except (TypeError, ValueError, msgspec.EncodeError):  # a Python program stored a value that JSON cannot express
        result = repr(result)
    return BeginReply(state="completed", key=key, request_id="", fence="", until=until, result=result)


async def complete(
    request: Request, key: str, request_id: str, fence: str, ttl: float, body: bytes, *, failed: bool
) -> None:
    """Record the outcome of a call. Raises LeaseLost (409) when the client's lease has expired and another client has
    begun the call.
    """
    core = request.server.core
    number = parse_fence(core, fence)
    ticket = make_ticket(request.principal, key, request_id)
    command = Complete(deadline(core.engine), ticket, number, to_micros(ttl), failed, body)
    reply = await _send(core, check_key(key), command)
    if isinstance(reply, Lost):
        raise LeaseLost(name=key, lock_id=request_id, fence=number, reason=describe_loss(reply.by))


async def fail(
    request: Request, key: str, request_id: str, fence: str, error: str, ttl: float, *, replay: bool
) -> None:
    """End a call with an error. With `replay`, later callers get this error; without it, the next caller runs the call
    again.
    """
    if replay:
        body = pack(key, FAILURES, Failure("Reported", error))
        await complete(request, key, request_id, fence, ttl, body, failed=True)
        return
    core = request.server.core
    parse_fence(core, fence)
    # Abandon is idempotent: it changes nothing when the call is gone or another caller has taken it over.
    command = Abandon(deadline(core.engine), make_ticket(request.principal, key, request_id), 0)
    await _send(core, check_key(key), command)


def check_key(key: str) -> str:
    """Check the key of a call. The keys of `IdempotencyMiddleware` are refused: a client that completes such a call
    would choose the response of another application.
    """
    if key.startswith(KEY_PREFIX):
        raise Refusal(422, f"keys that start with {KEY_PREFIX!r} belong to IdempotencyMiddleware: choose another key")
    return validation.check_name(key, "key")


def parse_fence(core: Core, fence: str) -> int:
    """Parse a fence. A fence is the engine's time at the grant, so one from the far future was never granted; the
    engine would store it as the key's highest fence.
    """
    if not fence.isascii() or not fence.isdigit() or len(fence) > 19:  # noqa: PLR2004 - the digits of a 64-bit number
        raise Refusal(422, "fence must be the number, as text, that /begin returned")
    if int(fence) > core.engine.now() + DAY:
        raise Refusal(409, f"fence {fence} was never granted. Nothing was changed.")
    return int(fence)
