"""Routes of locks, limits and idempotent calls."""

from __future__ import annotations

from backstay.errors import ConfigError, HolderInfo
from backstay.gate.view import Inspection
from backstay.idempotency.codec import pack
from backstay.interop.n8n_wire.option import is_n8n
from backstay.runtime import validation
from backstay.runtime.serialization import PLAIN_CODEC
from backstay.runtime.validation import Wire
from backstay.server.coordination import idempotent_calls
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Request
from backstay.server.http.response import Response
from backstay.server.schemas.coordination import (
    AcquireRequest,
    BeginReply,
    BeginRequest,
    CleanupReply,
    CleanupRequest,
    CompleteCallRequest,
    FailCallRequest,
    HitReply,
    HitRequest,
    HolderView,
    HoldRequest,
    LockReply,
    LocksQuery,
    LockView,
    ReleasedReply,
    ReleaseRequest,
    SettledReply,
    WaiterView,
    WireQuery,
)


def _speaks_n8n(request: Request, wire: Wire) -> bool:
    """Whether the request is for n8n's keys. Raises Refusal (400) when the engine does not support them."""
    try:
        return is_n8n(request.server.core.engine, wire)
    except ConfigError as error:
        raise Refusal(400, str(error)) from None


async def acquire_lock(request: Request, body: AcquireRequest) -> LockReply | Response:
    """Acquire a lock, or wait for it in FIFO order: one long poll of up to 50 s.

    202 means that the lock is not free yet: repeat the request within 30 s to keep the place in the queue, until
    `max_wait_seconds` have passed since the first request. The holder keeps its lock with /renew.
    """
    request.server.check_waiting_limit()
    waits = request.server.n8n_lock_waits if _speaks_n8n(request, body.wire) else request.server.lock_waits
    reply = await waits.acquire(request, waits.parse(request.path["name"], body))
    return reply if reply.acquired else Response(202, reply)


async def confirm_lock(request: Request, body: HoldRequest) -> LockReply:
    """Confirm a grant that was requested with `confirm_seconds`: it then expires `ttl_seconds` from now."""
    waits = request.server.n8n_lock_waits if _speaks_n8n(request, body.wire) else request.server.lock_waits
    return await waits.extend(validation.check_name(request.path["name"]), body.lock_id, body.ttl_seconds)


async def renew_lock(request: Request, body: HoldRequest) -> LockReply:
    """Renew a held lock: it expires `ttl_seconds` from now. A lost lock cannot be renewed."""
    waits = request.server.n8n_lock_waits if _speaks_n8n(request, body.wire) else request.server.lock_waits
    return await waits.extend(validation.check_name(request.path["name"]), body.lock_id, body.ttl_seconds)


async def release_lock(request: Request, body: ReleaseRequest) -> ReleasedReply:
    """Release a lock. A lock of another holder stays as it is (409); a lock that is already released is a success."""
    _speaks_n8n(request, body.wire)
    done = await request.server.stay.locks.release(request.path["name"], body.lock_id, wire=body.wire)
    return ReleasedReply(released=done.released, idempotent=done.idempotent, scope=done.scope, lock_id=done.lock_id)


async def cleanup_locks(request: Request, body: CleanupRequest) -> CleanupReply:
    """Release the locks that a failed execution holds, and no others."""
    _speaks_n8n(request, body.wire)
    done = await request.server.stay.locks.cleanup(body.execution_id, body.scopes, wire=body.wire)
    return CleanupReply(
        cleaned=done.cleaned, cleaned_count=done.cleaned_count, scopes=list(done.scopes), reason=done.reason
    )


def _holder(holder: HolderInfo) -> HolderView:
    return HolderView(
        lock_id=holder.lock_id,
        fence=str(holder.fence),
        execution_id=holder.execution_id,
        workflow_id=holder.workflow_id,
        workflow_name=holder.workflow_name,
        locked_at=holder.locked_at,
        expires_at=holder.expires_at,
        exclusive=holder.exclusive,
    )


