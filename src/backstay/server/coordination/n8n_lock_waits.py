"""Waiting over HTTP for a lock in n8n's Redis keys. The keys hold no queue and n8n sends no notification, so the server
polls them.

Nor do the keys say how long a client has waited, so its wait counts from its first poll at this server. The lock_id is
derived from the client's owner and the request id, so a client that repeats a request after a lost response finds its
own grant. The server binds the lock to that owner: the holder's identity contains the owner's tag.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from backstay.engine.base import steady
from backstay.errors import ConfigError
from backstay.gate.view import hide_lock_id
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.gate.flows import SETTLE, SETTLE_POLL, TakeAttempt
from backstay.interop.n8n_wire.gate.machine import Busy, Granted, HalfReleased, StoredIdentity
from backstay.interop.n8n_wire.gate.wire import holder_info, identity
from backstay.interop.n8n_wire.option import is_n8n_lock, require_scope
from backstay.runtime.core import Core
from backstay.runtime.lease import instant
from backstay.server.coordination.lock_waits import MAX_TRACKED, LockAttempt, LockWaits
from backstay.server.coordination.ownership import owner_tag
from backstay.server.http.auth import Principal
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Request
from backstay.server.schemas.coordination import AcquireRequest, LockReply


class N8nLockWaits:
    """Acquires locks in n8n's Redis keys (`wire: n8n`), as `LockWaits` does for Backstay's own locks."""

    def __init__(self, core: Core, lock_waits: LockWaits) -> None:
        self._core = core
        self._lock_waits = lock_waits
        self._first_polls: OrderedDict[str, float] = OrderedDict()

    def parse(self, principal: Principal, name: str, body: AcquireRequest) -> LockAttempt:
        is_n8n_lock(self._core.engine, body.wire, require_scope(name, "name"))
        if body.permits != 1:
            raise ConfigError("a lock with wire: n8n has one holder: leave out permits, or wire")
        return self._lock_waits.parse(principal, name, body)

    async def acquire(self, request: Request, wanted: LockAttempt) -> LockReply:
        """Return the grant, or a `waiting` reply when the poll times out. Raises Refusal (409) when the lock is held
        and the client does not want to wait, or has waited for its maximum time.
        """
        body, who = wanted.body, wanted.who
        holder_meta = identity(
            wanted.lock_id, who.workflow_id, who.workflow_name, who.execution_id, owner_tag(wanted.principal)
        )
        attempt = TakeAttempt(
            self._core, wanted.name, wanted.ticket, wanted.lock_id, holder_meta, wanted.initial_seconds, True
        )
        began = steady()
        ends = self._first_poll(wanted) + (body.max_wait_seconds if body.wait_till_lock_released else 0.0)
        until = min(began + body.poll_seconds, ends)
        server = request.server
        while True:
            reply = await attempt.send()
            if isinstance(reply, Granted):
                self._first_polls.pop(wanted.ticket, None)
                return self._granted_reply(wanted, reply)
            pause = SETTLE_POLL if isinstance(reply, HalfReleased) else keys.POLL_SECONDS
            left = until - steady()
            if isinstance(reply, HalfReleased) and steady() - began < 2 * SETTLE:
                left = max(left, SETTLE_POLL)  # the holder is releasing the lock: try once more
            if left <= 0 or server.is_closing:
                break
            await request.wait_for(asyncio.sleep(min(pause, left)))
        if steady() >= ends:
            self._first_polls.pop(wanted.ticket, None)
            raise self._make_refusal(wanted, reply)
        return self._waiting_reply(wanted, reply)

    def _first_poll(self, wanted: LockAttempt) -> float:
        known = self._first_polls.setdefault(wanted.ticket, steady())
        if len(self._first_polls) > MAX_TRACKED:
            self._first_polls.popitem(last=False)
        return known

    # ── replies ──

    def _fields(self, wanted: LockAttempt, *, acquired: bool, count: int, locked_at: str) -> dict[str, Any]:
        """Return the ten fields that the n8n workflow lock_acquisition returns (docs/reference/n8n-primitives.md)."""
        return {
            "acquired": acquired,
            "count": count,
            "scope": wanted.name,
            "lock_id": wanted.lock_id,
            "key": keys.lock_key(wanted.name),
            "meta_key": keys.meta_key(wanted.name),
            "workflow_id": wanted.who.workflow_id,
            "workflow_name": wanted.who.workflow_name,
            "execution_id": wanted.who.execution_id,
            "locked_at": locked_at,
        }

    def _granted_reply(self, wanted: LockAttempt, reply: Granted) -> LockReply:
        return LockReply(
            **self._fields(wanted, acquired=True, count=reply.count, locked_at=reply.locked_at),
            state="held",
            request_id=wanted.request_id,
            fence="",
            expires_at=instant(reply.until).isoformat(),
            position=0,
            confirmed=not wanted.body.confirm_seconds,
        )

    def _waiting_reply(self, wanted: LockAttempt, reply: Busy | HalfReleased) -> LockReply:
        return LockReply(
            **self._fields(wanted, acquired=False, count=_count(reply), locked_at=""),
            state="waiting",
            request_id=wanted.request_id,
            fence="",
            expires_at="",
            position=0,
            confirmed=False,
        )

    def _make_refusal(self, wanted: LockAttempt, reply: Busy | HalfReleased) -> Refusal:
        found = holder_info(max(1, _count(reply)), reply.owner, self._core.engine.now())
        if not may_control(wanted.principal, reply.owner):
            found = hide_lock_id(found)
        fields = self._fields(wanted, acquired=False, count=_count(reply), locked_at="")
        if not wanted.body.wait_till_lock_released or not wanted.body.max_wait_seconds:
            detail = f"{wanted.name!r} is held by {found}; its counter is {_count(reply)}"
            return Refusal(409, detail, reason="held", **fields)
        return Refusal(
            409,
            f"{wanted.name!r} was not free within {wanted.body.max_wait_seconds:g} s: held by {found}",
            reason="timeout",
            **fields,
        )


def may_control(principal: Principal, holder: StoredIdentity) -> bool:
    """Whether a principal may see the lock_id of a holder: the owner to whom a server granted the lock, and admins."""
    return principal.is_admin or (holder.owner_tag != "" and holder.owner_tag == owner_tag(principal))


def _count(reply: Busy | HalfReleased) -> int:
    return reply.count if isinstance(reply, Busy) else 0
