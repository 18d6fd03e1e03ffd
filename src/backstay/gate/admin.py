"""Looking at gates from outside, and setting right what went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from backstay.engine.base import Read, Scan, Tagged, Untag
from backstay.errors import ConfigError, CorruptRecord, NotOwner
from backstay.gate.flows import carry_out, send
from backstay.gate.machine import GATE, Evict, ForceRelease, Foreign, Release
from backstay.gate.machine import Released as ReleasedReply
from backstay.gate.view import Cleanup, ForceReleased, Inspection, Released, first, holder_info, inspection
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import deadline


async def release_by_id(core: Core, name: str, lock_id: str) -> Released:
    """Release what another process took, by its lock_id."""
    core.check_open()
    asked = await send(core, name, Release(deadline(core.engine), "", lock_id, 0, 0))
    match asked.reply:
        case ReleasedReply():
            return Released(released=True, idempotent=False, scope=name, lock_id=lock_id)
        case Foreign(holders) if not asked.doubt_until:
            raise NotOwner(name=name, lock_id=lock_id, holder=first(holders))
        case _:
            return Released(released=True, idempotent=True, scope=name, lock_id=lock_id)


async def force_release(core: Core, name: str) -> ForceReleased:
    """Take it from whoever holds it."""
    core.check_open()
    asked = await send(core, name, ForceRelease(deadline(core.engine)))
    holders = tuple(holder_info(h) for h in asked.reply.holders)
    core.telemetry.emit("lock.forced", name=name, fence=asked.reply.fence)
    return ForceReleased(name, asked.reply.fence, holders)


async def inspect(core: Core, name: str) -> Inspection:
    """One gate at this moment."""
    core.check_open()
    reading = await carry_out(core, Read(GATE, name))
    return inspection(name, reading.state, reading.now)


async def list_gates(core: Core, prefix: str) -> list[Inspection]:
    """All gates that somebody holds or waits for. Walks every name: for people, not for programs."""
    core.check_open()
    if prefix != "":
        validation.name(prefix, "prefix")
    names = await carry_out(core, Scan(GATE, prefix))
    try:
        readings = await core.port.apply_all([Read(GATE, name) for name in names])
        found = [inspection(name, r.state, r.now) for name, r in zip(names, readings, strict=True)]
    except CorruptRecord:  # one of them: the others are shown all the same
        found = [await _inspect_or_say(core, name) for name in names]
    return [item for item in found if item.count or item.trouble]


async def _inspect_or_say(core: Core, name: str) -> Inspection:
    try:
        return await inspect(core, name)
    except CorruptRecord as error:
        return Inspection(name, 0, None, (), (), trouble=str(error))


async def cleanup(core: Core, execution_id: str, scopes: Sequence[str] | None) -> Cleanup:
    """Release what one failed execution owns, and nothing else."""
    core.check_open()
    if scopes is not None and not scopes:
        return Cleanup(cleaned=False, cleaned_count=0, scopes=(), reason="the list of scopes is empty: nothing to do")
    names = await carry_out(core, Tagged(GATE, execution_id)) if scopes is None else list(dict.fromkeys(scopes))
    cleaned: list[str] = []
    count = 0
    for name in names:
        asked = await send(core, name, Evict(deadline(core.engine), execution_id))
        if asked.reply.holders:
            cleaned.append(name)
            count += len(asked.reply.holders)
    if scopes is None and names:
        await carry_out(core, Untag(GATE, execution_id, tuple(names)))
    reason = "" if count else f"execution {execution_id} holds none of the {len(names)} scopes looked at"
    return Cleanup(cleaned=count > 0, cleaned_count=count, scopes=tuple(cleaned), reason=reason)


def checked(scopes: Sequence[str] | None) -> list[str] | None:
    """The scopes a caller passed: a list of names, not one name."""
    if scopes is None:
        return None
    given = cast("object", scopes)
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ConfigError(f"scopes is a list of names, as in scopes=['invoice:42']; got {given!r}")
    return [validation.name(scope, "scope") for scope in scopes]