def _view(lock: Inspection) -> LockView:
    return LockView(
        name=lock.name,
        fence=str(lock.fence),
        permits=lock.capacity,
        holders=[_holder(holder) for holder in lock.holders],
        queue=[
            WaiterView(
                lock_id=waiter.lock_id,
                position=waiter.position,
                waiting_seconds=waiter.waiting,
                execution_id=waiter.execution_id,
                workflow_id=waiter.workflow_id,
                workflow_name=waiter.workflow_name,
            )
            for waiter in lock.queue
        ],
    )


async def list_locks(request: Request, query: LocksQuery) -> list[LockView]:
    """List locks, semaphores and read-write locks that have holders or waiters. On Redis this scans all keys."""
    return [_view(lock) for lock in await request.server.stay.locks.list(query.prefix)]


async def get_lock(request: Request, query: WireQuery) -> LockView:
    """Return the holders and waiters of a lock; both are empty when it is not in use."""
    _speaks_n8n(request, query.wire)
    return _view(await request.server.stay.locks.inspect(request.path["name"], wire=query.wire))


async def force_release_lock(request: Request, query: WireQuery) -> LockView:
    """Release a lock that others hold. Its fence increases, so that guarded writes of the old holders are refused."""
    _speaks_n8n(request, query.wire)
    name = request.path["name"]
    await request.server.stay.locks.force_release(name, wire=query.wire)
    return _view(await request.server.stay.locks.inspect(name, wire=query.wire))


async def hit_limit(request: Request, body: HitRequest) -> HitReply:
    """Take from a rate limit. `allowed` is the decision; a denial is not an error, and has `retry_after`."""
    _speaks_n8n(request, body.wire)
    rates = list(body.rates)
    if body.limit is not None or body.window_seconds is not None:
        if body.limit is None or body.window_seconds is None or rates:
            raise ConfigError("give a limit as rates, as in ['100/minute'], or as limit and windowSeconds together")
        rates = [f"{body.limit}/{body.window_seconds:.12g}s"]
    if not rates:
        raise ConfigError("a limit needs rates, as in rates: ['100/minute'], or limit and windowSeconds")
    limit = request.server.stay.limit(
        request.path["name"], *rates, algorithm=body.algorithm, burst=body.burst, wire=body.wire
    )
    decision = await limit.hit(body.scope, body.cost)
    return HitReply(
        allowed=decision.allowed,
        scope=decision.scope,
        count=decision.count,
        limit=decision.limit,
        remaining=decision.remaining,
        reset_after=decision.reset_after,
        retry_after=decision.retry_after,
        window_seconds=decision.window,
        by=decision.by,
    )


async def begin_call(request: Request, body: BeginRequest) -> BeginReply:
    """Begin a call that must happen once, or get its outcome. 409: another client runs it."""
    if body.wait_seconds:
        request.server.check_waiting_limit()
    return await idempotent_calls.begin(request, request.path["key"], body)


async def complete_call(request: Request, body: CompleteCallRequest) -> SettledReply:
    """Record the result of a call: later begins of its key get it."""
    key = validation.check_name(request.path["key"], "key")
    raw = pack(key, PLAIN_CODEC, body.result)
    await idempotent_calls.complete(
        request.server.core, key, body.request_id, body.fence, body.ttl_seconds, raw, failed=False
    )
    return SettledReply(key=key, state="completed")


async def fail_call(request: Request, body: FailCallRequest) -> SettledReply:
    """Report that a call failed: the next begin runs it again, or with `replay` gets this failure."""
    key = validation.check_name(request.path["key"], "key")
    await idempotent_calls.fail(
        request.server.core, key, body.request_id, body.fence, body.error, body.ttl_seconds, replay=body.replay
    )
    return SettledReply(key=key, state="failed" if body.replay else "forgotten")
