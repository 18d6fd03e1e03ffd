"""Inspect and repair n8n's locks from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstay.engine.base import Apply, Command
from backstay.errors import ConfigError, LeaseLost, NotOwner
from backstay.gate.view import Cleanup, ForceReleased, Inspection, Released, hide_lock_id
from backstay.interop.n8n_wire.gate.machine import (
    WIRE,
    Evict,
    ForceRelease,
    Foreign,
    Inspect,
    Inspected,
    Release,
    Removed,
    Renew,
    Renewed,
    StoredIdentity,
)
from backstay.interop.n8n_wire.gate.machine import Released as ReleasedReply
from backstay.interop.n8n_wire.gate.wire import holder_info, millis
from backstay.interop.n8n_wire.option import is_n8n, is_n8n_lock
from backstay.runtime.core import Core
from backstay.runtime.lost_replies import CommandReply, deadline, send_idempotent


async def send(core: Core, scope: str, command: Command) -> CommandReply:
    core.check_open()
    is_n8n_lock(core.engine, "n8n", scope)
    return await send_idempotent(
        core.port, core.engine, Apply(WIRE, scope, command), core.policy.lock_retries, core.telemetry
    )


async def read_lock(core: Core, scope: str) -> Inspected:
    """Read the counter and the holder's identity of a lock."""
    lock: Inspected = (await send(core, scope, Inspect(deadline(core.engine)))).reply
    return lock


async def inspect(core: Core, scope: str) -> Inspection:
    """Inspect one lock. It lists no waiters, because n8n's keys do not store them."""
    return inspection(scope, await read_lock(core, scope))


def inspection(scope: str, lock: Inspected) -> Inspection:
    """Build the view of a lock from its two keys."""
    found = holder_info(lock.count, lock.owner, lock.now)
    trouble = ""
    if lock.count and not lock.owner.known:
        beside = "an identity that cannot be read" if lock.owner.written else "no identity"
        trouble = f"its counter has {beside} beside it: only force_release or its TTL can release it"
    elif found is not None and not lock.count:
        trouble = "its identity has no counter, because a client crashed while it released the lock; it is free"
    elif lock.count and lock.owner.left < 0:
        trouble = "its counter has no TTL, because a client crashed before it set one"
    return Inspection(scope, 0, 1, (found,) if found is not None and lock.count else (), (), trouble)


async def release_by_id(core: Core, scope: str, lock_id: str, owner_tag: str = "") -> Released:
    """Release a lock that another process or workflow holds, by its lock_id. Raises NotOwner if another lock_id holds
    it or, with `owner_tag`, if no server granted it to this owner. The error then hides the holder's lock_id.
    """
    result = await send(core, scope, Release(deadline(core.engine), lock_id, "", 0, owner_tag))
    match result.reply:
        case ReleasedReply():
            return Released(released=True, idempotent=False, scope=scope, lock_id=lock_id)
        case Foreign(owner) if not result.doubt_until:
            found = holder_info(1, owner, core.engine.now())
            raise NotOwner(name=scope, lock_id=lock_id, holder=hide_lock_id(found) if owner_tag else found)
        case _:
            return Released(released=True, idempotent=True, scope=scope, lock_id=lock_id)


async def extend(core: Core, scope: str, lock_id: str, ttl: float, owner_tag: str = "") -> tuple[StoredIdentity, int]:
    """Extend the lock to `ttl` seconds from now if this lock_id holds it. Returns the holder's identity and the new end
    in µs. Raises LeaseLost if the lock_id does not hold the lock or, with `owner_tag`, if no server granted it to this
    owner. The error then hides the holder's lock_id.
    """
    result = await send(core, scope, Renew(deadline(core.engine), lock_id, millis(ttl), owner_tag))
    reply: Any = result.reply
    if isinstance(reply, Renewed):
        return (await read_lock(core, scope)).owner, reply.until
    found = holder_info(reply.count, reply.owner, core.engine.now())
    found = hide_lock_id(found) if owner_tag else found
    reason = f"it is held by {found} now" if found else "its keys are gone"
    raise LeaseLost(name=scope, lock_id=lock_id, fence=0, reason=reason)


async def force_release(core: Core, scope: str) -> ForceReleased:
    """Delete both keys of the lock. n8n's keys have no fence, so later writes of the old holder cannot be refused."""
    removed: Removed = (await send(core, scope, ForceRelease(deadline(core.engine)))).reply
    core.telemetry.emit("lock.forced", name=scope, fence=0)
    found = holder_info(removed.was, removed.owner, core.engine.now())
    return ForceReleased(scope, 0, (found,) if found is not None else ())


async def cleanup(core: Core, execution_id: str, scopes: Sequence[str] | None, owner_tag: str = "") -> Cleanup:
    """Release the locks in `scopes` that one failed execution holds, and nothing else; with `owner_tag`, only those
    that a server granted to this owner. n8n's keys have no index of an execution's locks, so `scopes` is required.
    """
    core.check_open()
    is_n8n(core.engine, "n8n")
    if scopes is None:
        raise ConfigError("wire='n8n' has no index of an execution's locks: pass scopes=['…', …]")
    if not scopes:
        return Cleanup(cleaned=False, cleaned_count=0, scopes=(), reason="the list of scopes is empty: nothing to do")
    cleaned: list[str] = []
    unidentified: list[str] = []
    for scope in dict.fromkeys(scopes):
        reply = (await send(core, scope, Evict(deadline(core.engine), execution_id, owner_tag))).reply
        if isinstance(reply, Removed):
            cleaned.append(scope)
        elif reply.count and not reply.owner.known:
            unidentified.append(scope)
    reasons = [] if cleaned else [f"execution {execution_id} holds none of the {len(set(scopes))} scopes checked"]
    if unidentified:
        reasons.append(f"held without a readable identity, so not released: {', '.join(unidentified)}")
    return Cleanup(cleaned=bool(cleaned), cleaned_count=len(cleaned), scopes=tuple(cleaned), reason="; ".join(reasons))
