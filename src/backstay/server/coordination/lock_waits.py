"""Waiting for a lock over HTTP: one long poll after another, all in one place of the queue.

The place is the gate's own ticket, made from the request id: whichever server gets the next poll finds it, a poll whose
answer was lost is asked again and hears the same, and a client that never comes back is passed over. Nothing is renewed
here: whoever holds a lock over HTTP keeps it alive by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from backstay.engine.base import Micros, Read, Tag, steady
from backstay.errors import ConfigError, LeaseLost
from backstay.gate.flows import carry_out, send
from backstay.gate.machine import (
    DAY,
    GATE,
    Acquire,
    Disagree,
    Full,
    Gate,
    Granted,
    Held,
    Holder,
    Queued,
    Renew,
    Renewed,
    Who,
    Withdraw,
)
from backstay.gate.options import MAX_WAITERS
from backstay.gate.view import first, holder_info
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.option import Wire
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import deadline
from backstay.runtime.lease import instant
from backstay.runtime.validation import micros
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Call
from backstay.server.schemas.coordination import AcquireRequest, LockReply

#: Wishes whose first poll is remembered.
MOST = 10_000
#: Seconds: whoever holds a lock over HTTP renews it.
TTL = 30.0


def seconds_of(said: float | None, wire: Wire) -> float:
    """How long a lock lives when nobody says."""
    if said is not None:
        return said
    return TTL if wire == "backstay" else float(keys.TTL_SECONDS)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller wants, and under which names."""

    name: str
    request_id: str
    ticket: str
    lock_id: str
    who: Who
    body: AcquireRequest

    @property
    def ttl(self) -> Micros:
        """Until it is confirmed, a grant may be shorter."""
        return micros(self.first_seconds)

    @property
    def first_seconds(self) -> float:
        confirm = self.body.confirm_seconds
        return min(self.whole_seconds, confirm) if confirm else self.whole_seconds

    @property
    def whole_seconds(self) -> float:
        """What it lives for once it is confirmed."""
        return seconds_of(self.body.ttl_seconds, self.body.wire)


