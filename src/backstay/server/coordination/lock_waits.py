"""Waiting for a lock over HTTP: a client repeats its long poll and keeps one place in the gate's queue.

The place is a gate ticket derived from the client's owner and the request id. So any server can answer the next poll, a
client that repeats a poll after a lost response gets the same reply, another owner that sends the same request id does
not, and the gate skips a client that stops polling. The server renews no lock: the client that holds one renews it with
/renew.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from backstay.engine.base import Micros, Read, Tag, steady
from backstay.errors import ConfigError, HolderInfo
from backstay.gate.commands import (
    Acquire,
    Busy,
    CallerIdentity,
    CapacityMismatch,
    Full,
    Granted,
    Holder,
    Queued,
    Withdraw,
)
from backstay.gate.flows import apply_op, send
from backstay.gate.machine import DAY, GATE, Gate
from backstay.gate.options import MAX_WAITERS
from backstay.gate.view import first_holder, hide_lock_id
from backstay.interop.n8n_wire import keys
from backstay.runtime import validation
from backstay.runtime.core import Core
from backstay.runtime.lease import instant
from backstay.runtime.lost_replies import deadline
from backstay.runtime.validation import Wire, to_micros
from backstay.server.coordination.ownership import execution_tag, make_ticket, may_control, owner_tag
from backstay.server.http.auth import Principal
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Request
from backstay.server.schemas.coordination import AcquireRequest, LockReply

#: The largest number of waits for which a server remembers when their first poll arrived.
MAX_TRACKED = 10_000
#: The default time to live of a lock, in seconds. It is short, since HTTP clients renew the locks that they hold.
TTL = 30.0


def ttl_or_default(seconds: float | None, wire: Wire) -> float:
    """Return `seconds`; when it is None, the default: n8n's for locks in n8n's Redis keys, `TTL` for all others."""
    if seconds is not None:
        return seconds
    return TTL if wire == "backstay" else float(keys.TTL_SECONDS)


@dataclass(frozen=True, slots=True)
class LockAttempt:
    """A validated acquire request: who sends it, the lock's name, the ticket with which its client waits, and the
    lock_id with which the client holds the lock.
    """

    principal: Principal
    name: str
    request_id: str
    ticket: str
    lock_id: str
    who: CallerIdentity
    body: AcquireRequest

    @property
    def ttl(self) -> Micros:
        """The time to live of a new grant, in microseconds (`initial_seconds`)."""
        return to_micros(self.initial_seconds)

    @property
    def initial_seconds(self) -> float:
        """The time to live of a new grant. With `confirm_seconds`, it is short until the client confirms the grant."""
        confirm = self.body.confirm_seconds
        return min(self.confirmed_seconds, confirm) if confirm else self.confirmed_seconds

    @property
    def confirmed_seconds(self) -> float:
        """The time to live of a confirmed grant, in seconds."""
        return ttl_or_default(self.body.ttl_seconds, self.body.wire)


def visible_holder(principal: Principal, holders: tuple[Holder, ...]) -> HolderInfo | None:
    """Return the first holder as the principal may see it: only its owner and admins see the lock_id."""
    found = first_holder(holders)
    return found if found is None or may_control(principal, holders[0].ticket) else hide_lock_id(found)


class LockWaits:
    """Acquires locks for HTTP clients. When polls with the same ticket overlap at one server, the newest one
    continues and the older ones end with 409.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._polls: dict[str, asyncio.Event] = {}
        self._first_polls: OrderedDict[str, float] = OrderedDict()

    def parse(self, principal: Principal, name: str, body: AcquireRequest) -> LockAttempt:
        """Validate an acquire request. Raises ConfigError (422)."""
        for value, what in ((body.lock_id, "lock_id"), (body.execution_id, "execution_id")):
            if value:
                validation.check_name(value, what)
        request_id = body.request_id or self._core.identity.new_id()
        ticket = make_ticket(principal, name, request_id)
        who = CallerIdentity(body.execution_id or request_id, body.workflow_id, body.workflow_name or body.workflow_id)
        checked = validation.check_name(name)
        return LockAttempt(principal, checked, request_id, ticket, body.lock_id or ticket, who, body)

    # ── acquiring ──

    async def acquire(self, request: Request, wanted: LockAttempt) -> LockReply:
        """Return the grant, or a `waiting` reply when the poll times out. Raises Refusal (409) when the lock is held
        and the client does not want to wait, or has waited for its maximum time.
        """
        core, body, ticket = self._core, wanted.body, wanted.ticket
        if body.execution_id:
            await self._tag_execution(wanted)
        began = steady()
        waits = body.wait_till_lock_released and body.max_wait_seconds > 0
        reply, sent = await self._send_acquire(wanted, queues=waits)
        if isinstance(reply, Granted):
            return self._granted_reply(wanted, reply)
        if not isinstance(reply, Queued):
            raise self._make_refusal(wanted, reply)
        ends = await self._deadline(wanted)
        until = min(began + body.poll_seconds, ends)
        mine = self._take_over(ticket)
        latch = core.register_waiter(None, ticket)
        server = request.server
        try:
            while True:
                if not await core.subscribe_inbox(None, sent):
                    left = until - steady()
                    if left <= 0 or server.is_closing:
                        break
                    pause = min(reply.recheck_after / 1_000_000, left)
                    turn = core.wait_for_turn(ticket, latch, pause, steady(), None)
                    await request.wait_for(self._wait_for_turn(turn, mine))
                    if mine.is_set():
                        raise Refusal(409, "a newer request with this request_id took over the wait")
                reply, sent = await self._send_acquire(wanted, queues=True)
                if isinstance(reply, Granted):
                    return self._granted_reply(wanted, reply)
                if not isinstance(reply, Queued):
                    raise self._make_refusal(wanted, reply)
        finally:
            if self._polls.get(ticket) is mine:
                del self._polls[ticket]
                core.unregister_waiter(ticket)
        if steady() >= ends:
            return await self._give_up(wanted)
        return self._waiting_reply(wanted, reply)

    async def _tag_execution(self, wanted: LockAttempt) -> None:
        """List the lock under its execution, for clean-ups. A Python program's clean-up finds all locks of an
        execution, a client's only those of its owner.
        """
        life = wanted.ttl + to_micros(wanted.confirmed_seconds) + DAY
        await apply_op(self._core, Tag(GATE, wanted.body.execution_id, wanted.name, life))
        if owner_tag(wanted.principal):
            tag = execution_tag(wanted.principal, wanted.body.execution_id)
            await apply_op(self._core, Tag(GATE, tag, wanted.name, life))

    @staticmethod
    async def _wait_for_turn(turn: Coroutine[Any, Any, bool], mine: asyncio.Event) -> None:
        """Wait until the coroutine `turn` ends, or until the event `mine` is set. `turn` ends when the lock may be free
        or when it is time to check the lock again. A newer poll with the same ticket sets `mine`, to end this poll.
        """
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(turn), asyncio.create_task(mine.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take_over(self, ticket: str) -> asyncio.Event:
        """Make this poll the current one of its ticket. If an earlier poll with the ticket still waits, it ends, since
        its client has sent a new one. Returns the event that ends this poll.
        """
        if (before := self._polls.get(ticket)) is not None:
            before.set()
        mine = self._polls[ticket] = asyncio.Event()
        return mine

    async def _send_acquire(self, wanted: LockAttempt, *, queues: bool) -> tuple[object, float]:
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

    async def _deadline(self, wanted: LockAttempt) -> float:
        """Return the time (steady clock) at which the client's maximum wait is over. The wait counts from the client's
        first poll, even if another server received it.
        """
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

    async def _give_up(self, wanted: LockAttempt) -> LockReply:
        self._first_polls.pop(wanted.ticket, None)
        sent = await send(self._core, wanted.name, Withdraw(deadline(self._core.engine), wanted.ticket, 0))
        holder = visible_holder(wanted.principal, sent.reply.holders)
        who = f"held by {holder}" if holder else "offered to another waiter"
        raise Refusal(
            409,
            f"{wanted.name!r} was not free within {wanted.body.max_wait_seconds:g} s: {who}",
            reason="timeout",
            **self._fields(wanted, acquired=False, count=len(sent.reply.holders), locked_at=""),
        )

    def _make_refusal(self, wanted: LockAttempt, reply: object) -> Exception:
        match reply:
            case Busy(count, holders):
                holder = visible_holder(wanted.principal, holders)
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

    def _fields(self, wanted: LockAttempt, *, acquired: bool, count: int, locked_at: str) -> dict[str, Any]:
        """Return the ten output fields of the n8n primitive `lock_acquisition` (docs/reference/n8n-primitives.md)."""
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

    def _granted_reply(self, wanted: LockAttempt, reply: Granted) -> LockReply:
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

    def _waiting_reply(self, wanted: LockAttempt, reply: Queued) -> LockReply:
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
