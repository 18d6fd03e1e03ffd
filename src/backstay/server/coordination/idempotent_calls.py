"""Idempotent calls over HTTP: begin, complete, fail. Request id and fence identify the client that began a call, so any
server can record its outcome. Outcomes have the format of the Python API: either API replays the other's.
"""

from __future__ import annotations

import hashlib

import msgspec

from backstay.engine.base import Apply, steady
from backstay.errors import FingerprintMismatch, InProgress, LeaseLost
from backstay.idempotency.codec import FAILURES, Failure, pack, unpack
from backstay.idempotency.fingerprint import fingerprint
from backstay.idempotency.lease import describe_loss
from backstay.idempotency.machine import (
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
from backstay.runtime.flows import deadline, send_idempotent
from backstay.runtime.lease import instant
from backstay.runtime.serialization import PLAIN_CODEC
from backstay.runtime.validation import to_micros
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Request
from backstay.server.schemas.coordination import BeginReply, BeginRequest


def ticket_of(key: str, request_id: str) -> str:
    return "h" + hashlib.sha256(f"{key}\0{request_id}".encode()).hexdigest()[:31]


async def _send(core: Core, key: str, command: object) -> object:
    op = Apply(IDEMPOTENCY, key, command)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - one of its commands
    sent = await send_idempotent(core.port, core.engine, op, core.policy.lock_retries, core.telemetry)
    return sent.reply


async def begin(request: Request, key: str, body: BeginRequest) -> BeginReply:
    """Begin a call, or return the outcome of a finished one. Raises InProgress (409) and FingerprintMismatch (422)."""
    core = request.server.core
    validation.check_name(key, "key")
    request_id = body.request_id or core.identity.new_id()
    ticket = ticket_of(key, request_id)
    about = fingerprint(body.fingerprint)
    until = steady() + body.wait_seconds
    waits = body.wait_seconds > 0
    latch = core.register_waiter(None, ticket) if waits else None
    request.server.waiting += waits
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
                return _done(key, reply)
            if isinstance(reply, Mismatch):
                raise FingerprintMismatch(name=key, since=instant(reply.since).isoformat())
            if not isinstance(reply, Running):
                raise TypeError(f"not a reply to a begin: {reply!r}")
            left = until - steady()
            if latch is None or left <= 0 or request.server.is_closing:
                raise _running(core, key, reply, body.wait_seconds)
            if not await core.subscribe_inbox(None, sent):
                nap = min(reply.recheck_after / 1_000_000, left)
                await request.wait_for(core.wait_for_turn(ticket, latch, nap, steady(), None))
    finally:
        request.server.waiting -= waits
        if latch is not None:
            core.unregister_waiter(ticket)


def _running(core: Core, key: str, reply: Running, waited: float) -> Refusal:
    left = max(0.0, (reply.until - core.engine.now()) / 1_000_000)
    error = InProgress(name=key, by=reply.by, since=instant(reply.since).isoformat(), waited=waited, retry_after=left)
    return Refusal(409, str(error), headers={"retry-after": "1"}, retry_after=round(left, 3), since=error.since)


def _done(key: str, done: Done) -> BeginReply:
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


async def complete(core: Core, key: str, request_id: str, fence: str, ttl: float, body: bytes, *, failed: bool) -> None:
    """Record an outcome. Raises LeaseLost (409) when the lease expired and another caller took over."""
    number = number_of(fence)
    ticket = ticket_of(key, request_id)
    command = Complete(deadline(core.engine), ticket, number, to_micros(ttl), failed, body)
    reply = await _send(core, validation.check_name(key, "key"), command)
    if isinstance(reply, Lost):
        raise LeaseLost(name=key, lock_id=request_id, fence=number, reason=describe_loss(reply.by))


async def fail(core: Core, key: str, request_id: str, fence: str, error: str, ttl: float, *, replay: bool) -> None:
    """End a call without a result. With `replay` the failure is recorded for later callers; else the next one runs."""
    if replay:
        body = pack(key, FAILURES, Failure("Reported", error))
        await complete(core, key, request_id, fence, ttl, body, failed=True)
        return
    number_of(fence)
    # Idempotent: a call that is gone, or that another caller took over, stays as it is.
    await _send(core, validation.check_name(key, "key"), Abandon(deadline(core.engine), ticket_of(key, request_id), 0))


def number_of(fence: str) -> int:
    if not fence.isascii() or not fence.isdigit() or len(fence) > 19:  # noqa: PLR2004 - 64 bits
        raise Refusal(422, "fence must be the number, as text, that /begin returned")
    return int(fence)
