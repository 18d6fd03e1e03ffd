"""Locks, limits and idempotency for any language."""

from __future__ import annotations

from backstay.errors import ConfigError, HolderInfo
from backstay.gate.view import Inspection
from backstay.idempotency.codec import pack
from backstay.interop.n8n_wire.option import Wire, is_n8n
from backstay.runtime import validation
from backstay.runtime.serialization import ANYTHING
from backstay.server.coordination import idempotent_calls
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Answer, Call
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


def _speaks_n8n(call: Call, wire: Wire) -> bool:
    """Whether it is about n8n's keys. 400 where the engine has none."""
    try:
        return is_n8n(call.server.core.engine, wire)
    except ConfigError as error:
        raise Refusal(400, str(error)) from None


async def acquire_lock(call: Call, body: AcquireRequest) -> LockReply | Answer:
    """Take a lock, or wait for it in line: one long poll of up to 50 s.

    202 says that it is not free yet: send the same request again within 30 s and it goes on waiting in the same place,
    until `max_wait_seconds` are over since the first. A lock that is held is kept with /renew, by whoever holds it.
    """
    call.server.make_room()
    places = call.server.n8n_places if _speaks_n8n(call, body.wire) else call.server.places
    reply = await places.acquire(call, places.wish(call.path["name"], body))
    return reply if reply.acquired else Answer(202, reply)


async def confirm_lock(call: Call, body: HoldRequest) -> LockReply:
    """Confirm a grant that was asked for with `confirm_seconds`: from now on it lives for `ttl_seconds`."""
    places = call.server.n8n_places if _speaks_n8n(call, body.wire) else call.server.places
    return await places.extend(validation.name(call.path["name"]), body.lock_id, body.ttl_seconds)


async def renew_lock(call: Call, body: HoldRequest) -> LockReply:
    """Keep a held lock for `ttl_seconds` from now on. A lost one never comes back."""
    places = call.server.n8n_places if _speaks_n8n(call, body.wire) else call.server.places
    return await places.extend(validation.name(call.path["name"]), body.lock_id, body.ttl_seconds)


async def release_lock(call: Call, body: ReleaseRequest) -> ReleasedReply:
    """Give a lock back. What is somebody else's is left alone (409); what is gone already is a success."""
    _speaks_n8n(call, body.wire)
    done = await call.server.stay.locks.release(call.path["name"], body.lock_id, wire=body.wire)
    return ReleasedReply(released=done.released, idempotent=done.idempotent, scope=done.scope, lock_id=done.lock_id)


async def cleanup_locks(call: Call, body: CleanupRequest) -> CleanupReply:
    """Release what a failed execution holds, and nothing else."""
    _speaks_n8n(call, body.wire)
    done = await call.server.stay.locks.cleanup(body.execution_id, body.scopes, wire=body.wire)
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


async def list_locks(call: Call, query: LocksQuery) -> list[LockView]:
    """Locks, semaphores and read-write locks that somebody holds or waits for. On Redis, a scan of all keys."""
    return [_view(lock) for lock in await call.server.stay.locks.list(query.prefix)]


async def get_lock(call: Call, query: WireQuery) -> LockView:
    """Who holds a lock, and who waits for it. One that nobody uses is empty."""
    _speaks_n8n(call, query.wire)
    return _view(await call.server.stay.locks.inspect(call.path["name"], wire=query.wire))


async def force_release_lock(call: Call, query: WireQuery) -> LockView:
    """Take a lock from whoever holds it. The fence moves on, so that guarded writes of theirs are refused."""
    _speaks_n8n(call, query.wire)
    name = call.path["name"]
    await call.server.stay.locks.force_release(name, wire=query.wire)
    return _view(await call.server.stay.locks.inspect(name, wire=query.wire))


async def hit_limit(call: Call, body: HitRequest) -> HitReply:
    """Take from a limit, or learn when to come back. `allowed` tells; a denial is no error."""
    _speaks_n8n(call, body.wire)
    rates = list(body.rates)
    if body.limit is not None or body.window_seconds is not None:
        if body.limit is None or body.window_seconds is None or rates:
            raise ConfigError("a limit is given by rates, as in ['100/minute'], or by limit and windowSeconds together")
        rates = [f"{body.limit}/{body.window_seconds:.12g}s"]
    if not rates:
        raise ConfigError("a limit has rates, as in rates: ['100/minute'], or limit and windowSeconds")
    limit = call.server.stay.limit(
        call.path["name"], *rates, algorithm=body.algorithm, burst=body.burst, wire=body.wire
    )
    said = await limit.hit(body.scope, body.cost)
    return HitReply(
        allowed=said.allowed,
        scope=said.scope,
        count=said.count,
        limit=said.limit,
        remaining=said.remaining,
        reset_after=said.reset_after,
        retry_after=said.retry_after,
        window_seconds=said.window,
        by=said.by,
    )


async def begin_call(call: Call, body: BeginRequest) -> BeginReply:
    """Start a call that must happen once, or learn what came of it. 409: it runs elsewhere."""
    if body.wait_seconds:
        call.server.make_room()
    return await idempotent_calls.begin(call, call.path["key"], body)


async def complete_call(call: Call, body: CompleteCallRequest) -> SettledReply:
    """Keep what a call came to: whoever begins it from now on gets this."""
    key = validation.name(call.path["key"], "key")
    raw = pack(key, ANYTHING, body.result)
    await idempotent_calls.complete(
        call.server.core, key, body.request_id, body.fence, body.ttl_seconds, raw, failed=False
    )
    return SettledReply(key=key, state="completed")


async def fail_call(call: Call, body: FailCallRequest) -> SettledReply:
    """A call failed: the next one runs, or (`replay`) gets this failure."""
    key = validation.name(call.path["key"], "key")
    await idempotent_calls.fail(
        call.server.core, key, body.request_id, body.fence, body.error, body.ttl_seconds, replay=body.replay
    )
    return SettledReply(key=key, state="failed" if body.replay else "forgotten")
