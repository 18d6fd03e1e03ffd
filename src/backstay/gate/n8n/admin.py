"""Looking at n8n's locks from outside, and setting right what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstay.engine.base import Apply, Command
from backstay.errors import ConfigError, LeaseLost, NotOwner
from backstay.gate.n8n.machine import (
    WIRE,
    Evict,
    ForceRelease,
    Foreign,
    Look,
    Owner,
    Release,
    Removed,
    Renew,
    Renewed,
    Seen,
)
from backstay.gate.n8n.machine import Released as ReleasedReply
from backstay.gate.n8n.wire import holder, millis
from backstay.gate.view import Cleanup, ForceReleased, Inspection, Released
from backstay.interop.n8n_wire.option import is_n8n, locks_n8n
from backstay.runtime.core import Core
from backstay.runtime.flows import Asked, ask, deadline


async def send(core: Core, scope: str, command: Command) -> Asked:
    core.check_open()
    locks_n8n(core.engine, "n8n", scope)
    return await ask(core.port, core.engine, Apply(WIRE, scope, command), core.policy.lock_retries, core.telemetry)


async def look(core: Core, scope: str) -> Seen:
    """Count and identity as they stand."""
    seen: Seen = (await send(core, scope, Look(deadline(core.engine)))).reply
    return seen


async def inspect(core: Core, scope: str) -> Inspection:
    """One lock at this moment. Who waits for it is written nowhere."""
    seen = await look(core, scope)
    found = holder(seen.count, seen.owner, seen.now)
    trouble = ""
    if seen.count and not seen.owner.known:
        beside = "an identity that cannot be read" if seen.owner.written else "no identity"
        trouble = f"its counter has {beside} beside it: nobody can release it but force_release, or its TTL"
    elif found is not None and not seen.count:
        trouble = "its identity has no counter: whoever gave it back died on the way; it is free"
    elif seen.count and seen.owner.left < 0:
        trouble = "its counter never ends: whoever made it died before it set a TTL"
    return Inspection(scope, 0, 1, (found,) if found is not None and seen.count else (), (), trouble)


async def release_by_id(core: Core, scope: str, lock_id: str) -> Released:
    """Release what another process or workflow took, by its lock_id."""
    asked = await send(core, scope, Release(deadline(core.engine), lock_id, "", 0))
    match asked.reply:
        case ReleasedReply():
            return Released(released=True, idempotent=False, scope=scope, lock_id=lock_id)
        case Foreign(owner) if not asked.doubt_until:
            raise NotOwner(name=scope, lock_id=lock_id, holder=holder(1, owner, core.engine.now()))
        case _:
            return Released(released=True, idempotent=True, scope=scope, lock_id=lock_id)


async def extend(core: Core, scope: str, lock_id: str, ttl: float) -> tuple[Owner, int]:
    """Keep what a lock_id holds for `ttl` from now on; who that is, and until when (µs). Raises LeaseLost."""
    asked = await send(core, scope, Renew(deadline(core.engine), lock_id, millis(ttl)))
    reply: Any = asked.reply
    if isinstance(reply, Renewed):
        return (await look(core, scope)).owner, reply.until
    found = holder(reply.count, reply.owner, core.engine.now())
    reason = f"it is held by {found} now" if found else "its keys are gone"
    raise LeaseLost(name=scope, lock_id=lock_id, fence=0, reason=reason)


async def force_release(core: Core, scope: str) -> ForceReleased:
    """Delete both keys. There is no fence that could refuse what their holder does from now on."""
    removed: Removed = (await send(core, scope, ForceRelease(deadline(core.engine)))).reply
    core.telemetry.emit("lock.forced", name=scope, fence=0)
    found = holder(removed.was, removed.owner, core.engine.now())
    return ForceReleased(scope, 0, (found,) if found is not None else ())


async def cleanup(core: Core, execution_id: str, scopes: Sequence[str] | None) -> Cleanup:
    """Release what one failed execution owns in `scopes`, and nothing else. No index tells where that may be."""
    core.check_open()
    is_n8n(core.engine, "n8n")
    if scopes is None:
        raise ConfigError("wire='n8n' keeps no list of an execution's locks: pass scopes=['…', …]")
    if not scopes:
        return Cleanup(cleaned=False, cleaned_count=0, scopes=(), reason="the list of scopes is empty: nothing to do")
    cleaned: list[str] = []
    nameless: list[str] = []
    for scope in dict.fromkeys(scopes):
        reply = (await send(core, scope, Evict(deadline(core.engine), execution_id))).reply
        if isinstance(reply, Removed):
            cleaned.append(scope)
        elif reply.count and not reply.owner.known:
            nameless.append(scope)
    reasons = [] if cleaned else [f"execution {execution_id} holds none of the {len(set(scopes))} scopes looked at"]
    if nameless:
        reasons.append(f"held by nobody who can be named, and left alone: {', '.join(nameless)}")
    return Cleanup(cleaned=bool(cleaned), cleaned_count=len(cleaned), scopes=tuple(cleaned), reason="; ".join(reasons))
