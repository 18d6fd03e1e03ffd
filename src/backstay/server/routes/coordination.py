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
from backstay.server.coordination.held_locks import HeldLocks
from backstay.server.coordination.n8n_held_locks import N8nHeldLocks
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Request
from backstay.server.http.response import Response
from backstay.server.quotas import check_seconds
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


def _uses_n8n_keys(request: Request, wire: Wire) -> bool:
    """Whether the request is for n8n's Redis keys. Raises Refusal (400) if the engine is not Redis."""
    try:
        return is_n8n(request.server.core.engine, wire)
    except ConfigError as error:
        raise Refusal(400, str(error)) from None


def _check_ttl(request: Request, seconds: float | None, what: str) -> None:
    check_seconds(request, seconds, request.server.settings.max_ttl, what)


def _held_locks(request: Request, wire: Wire) -> HeldLocks | N8nHeldLocks:
    server = request.server
    return server.n8n_held_locks if _uses_n8n_keys(request, wire) else server.held_locks


async def acquire_lock(request: Request, body: AcquireRequest) -> LockReply | Response:
    """Acquire a lock, or wait for it in FIFO order: one long poll of up to 50 s.

    202 means that the lock is not free yet: repeat the request within 30 s to keep the place in the queue, until
    `max_wait_seconds` have passed since the first request. The holder keeps its lock with /renew.
    """
    _check_ttl(request, body.ttl_seconds, "ttl_seconds")
    waits = request.server.n8n_lock_waits if _uses_n8n_keys(request, body.wire) else request.server.lock_waits
    reply = await waits.acquire(request, waits.parse(request.principal, request.path["name"], body))
    return reply if reply.acquired else Response(202, reply)


async def confirm_lock(request: Request, body: HoldRequest) -> LockReply:
    """Confirm a lock that was acquired with `confirm_seconds`. Unconfirmed, it expires after that many seconds;
    confirmed, it expires `ttl_seconds` from now. Only its owner and admins can confirm it.
    """
    _check_ttl(request, body.ttl_seconds, "ttl_seconds")
    name = validation.check_name(request.path["name"])
    return await _held_locks(request, body.wire).extend(request.principal, name, body.lock_id, body.ttl_seconds)


async def renew_lock(request: Request, body: HoldRequest) -> LockReply:
    """Renew a held lock: it expires `ttl_seconds` from now. A lost lock cannot be renewed. Only its owner and admins
    can renew it.
    """
    _check_ttl(request, body.ttl_seconds, "ttl_seconds")
    name = validation.check_name(request.path["name"])
    return await _held_locks(request, body.wire).extend(request.principal, name, body.lock_id, body.ttl_seconds)


async def release_lock(request: Request, body: ReleaseRequest) -> ReleasedReply:
    """Release a lock. If another client holds it, nothing changes (409). Releasing a lock twice is a success. Only its
    owner and admins can release it.
    """
    name = validation.check_name(request.path["name"])
    done = await _held_locks(request, body.wire).release(request.principal, name, body.lock_id)
    return ReleasedReply(released=done.released, idempotent=done.idempotent, scope=done.scope, lock_id=done.lock_id)


async def cleanup_locks(request: Request, body: CleanupRequest) -> CleanupReply:
    """Release the locks that the caller's owner acquired with the `execution_id` of a failed execution, and no
    others.
    """
    held = _held_locks(request, body.wire)
    done = await held.cleanup(request.principal, validation.check_name(body.execution_id), body.scopes)
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
    """List locks, semaphores and read-write locks that have holders or waiters. On Redis this scans all keys. Only the
    owner of a lock and admins see its `lock_id`; for others it is "".
    """
    locks = await request.server.held_locks.list_locks(request.principal, query.prefix)
    return [_view(lock) for lock in locks]


async def get_lock(request: Request, query: WireQuery) -> LockView:
    """Return the holders and waiters of a lock; both are empty when it is not in use. Only the owner of a lock and
    admins see its `lock_id`; for others it is "".
    """
    name = validation.check_name(request.path["name"])
    return _view(await _held_locks(request, query.wire).inspect(request.principal, name))


async def force_release_lock(request: Request, query: WireQuery) -> LockView:
    """Release a lock that others hold. Its fence increases, so that guarded writes of the old holders are refused."""
    name = validation.check_name(request.path["name"])
    held = _held_locks(request, query.wire)
    await held.force_release(name)
    return _view(await held.inspect(request.principal, name))


async def hit_limit(request: Request, body: HitRequest) -> HitReply:
    """Count a hit against a rate limit. `allowed` is the decision; a denial is not an error, and sets `retry_after`."""
    _uses_n8n_keys(request, body.wire)
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
    """Begin a call that must happen once, or get its recorded outcome. 409: another client runs the call."""
    _check_ttl(request, body.lease_seconds, "lease_seconds")
    return await idempotent_calls.begin(request, request.path["key"], body)


async def complete_call(request: Request, body: CompleteCallRequest) -> SettledReply:
    """Record the result of a call. Later begins with the same key return it."""
    _check_ttl(request, body.ttl_seconds, "ttl_seconds")
    key = validation.check_name(request.path["key"], "key")
    raw = pack(key, PLAIN_CODEC, body.result)
    await idempotent_calls.complete(request, key, body.request_id, body.fence, body.ttl_seconds, raw, failed=False)
    return SettledReply(key=key, state="completed")


async def fail_call(request: Request, body: FailCallRequest) -> SettledReply:
    """Report that a call failed. The next begin runs the call again; with `replay`, it gets this failure instead."""
    _check_ttl(request, body.ttl_seconds, "ttl_seconds")
    key = validation.check_name(request.path["key"], "key")
    await idempotent_calls.fail(
        request, key, body.request_id, body.fence, body.error, body.ttl_seconds, replay=body.replay
    )
    return SettledReply(key=key, state="failed" if body.replay else "forgotten")
