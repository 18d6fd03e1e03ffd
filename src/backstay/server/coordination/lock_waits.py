"""Waiting for a lock over HTTP: a client repeats its long poll and keeps one place in the gate's queue.

The place is a gate ticket derived from the request id. So any server can answer the next poll, a poll whose response
was lost gets the same reply when it is repeated, and the gate passes over a client that stops polling. The server
renews nothing: a client that holds a lock renews it with /renew.
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
from backstay.gate.commands import (
    Acquire,
    Busy,
    CallerIdentity,
    CapacityMismatch,
    Full,
    Granted,
    Holder,
    Queued,
    Renew,
    Renewed,
    Withdraw,
)
from backstay.gate.flows import apply_op, send
from backstay.gate.machine import DAY, GATE, Gate
from backstay.gate.options import MAX_WAITERS
from backstay.gate.view import first_holder, holder_info
from backstay.interop.n8n_wire import keys
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.flows import deadline
from backstay.runtime.lease import instant
from backstay.runtime.validation import Wire, to_micros
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Request
from backstay.server.schemas.coordination import AcquireRequest, LockReply

#: Waits whose first poll is tracked, per server.
MAX_TRACKED = 10_000
#: Seconds. Short, since an HTTP client that holds a lock renews it.
TTL = 30.0


def ttl_or_default(seconds: float | None, wire: Wire) -> float:
    """Return the lock's time to live in seconds; without one, the default of its wire format."""
    if seconds is not None:
        return seconds
    return TTL if wire == "backstay" else float(keys.TTL_SECONDS)


@dataclass(frozen=True, slots=True)
class LockRequest:
    """A validated acquire request: the lock's name, and the ids under which the client waits and holds."""

    name: str
    request_id: str
    ticket: str
    lock_id: str
    who: CallerIdentity
    body: AcquireRequest

    @property
    def ttl(self) -> Micros:
        """The time to live of the grant until it is confirmed."""
        return to_micros(self.first_seconds)

    @property
    def first_seconds(self) -> float:
        confirm = self.body.confirm_seconds
        return min(self.whole_seconds, confirm) if confirm else self.whole_seconds

    @property
    def whole_seconds(self) -> float:
        """The time to live of a confirmed grant."""
        return ttl_or_default(self.body.ttl_seconds, self.body.wire)


