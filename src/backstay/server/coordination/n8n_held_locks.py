"""Held locks in n8n's Redis keys (`wire: n8n`) over HTTP. The server binds only what it granted itself: a lock that an
n8n workflow or a Python program took has no owner, and only admins release it over HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backstay.gate.admin import check_scopes
from backstay.gate.view import Cleanup, Inspection, Released
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.gate import admin
from backstay.runtime.core import Core
from backstay.runtime.lease import instant
from backstay.server.coordination.lock_waits import ttl_or_default
from backstay.server.coordination.n8n_lock_waits import may_control
from backstay.server.coordination.ownership import owner_tag
from backstay.server.http.auth import Principal
from backstay.server.schemas.coordination import LockReply


def _required_tag(principal: Principal) -> str:
    """Return the owner tag that a lock must have for this principal to change it; "": any, because it is an admin."""
    return "" if principal.is_admin else owner_tag(principal)


class N8nHeldLocks:
    """The locks in n8n's keys, as one principal may see and change them."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def extend(self, principal: Principal, name: str, lock_id: str, seconds: float | None) -> LockReply:
        """Renew a held lock, or confirm a new grant: the lock expires `seconds` from now. Raises LeaseLost (409)."""
        ttl = ttl_or_default(seconds, "n8n")
        owner, until = await admin.extend(self._core, name, lock_id, ttl, _required_tag(principal))
        return LockReply(
            acquired=True,
            count=1,
            scope=name,
            lock_id=lock_id,
            key=keys.lock_key(name),
            meta_key=keys.meta_key(name),
            workflow_id=owner.workflow_id,
            workflow_name=owner.workflow_name,
            execution_id=owner.execution_id,
            locked_at=owner.locked_at,
            state="held",
            request_id="",
            fence="",
            expires_at=instant(until).isoformat(),
            position=0,
            confirmed=True,
        )

    async def release(self, principal: Principal, name: str, lock_id: str) -> Released:
        """Release a lock. Raises NotOwner (409) if another lock_id holds it, or if its owner is another one."""
        return await admin.release_by_id(self._core, name, lock_id, _required_tag(principal))

    async def cleanup(self, principal: Principal, execution_id: str, scopes: Sequence[str] | None) -> Cleanup:
        """Release the locks of an execution that the server granted to the principal's owner. Without tokens, all
        clients are one principal: all locks of the execution are released.
        """
        return await admin.cleanup(self._core, execution_id, check_scopes(scopes), owner_tag(principal))

    async def inspect(self, principal: Principal, name: str) -> Inspection:
        lock = await admin.read_lock(self._core, name)
        seen = admin.inspection(name, lock)
        if may_control(principal, lock.owner):
            return seen
        return replace(seen, holders=tuple(replace(holder, lock_id="") for holder in seen.holders))

    async def force_release(self, name: str) -> None:
        await admin.force_release(self._core, name)
