"""Waiting over HTTP for a lock in n8n's Redis keys: they have no queue and no notification, so the server polls them.

Another server cannot see how long a client has waited: its wait counts from its first poll at this server. The lock_id
is derived from the request id, so a repeated request whose response was lost finds its own grant.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from backstay.engine.base import steady
from backstay.errors import ConfigError, HolderInfo
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.gate import admin
from backstay.interop.n8n_wire.gate.flows import SETTLE, SETTLE_POLL, TakeAttempt
from backstay.interop.n8n_wire.gate.machine import Busy, Granted, HalfReleased
from backstay.interop.n8n_wire.gate.wire import holder_info, identity
from backstay.interop.n8n_wire.option import is_n8n_lock, require_scope
from backstay.runtime.core import Core
from backstay.runtime.lease import instant
from backstay.server.coordination.lock_waits import MAX_TRACKED, LockRequest, LockWaits, ttl_or_default
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Request
from backstay.server.schemas.coordination import AcquireRequest, LockReply


class N8nLockWaits:
    """The counterpart of `LockWaits` for `wire: n8n`."""

    def __init__(self, core: Core, lock_waits: LockWaits) -> None:
        self._core = core
        self._lock_waits = lock_waits
        self._first_polls: OrderedDict[str, float] = OrderedDict()

    def parse(self, name: str, body: AcquireRequest) -> LockRequest:
        is_n8n_lock(self._core.engine, body.wire, require_scope(name, "name"))
        if body.permits != 1:
            raise ConfigError("a lock with wire: n8n has one holder: leave out permits, or wire")
        return self._lock_waits.parse(name, body)

    async def acquire(self, request: Request, wanted: LockRequest) -> LockReply:
        """Return the grant, or a `waiting` reply when the poll times out. Raises Refusal (409) when the client does not
        wait or its maximum wait is over.
        """
        body, who = wanted.body, wanted.who
        holder_meta = identity(wanted.lock_id, who.workflow_id, who.workflow_name, who.execution_id)
        attempt = TakeAttempt(
            self._core, wanted.name, wanted.ticket, wanted.lock_id, holder_meta, wanted.first_seconds, True
        )
        began = steady()
        ends = self._first_poll(wanted) + (body.max_wait_seconds if body.wait_till_lock_released else 0.0)
        until = min(began + body.poll_seconds, ends)
        server = request.server
        server.waiting += 1
        try:
            while True:
                reply = await attempt.send()
                if isinstance(reply, Granted):
                    self._first_polls.pop(wanted.ticket, None)
                    return self._granted(wanted, reply)
                nap = SETTLE_POLL if isinstance(reply, HalfReleased) else keys.POLL_SECONDS
                left = until - steady()
                if isinstance(reply, HalfReleased) and steady() - began < 2 * SETTLE:
                    left = max(left, SETTLE_POLL)  # the lock is free or about to be: try once more
                if left <= 0 or server.is_closing:
                    break
                await request.wait_for(asyncio.sleep(min(nap, left)))
        finally:
            server.waiting -= 1
        if steady() >= ends:
            self._first_polls.pop(wanted.ticket, None)
            raise self._over(wanted, reply)
        return self._waiting(wanted, reply)

    def _first_poll(self, wanted: LockRequest) -> float:
        known = self._first_polls.setdefault(wanted.ticket, steady())
        if len(self._first_polls) > MAX_TRACKED:
            self._first_polls.popitem(last=False)
        return known

    async def extend(self, name: str, lock_id: str, seconds: float | None) -> LockReply:
        """Renew a held lock, or confirm a grant. Raises LeaseLost (409)."""
        owner, until = await admin.extend(self._core, name, lock_id, ttl_or_default(seconds, "n8n"))
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

    # ── replies ──

    def _fields(self, wanted: LockRequest, *, acquired: bool, count: int, locked_at: str) -> dict[str, Any]:
        """The ten fields that the reference implementation returns."""
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

    def _granted(self, wanted: LockRequest, reply: Granted) -> LockReply:
        return LockReply(
            **self._fields(wanted, acquired=True, count=reply.count, locked_at=reply.locked_at),
            state="held",
            request_id=wanted.request_id,
            fence="",
            expires_at=instant(reply.until).isoformat(),
            position=0,
            confirmed=not wanted.body.confirm_seconds,
        )

    def _waiting(self, wanted: LockRequest, reply: Busy | HalfReleased) -> LockReply:
        return LockReply(
            **self._fields(wanted, acquired=False, count=_count(reply), locked_at=""),
            state="waiting",
            request_id=wanted.request_id,
            fence="",
            expires_at="",
            position=0,
            confirmed=False,
        )

    def _over(self, wanted: LockRequest, reply: Busy | HalfReleased) -> Refusal:
        found: HolderInfo | None = holder_info(max(1, _count(reply)), reply.owner, self._core.engine.now())
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


def _count(reply: Busy | HalfReleased) -> int:
    return reply.count if isinstance(reply, Busy) else 0