class LockWaits:
    """Acquires and extends locks for HTTP clients. The newest of concurrent polls with one ticket wins, per server."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._polls: dict[str, asyncio.Event] = {}
        self._first_polls: OrderedDict[str, float] = OrderedDict()

    def parse(self, name: str, body: AcquireRequest) -> LockRequest:
        """Validate an acquire request. Raises ConfigError (422)."""
        for value, what in ((body.lock_id, "lock_id"), (body.execution_id, "execution_id")):
            if value:
                validation.check_name(value, what)
        request_id = body.request_id or self._core.identity.new_id()
        # Hashed with the lock's name: tickets have one length, and equal request ids of two locks never collide.
        ticket = "h" + hashlib.sha256(f"{name}\0{request_id}".encode()).hexdigest()[:31]
        who = CallerIdentity(body.execution_id or request_id, body.workflow_id, body.workflow_name or body.workflow_id)
        return LockRequest(validation.check_name(name), request_id, ticket, body.lock_id or ticket, who, body)

    # ── acquiring ──

    async def acquire(self, request: Request, wanted: LockRequest) -> LockReply:
        """Return the grant, or a `waiting` reply when the poll times out. Raises Refusal (409) when the client does not
        wait or its maximum wait is over.
        """
        core, body, ticket = self._core, wanted.body, wanted.ticket
        if body.execution_id:
            life = wanted.ttl + to_micros(wanted.whole_seconds) + DAY
            await apply_op(core, Tag(GATE, body.execution_id, wanted.name, life))
        began = steady()
        waits = body.wait_till_lock_released and body.max_wait_seconds > 0
        reply, sent = await self._send_acquire(wanted, queues=waits)
        if isinstance(reply, Granted):
            return self._granted(wanted, reply)
        if not isinstance(reply, Queued):
            raise self._refused(wanted, reply)
        ends = await self._deadline(wanted)
        until = min(began + body.poll_seconds, ends)
        mine = self._take_over(ticket)
        latch = core.register_waiter(None, ticket)
        server = request.server
        server.waiting += 1
        try:
            while True:
                if not await core.subscribe_inbox(None, sent):
                    left = until - steady()
                    if left <= 0 or server.is_closing:
                        break
                    nap = min(reply.recheck_after / 1_000_000, left)
                    await request.wait_for(self._wake(core.wait_for_turn(ticket, latch, nap, steady(), None), mine))
                    if mine.is_set():
                        raise Refusal(409, "a newer request with this request_id took over the wait")
                reply, sent = await self._send_acquire(wanted, queues=True)
                if isinstance(reply, Granted):
                    return self._granted(wanted, reply)
                if not isinstance(reply, Queued):
                    raise self._refused(wanted, reply)
        finally:
            server.waiting -= 1
            if self._polls.get(ticket) is mine:
                del self._polls[ticket]
                core.unregister_waiter(ticket)
        if steady() >= ends:
            return await self._give_up(wanted)
        return self._waiting(wanted, reply)

    @staticmethod
    async def _wake(nap: Coroutine[Any, Any, bool], mine: asyncio.Event) -> None:
        """Wait until the next check is due, or until another poll takes over."""
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(nap), asyncio.create_task(mine.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take_over(self, ticket: str) -> asyncio.Event:
        """Make this poll the current one of its ticket. An earlier poll has lost its connection, and ends."""
        if (before := self._polls.get(ticket)) is not None:
            before.set()
        mine = self._polls[ticket] = asyncio.Event()
        return mine

    async def _send_acquire(self, wanted: LockRequest, *, queues: bool) -> tuple[object, float]:
        core, body = self._core, wanted.body
        command = Acquire(
            deadline(core.engine),
            wanted.ticket,
            wanted.lock_id,
            body.permits == 1,
            body.permits,
            wanted.ttl,
            core.identity.inbox if queues else "",
            MAX_WAITERS if queues else 0,
            wanted.who,
        )
        sent = await send(core, wanted.name, command)
        return sent.reply, sent.sent_at

    async def _deadline(self, wanted: LockRequest) -> float:
        """Return when the wait ends (steady clock), counted from the first poll at this or another server."""
        now = steady()
        known = self._first_polls.get(wanted.ticket)
        if known is None:
            reading = await apply_op(self._core, Read(GATE, wanted.name))
            gate: Gate | None = reading.state
            entered = next((w.since for w in gate.queue if w.ticket == wanted.ticket), 0) if gate is not None else 0
            known = now - max(0, reading.now - entered) / 1_000_000 if entered else now
            self._first_polls[wanted.ticket] = known
            if len(self._first_polls) > MAX_TRACKED:
                self._first_polls.popitem(last=False)
        return known + wanted.body.max_wait_seconds

    async def _give_up(self, wanted: LockRequest) -> LockReply:
        self._first_polls.pop(wanted.ticket, None)
        sent = await send(self._core, wanted.name, Withdraw(deadline(self._core.engine), wanted.ticket, 0))
        holder = first_holder(sent.reply.holders)
        who = f"held by {holder}" if holder else "offered to another waiter"
        raise Refusal(
            409,
            f"{wanted.name!r} was not free within {wanted.body.max_wait_seconds:g} s: {who}",
            reason="timeout",
            **self._fields(wanted, acquired=False, count=len(sent.reply.holders), locked_at=""),
        )

    def _refused(self, wanted: LockRequest, reply: object) -> Exception:
        match reply:
            case Busy(count, holders):
                holder = first_holder(holders)
                who = f"held by {holder}" if holder else "offered to a waiter"
                return Refusal(
                    409,
                    f"{wanted.name!r} is {who}; {count} callers hold it or wait for it",
                    reason="held",
                    **self._fields(wanted, acquired=False, count=count, locked_at=""),
                )
            case Full(waiters):
                later = {"retry-after": "5"}
                return Refusal(503, f"{waiters} callers already wait for {wanted.name!r}", headers=later, reason="full")
            case CapacityMismatch(capacity):
                return ConfigError(
                    f"{wanted.name!r} is in use with permits={capacity} (0: a read-write lock), and this request has"
                    f" permits={wanted.body.permits}: all callers of one name must agree"
                )
            case _:
                return TypeError(f"not a reply to an acquire: {reply!r}")

    # ── replies ──

    def _fields(self, wanted: LockRequest, *, acquired: bool, count: int, locked_at: str) -> dict[str, Any]:
        """The ten fields that the reference implementation returns."""
        key = self._core.engine.key(GATE.name, wanted.name)
        return {
            "acquired": acquired,
            "count": count,
            "scope": wanted.name,
            "lock_id": wanted.lock_id,
            "key": key,
            "meta_key": key,
            "workflow_id": wanted.who.workflow_id,
            "workflow_name": wanted.who.workflow_name,
            "execution_id": wanted.who.execution_id,
            "locked_at": locked_at,
        }

    def _granted(self, wanted: LockRequest, reply: Granted) -> LockReply:
        self._first_polls.pop(wanted.ticket, None)
        key = self._core.engine.key(GATE.name, wanted.name)
        return LockReply(
            acquired=True,
            count=1,
            scope=wanted.name,
            lock_id=wanted.lock_id,
            key=key,
            meta_key=key,
            workflow_id=wanted.who.workflow_id,
            workflow_name=wanted.who.workflow_name,
            execution_id=wanted.who.execution_id,
            locked_at=instant(reply.since).isoformat(),
            state="held",
            request_id=wanted.request_id,
            fence=str(reply.fence),
            expires_at=instant(reply.until).isoformat(),
            position=0,
            confirmed=not wanted.body.confirm_seconds,
        )

    def _waiting(self, wanted: LockRequest, reply: Queued) -> LockReply:
        key = self._core.engine.key(GATE.name, wanted.name)
        return LockReply(
            acquired=False,
            count=reply.count,
            scope=wanted.name,
            lock_id=wanted.lock_id,
            key=key,
            meta_key=key,
            workflow_id=wanted.who.workflow_id,
            workflow_name=wanted.who.workflow_name,
            execution_id=wanted.who.execution_id,
            locked_at="",
            state="waiting",
            request_id=wanted.request_id,
            fence="",
            expires_at="",
            position=reply.position,
            confirmed=False,
        )

    # ── holding ──

    async def extend(self, name: str, lock_id: str, seconds: float | None) -> LockReply:
        """Renew a held lock, or confirm a grant: it expires `seconds` from now. Raises LeaseLost (409)."""
        core = self._core
        ttl = ttl_or_default(seconds, "backstay")
        holder = await self._holder(name, lock_id)
        sent = await send(core, name, Renew(deadline(core.engine), holder.ticket, holder.fence, to_micros(ttl)))
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

    async def _holder(self, name: str, lock_id: str) -> Holder:
        reading = await apply_op(self._core, Read(GATE, name))
        gate: Gate | None = reading.state
        holders = [h for h in gate.holders if h.until > reading.now] if gate is not None else []
        for holder in holders:
            if holder.lock_id == lock_id:
                return holder
        reason = f"it is now held by {holder_info(holders[0])}" if holders else "the engine no longer knows it"
        raise LeaseLost(name=name, lock_id=lock_id, fence=0, reason=reason)
