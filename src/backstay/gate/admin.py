"""Inspect gates and repair them from outside: release by lock_id, force a release, clean up after an execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from backstay.engine.base import ListTagged, Read, Scan, Untag
from backstay.errors import ConfigError, CorruptRecord, NotOwner
from backstay.gate.commands import Evict, ForceRelease, Foreign, Release
from backstay.gate.commands import Released as ReleasedReply
from backstay.gate.flows import apply_op, send
from backstay.gate.machine import GATE
from backstay.gate.view import Cleanup, ForceReleased, Inspection, Released, first_holder, holder_info, inspection
from backstay.gate.wire import ChooseAdmin, LockAdmin
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.lost_replies import deadline
from backstay.runtime.validation import Wire


async def release_by_id(core: Core, name: str, lock_id: str) -> Released:
    """Release a lease that another process holds, by its lock_id. Raises NotOwner if the lock is held, but not by
    this lock_id.
    """
    core.check_open()
    result = await send(core, name, Release(deadline(core.engine), "", lock_id, 0, 0))
    match result.reply:
        case ReleasedReply():
            return Released(released=True, idempotent=False, scope=name, lock_id=lock_id)
        case Foreign(holders) if not result.doubt_until:
            raise NotOwner(name=name, lock_id=lock_id, holder=first_holder(holders))
        case _:
            return Released(released=True, idempotent=True, scope=name, lock_id=lock_id)


async def force_release(core: Core, name: str) -> ForceReleased:
    """Remove all holders and advance the fence."""
    core.check_open()
    result = await send(core, name, ForceRelease(deadline(core.engine)))
    holders = tuple(holder_info(h) for h in result.reply.holders)
    core.telemetry.emit("lock.forced", name=name, fence=result.reply.fence)
    return ForceReleased(name, result.reply.fence, holders)


def _see_all(_: str) -> bool:
    return True


async def inspect(core: Core, name: str, may_see: Callable[[str], bool] = _see_all) -> Inspection:
    """Read one gate. Changes nothing. `may_see` decides by ticket whether the view shows a lock_id."""
    core.check_open()
    reading = await apply_op(core, Read(GATE, name))
    return inspection(name, reading.state, reading.now, may_see)


async def list_gates(core: Core, prefix: str, may_see: Callable[[str], bool] = _see_all) -> list[Inspection]:
    """List the gates that have a holder or a waiter. It scans every name: use it in tools, not on a hot path. `may_see`
    decides by ticket whether the view shows a lock_id.
    """
    core.check_open()
    if prefix != "":
        validation.check_name(prefix, "prefix")
    names = await apply_op(core, Scan(GATE, prefix))
    try:
        readings = await core.port.apply_all([Read(GATE, name) for name in names])
        found = [inspection(name, r.state, r.now, may_see) for name, r in zip(names, readings, strict=True)]
    except CorruptRecord:  # read one by one, so that one damaged record does not hide the others
        found = [await _inspect_or_report(core, name, may_see) for name in names]
    return [item for item in found if item.count or item.trouble]


async def _inspect_or_report(core: Core, name: str, may_see: Callable[[str], bool]) -> Inspection:
    try:
        return await inspect(core, name, may_see)
    except CorruptRecord as error:
        return Inspection(name, 0, None, (), (), trouble=str(error))


async def cleanup(
    core: Core, execution_id: str, scopes: Sequence[str] | None, *, tag: str = "", ticket_prefix: str = ""
) -> Cleanup:
    """Release the leases of one failed execution, and nothing else: on the locks in `scopes`, or, if that is None, on
    all locks that it acquired with its execution_id.

    tag: The tag under which the names of its locks are listed. Default: the execution_id.
    ticket_prefix: Release only leases whose ticket starts with this text.
    """
    tag = tag or execution_id
    core.check_open()
    if scopes is not None and not scopes:
        return Cleanup(cleaned=False, cleaned_count=0, scopes=(), reason="the list of scopes is empty: nothing to do")
    names = await apply_op(core, ListTagged(GATE, tag)) if scopes is None else list(dict.fromkeys(scopes))
    cleaned: list[str] = []
    count = 0
    for name in names:
        result = await send(core, name, Evict(deadline(core.engine), execution_id, ticket_prefix))
        if result.reply.holders:
            cleaned.append(name)
            count += len(result.reply.holders)
    if scopes is None and names:
        await apply_op(core, Untag(GATE, tag, tuple(names)))
    reason = "" if count else f"execution {execution_id} holds none of the {len(names)} scopes checked"
    return Cleanup(cleaned=count > 0, cleaned_count=count, scopes=tuple(cleaned), reason=reason)


def check_scopes(scopes: Sequence[str] | None) -> list[str] | None:
    """Validate `scopes`: a list of names, not one name."""
    if scopes is None:
        return None
    given = cast("object", scopes)
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ConfigError(f"scopes must be a list of names, as in scopes=['invoice:42']; got {given!r}")
    return [validation.check_name(scope, "scope") for scope in scopes]


class BaseLocks:
    """The operations behind `stay.locks` of both APIs. Each validates its arguments and then calls a LockAdmin: the one
    for Backstay's own records or, with `wire="n8n"`, the one for locks in n8n's Redis keys.
    """

    __slots__ = ("_choose", "_core")

    def __init__(self, core: Core, choose: ChooseAdmin) -> None:
        self._core = core
        self._choose = choose

    async def _inspect(self, name: str, wire: Wire) -> Inspection:
        return await self._admin(name, wire).inspect(self._core, name)

    async def _release(self, name: str, lock_id: str, wire: Wire) -> Released:
        admin = self._admin(name, wire)
        return await admin.release_by_id(self._core, name, validation.check_name(lock_id, "lock_id"))

    async def _force_release(self, name: str, wire: Wire) -> ForceReleased:
        return await self._admin(name, wire).force_release(self._core, name)

    async def _cleanup(self, execution_id: str, scopes: Sequence[str] | None, wire: Wire) -> Cleanup:
        admin = self._choose(self._core.engine, wire, None)
        return await admin.cleanup(
            self._core, validation.check_name(execution_id, "execution_id"), check_scopes(scopes)
        )

    def _admin(self, name: str, wire: Wire) -> LockAdmin:
        return self._choose(self._core.engine, wire, validation.check_name(name))
