"""Waiting over HTTP for a lock in n8n's keys: nobody tells of a turn there, so the server looks for the caller.

There is no queue that another server could find a caller's place in: a repeated poll looks again, and its wait counts
from the first poll at this server. A request whose answer was lost is asked again and finds its own grant: the lock_id
is made from the request id.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from backstay.engine.base import steady
from backstay.errors import ConfigError, HolderInfo
from backstay.gate.n8n import admin
from backstay.gate.n8n.flows import SETTLE, SETTLE_POLL, Taking
from backstay.gate.n8n.machine import Busy, Granted, Leaving
from backstay.gate.n8n.wire import holder, identity
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.option import locks_n8n, taken_scope
from backstay.runtime.core import Core
from backstay.runtime.lease import instant
from backstay.server.coordination.lock_waits import MOST, Places, Wish, seconds_of
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Call
from backstay.server.schemas.coordination import AcquireRequest, LockReply


class N8nPlaces:
    def __init__(self, core: Core, places: Places) -> None:
        self._core = core
        self._places = places
        self._since: OrderedDict[str, float] = OrderedDict()

    def wish(self, name: str, body: AcquireRequest) -> Wish:
        locks_n8n(self._core.engine, body.wire, taken_scope(name, "name"))
        if body.permits != 1:
            raise ConfigError("n8n's keys know one holder: leave out permits, or wire")
        return self._places.wish(name, body)

    async def acquire(self, call: Call, wish: Wish) -> LockReply:
        """Granted, or still waiting when this poll's time is over. Raises Refusal (409) for a wait that is over."""
        body, who = wish.body, wish.who
        words = identity(wish.lock_id, who.workflow_id, who.workflow_name, who.execution_id)
        taking = Taking(self._core, wish.name, wish.ticket, wish.lock_id, words, wish.first_seconds, True)
        began = steady()
        ends = self._began(wish) + (body.max_wait_seconds if body.wait_till_lock_released else 0.0)
        until = min(began + body.poll_seconds, ends)
        server = call.server
        server.waiting += 1
        try:
            while True:
                reply = await taking.ask()
                if isinstance(reply, Granted):
                    self._since.pop(wish.ticket, None)
                    return self._granted(wish, reply)
                nap = SETTLE_POLL if isinstance(reply, Leaving) else keys.POLL_SECONDS
                left = until - steady()
                if isinstance(reply, Leaving) and steady() - began < 2 * SETTLE:
                    left = max(left, SETTLE_POLL)  # it is free, or about to be
                if left <= 0 or server.is_closing:
                    break
                await call.wait_for(asyncio.sleep(min(nap, left)))
        finally:
            server.waiting -= 1
        if steady() >= ends:
            self._since.pop(wish.ticket, None)
            raise self._over(wish, reply)
        return self._waiting(wish, reply)

    def _began(self, wish: Wish) -> float:
        known = self._since.setdefault(wish.ticket, steady())
        if len(self._since) > MOST:
            self._since.popitem(last=False)
        return known

    async def extend(self, name: str, lock_id: str, seconds: float | None) -> LockReply:
        """Keep a held lock, or confirm a grant. Raises LeaseLost (409)."""
        owner, until = await admin.extend(self._core, name, lock_id, seconds_of(seconds, "n8n"))
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

    # ── answers ──

    def _fields(self, wish: Wish, *, acquired: bool, count: int, locked_at: str) -> dict[str, Any]:
        """The ten fields of the reference's primitive."""
        return {
            "acquired": acquired,
            "count": count,
            "scope": wish.name,
            "lock_id": wish.lock_id,
            "key": keys.lock_key(wish.name),
            "meta_key": keys.meta_key(wish.name),
            "workflow_id": wish.who.workflow_id,
            "workflow_name": wish.who.workflow_name,
            "execution_id": wish.who.execution_id,
            "locked_at": locked_at,
        }

    def _granted(self, wish: Wish, reply: Granted) -> LockReply:
        return LockReply(
            **self._fields(wish, acquired=True, count=reply.count, locked_at=reply.locked_at),
            state="held",
            request_id=wish.request_id,
            fence="",
            expires_at=instant(reply.until).isoformat(),
            position=0,
            confirmed=not wish.body.confirm_seconds,
        )

    def _waiting(self, wish: Wish, reply: Busy | Leaving) -> LockReply:
        return LockReply(
            **self._fields(wish, acquired=False, count=_count(reply), locked_at=""),
            state="waiting",
            request_id=wish.request_id,
            fence="",
            expires_at="",
            position=0,
            confirmed=False,
        )

    def _over(self, wish: Wish, reply: Busy | Leaving) -> Refusal:
        found: HolderInfo | None = holder(max(1, _count(reply)), reply.owner, self._core.engine.now())
        fields = self._fields(wish, acquired=False, count=_count(reply), locked_at="")
        if not wish.body.wait_till_lock_released or not wish.body.max_wait_seconds:
            said = f"{wish.name!r} is held by {found}; its counter is {_count(reply)}"
            return Refusal(409, said, reason="held", **fields)
        return Refusal(
            409,
            f"{wish.name!r} was not free within {wish.body.max_wait_seconds:g} s: held by {found}",
            reason="timeout",
            **fields,
        )


def _count(reply: Busy | Leaving) -> int:
    return reply.count if isinstance(reply, Busy) else 0