class Places:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._polls: dict[str, asyncio.Event] = {}
        self._since: OrderedDict[str, float] = OrderedDict()

    def wish(self, name: str, body: AcquireRequest) -> Wish:
        for value, what in ((body.lock_id, "lock_id"), (body.execution_id, "execution_id")):
            if value:
                validation.name(value, what)
        request_id = body.request_id or self._core.identity.new_id()
        # Hashed: tickets of one length, whatever somebody calls a request; and another lock's request is another's.
        ticket = "h" + hashlib.sha256(f"{name}\0{request_id}".encode()).hexdigest()[:31]
        who = Who(body.execution_id or request_id, body.workflow_id, body.workflow_name or body.workflow_id)
        return Wish(validation.name(name), request_id, ticket, body.lock_id or ticket, who, body)

    # ── acquiring ──

    async def acquire(self, call: Call, wish: Wish) -> LockReply:
        """Granted, or still waiting when this poll's time is over. Raises Refusal (409) for a wait that is over."""
        core, body, ticket = self._core, wish.body, wish.ticket
        if body.execution_id:
            life = wish.ttl + micros(wish.whole_seconds) + DAY
            await carry_out(core, Tag(GATE, body.execution_id, wish.name, life))
        began = steady()
        waits = body.wait_till_lock_released and body.max_wait_seconds > 0
        reply, sent = await self._ask(wish, queues=waits)
        if isinstance(reply, Granted):
            return self._granted(wish, reply)
        if not isinstance(reply, Queued):
            raise self._refused(wish, reply)
        ends = await self._ends(wish)
        until = min(began + body.poll_seconds, ends)
        mine = self._take_over(ticket)
        latch = core.await_hint(None, ticket)
        server = call.server
        server.waiting += 1
        try:
            while True:
                if not await core.listen(None, sent):
                    left = until - steady()
                    if left <= 0 or server.is_closing:
                        break
                    nap = min(reply.recheck_after / 1_000_000, left)
                    await call.wait_for(self._wake(core.nap(ticket, latch, nap, steady(), None), mine))
                    if mine.is_set():
                        raise Refusal(409, "another request with this request_id waits now in this one's place")
                reply, sent = await self._ask(wish, queues=True)
                if isinstance(reply, Granted):
                    return self._granted(wish, reply)
                if not isinstance(reply, Queued):
                    raise self._refused(wish, reply)
        finally:
            server.waiting -= 1
            if self._polls.get(ticket) is mine:
                del self._polls[ticket]
                core.forget_hint(ticket)
        if steady() >= ends:
            return await self._give_up(wish)
        return self._waiting(wish, reply)

    @staticmethod
    async def _wake(nap: Coroutine[Any, Any, bool], mine: asyncio.Event) -> None:
        """Until it is time to look, or another poll takes over."""
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(nap), asyncio.create_task(mine.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take_over(self, ticket: str) -> asyncio.Event:
        """The newest poll of a place counts: whoever asked before has lost its connection."""
        if (before := self._polls.get(ticket)) is not None:
            before.set()
        mine = self._polls[ticket] = asyncio.Event()
        return mine

    async def _ask(self, wish: Wish, *, queues: bool) -> tuple[object, float]:
        core, body = self._core, wish.body
        command = Acquire(
            deadline(core.engine),
            wish.ticket,
            wish.lock_id,
            body.permits == 1,
            body.permits,
            wish.ttl,
            core.identity.inbox if queues else "",
            MAX_WAITERS if queues else 0,
            wish.who,
        )
        asked = await send(core, wish.name, command)
        return asked.reply, asked.sent_at

    async def _ends(self, wish: Wish) -> float:
        """When the wait is over (steady), counted from the first poll, here or at another server."""
        now = steady()
        known = self._since.get(wish.ticket)
        if known is None:
            reading = await carry_out(self._core, Read(GATE, wish.name))
            gate: Gate | None = reading.state
            entered = next((w.since for w in gate.queue if w.ticket == wish.ticket), 0) if gate is not None else 0
            known = now - max(0, reading.now - entered) / 1_000_000 if entered else now
            self._since[wish.ticket] = known
            if len(self._since) > MOST:
                self._since.popitem(last=False)
        return known + wish.body.max_wait_seconds

    async def _give_up(self, wish: Wish) -> LockReply:
        self._since.pop(wish.ticket, None)
        asked = await send(self._core, wish.name, Withdraw(deadline(self._core.engine), wish.ticket, 0))
        holder = first(asked.reply.holders)
        who = f"held by {holder}" if holder else "promised to another"
        raise Refusal(
            409,
            f"{wish.name!r} was not free within {wish.body.max_wait_seconds:g} s: {who}",
            reason="timeout",
            **self._fields(wish, acquired=False, count=len(asked.reply.holders), locked_at=""),
        )

    def _refused(self, wish: Wish, reply: object) -> Exception:
        match reply:
            case Held(count, holders):
                holder = first(holders)
                who = f"held by {holder}" if holder else "promised to a waiter"
                return Refusal(
                    409,
                    f"{wish.name!r} is {who}; {count} hold it or wait",
                    reason="held",
                    **self._fields(wish, acquired=False, count=count, locked_at=""),
                )
            case Full(waiters):
                later = {"retry-after": "5"}
                return Refusal(503, f"{waiters} callers already wait for {wish.name!r}", headers=later, reason="full")
            case Disagree(capacity):
                return ConfigError(
                    f"{wish.name!r} is in use with permits={capacity} (0: a read-write lock), and this caller wants"
                    f" {wish.body.permits}: all callers of one name must agree"
                )
            case _:
                return TypeError(f"not a reply to an acquire: {reply!r}")

    # ── answers ──

    def _fields(self, wish: Wish, *, acquired: bool, count: int, locked_at: str) -> dict[str, Any]:
        """The ten fields of the reference's primitive."""
        key = self._core.engine.key(GATE.name, wish.name)
        return {
            "acquired": acquired,
            "count": count,
            "scope": wish.name,
            "lock_id": wish.lock_id,
            "key": key,
            "meta_key": key,
            "workflow_id": wish.who.workflow_id,
            "workflow_name": wish.who.workflow_name,
            "execution_id": wish.who.execution_id,
            "locked_at": locked_at,
        }

    def _granted(self, wish: Wish, reply: Granted) -> LockReply:
        self._since.pop(wish.ticket, None)
        key = self._core.engine.key(GATE.name, wish.name)
        return LockReply(
            acquired=True,
            count=1,
            scope=wish.name,
            lock_id=wish.lock_id,
            key=key,
            meta_key=key,
            workflow_id=wish.who.workflow_id,
            workflow_name=wish.who.workflow_name,
            execution_id=wish.who.execution_id,
            locked_at=instant(reply.since).isoformat(),
            state="held",
            request_id=wish.request_id,
            fence=str(reply.fence),
            expires_at=instant(reply.until).isoformat(),
            position=0,
            confirmed=not wish.body.confirm_seconds,
        )

    def _waiting(self, wish: Wish, reply: Queued) -> LockReply:
        key = self._core.engine.key(GATE.name, wish.name)
        return LockReply(
            acquired=False,
            count=reply.count,
            scope=wish.name,
            lock_id=wish.lock_id,
            key=key,
            meta_key=key,
            workflow_id=wish.who.workflow_id,
            workflow_name=wish.who.workflow_name,
            execution_id=wish.who.execution_id,
            locked_at="",
            state="waiting",
            request_id=wish.request_id,
            fence="",
            expires_at="",
            position=reply.position,
            confirmed=False,
        )

    # ── holding ──

    async def extend(self, name: str, lock_id: str, seconds: float | None) -> LockReply:
        """Keep a held lock, or confirm a grant: it lives for `seconds` from now on. Raises LeaseLost (409)."""
        core = self._core
        ttl = seconds_of(seconds, "backstay")
        holder = await self._holder(name, lock_id)
        asked = await send(core, name, Renew(deadline(core.engine), holder.ticket, holder.fence, micros(ttl)))
        if not isinstance(asked.reply, Renewed):
            raise LeaseLost(name=name, lock_id=lock_id, fence=holder.fence, reason="the engine no longer knows it")
        key = core.engine.key(GATE.name, name)
        return LockReply(
            acquired=True,
            count=1,
            scope=name,
            lock_id=lock_id,
            key=key,
            meta_key=key,
            workflow_id=holder.who.workflow_id,
            workflow_name=holder.who.workflow_name,
            execution_id=holder.who.execution_id,
            locked_at=instant(holder.since).isoformat(),
            state="held",
            request_id="",
            fence=str(holder.fence),
            expires_at=instant(asked.reply.until).isoformat(),
            position=0,
            confirmed=True,
        )

    async def _holder(self, name: str, lock_id: str) -> Holder:
        reading = await carry_out(self._core, Read(GATE, name))
        gate: Gate | None = reading.state
        holders = [h for h in gate.holders if h.until > reading.now] if gate is not None else []
        for holder in holders:
            if holder.lock_id == lock_id:
                return holder
        reason = f"it is held by {holder_info(holders[0])} now" if holders else "the engine no longer knows it"
        raise LeaseLost(name=name, lock_id=lock_id, fence=0, reason=reason)
