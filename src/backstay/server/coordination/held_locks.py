"""Held locks over HTTP: renew, confirm, release, clean up, inspect. Only the owner of a lock and admins may change it
or see its lock_id.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from backstay.engine.base import Read
from backstay.errors import LeaseLost, NotOwner
from backstay.gate import admin
from backstay.gate.commands import Foreign, Holder, Release, Renew, Renewed
from backstay.gate.commands import Released as ReleasedReply
from backstay.gate.flows import apply_op, send
from backstay.gate.machine import GATE, Gate
from backstay.gate.view import Cleanup, Inspection, Released
from backstay.runtime.core import Core
from backstay.runtime.lease import instant
from backstay.runtime.lost_replies import deadline
from backstay.runtime.validation import to_micros
from backstay.server.coordination.lock_waits import ttl_or_default, visible_holder
from backstay.server.coordination.ownership import execution_tag, may_control, owner_tag, owns, ticket_prefix
from backstay.server.http.auth import Principal
from backstay.server.schemas.coordination import LockReply


class HeldLocks:
    """The locks in Backstay's own records, as one principal may see and change them."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def extend(self, principal: Principal, name: str, lock_id: str, seconds: float | None) -> LockReply:
        """Renew a held lock, or confirm a new grant: the lock expires `seconds` from now. Raises LeaseLost (409)."""
        core = self._core
        ttl = ttl_or_default(seconds, "backstay")
        holder, holders = await self._find(principal, name, lock_id)
        if holder is None:
            seen = visible_holder(principal, holders)
            reason = f"it is now held by {seen}" if seen else "the engine no longer knows it"
            raise LeaseLost(name=name, lock_id=lock_id, fence=0, reason=reason)
        renewal = Renew(
            deadline(core.engine), holder.ticket, holder.fence, to_micros(ttl), ttl_number=holder.ttl_number + 1
        )
        sent = await send(core, name, renewal)
        if not isinstance(sent.reply, Renewed):
            raise LeaseLost(name=name, lock_id=lock_id, fence=holder.fence, reason="the engine no longer knows it")
        key = core.engine.key(GATE.name, name)
        return LockReply(
            acquired=True,
            count=1,
            scope=name,
            lock_id=lock_id,
            key=key,
            meta_key=key,
            workflow_id=holder.caller.workflow_id,
            workflow_name=holder.caller.workflow_name,
            execution_id=holder.caller.execution_id,
            locked_at=instant(holder.since).isoformat(),
            state="held",
            request_id="",
            fence=str(holder.fence),
            expires_at=instant(sent.reply.until).isoformat(),
            position=0,
            confirmed=True,
        )

    async def release(self, principal: Principal, name: str, lock_id: str) -> Released:
        """Release a lock. Raises NotOwner (409) if the lock is held, but not by this lock_id or not by this owner."""
        core = self._core
        if owns(principal, lock_id):  # the lock_id that this server made: it is the ticket, so no read is needed
            sent = await send(core, name, Release(deadline(core.engine), lock_id, "", 0, 0))
            if isinstance(sent.reply, ReleasedReply) or sent.doubt_until:
                is_repeat = not isinstance(sent.reply, ReleasedReply)
                return Released(released=True, idempotent=is_repeat, scope=name, lock_id=lock_id)
        holder, holders = await self._find(principal, name, lock_id)
        if holder is None:
            if holders:
                raise NotOwner(name=name, lock_id=lock_id, holder=visible_holder(principal, holders))
            return Released(released=True, idempotent=True, scope=name, lock_id=lock_id)
        # The ticket identifies this one grant: a lock that another client got after the read is not released.
        sent = await send(core, name, Release(deadline(core.engine), holder.ticket, "", 0, 0))
        match sent.reply:
            case ReleasedReply():
                return Released(released=True, idempotent=False, scope=name, lock_id=lock_id)
            case Foreign(now_held_by) if not sent.doubt_until:
                raise NotOwner(name=name, lock_id=lock_id, holder=visible_holder(principal, now_held_by))
            case _:
                return Released(released=True, idempotent=True, scope=name, lock_id=lock_id)

    async def _find(self, principal: Principal, name: str, lock_id: str) -> tuple[Holder | None, tuple[Holder, ...]]:
        """Return the holder with this lock_id, if the principal may change its lock, and all holders. Clients choose
        lock_ids, so the holders of a semaphore may have the same one: the principal's own comes first.
        """
        reading = await apply_op(self._core, Read(GATE, name))
        gate: Gate | None = reading.state
        holders = tuple(h for h in gate.holders if h.until > reading.now) if gate is not None else ()
        found = [h for h in holders if h.lock_id == lock_id and may_control(principal, h.ticket)]
        mine = [h for h in found if owns(principal, h.ticket)]
        return next(iter([*mine, *found]), None), holders

    async def cleanup(self, principal: Principal, execution_id: str, scopes: Sequence[str] | None) -> Cleanup:
        """Release the locks of an execution that belong to the principal's owner. Without tokens, all clients are one
        principal: all locks of the execution are released.
        """
        checked = admin.check_scopes(scopes)
        if not owner_tag(principal):
            return await admin.cleanup(self._core, execution_id, checked)
        tag, prefix = execution_tag(principal, execution_id), ticket_prefix(principal)
        return await admin.cleanup(self._core, execution_id, checked, tag=tag, ticket_prefix=prefix)

    async def inspect(self, principal: Principal, name: str) -> Inspection:
        return await admin.inspect(self._core, name, partial(may_control, principal))

    async def list_locks(self, principal: Principal, prefix: str) -> list[Inspection]:
        return await admin.list_gates(self._core, prefix, partial(may_control, principal))

    async def force_release(self, name: str) -> None:
        await admin.force_release(self._core, name)
