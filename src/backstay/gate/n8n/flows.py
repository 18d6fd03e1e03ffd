"""How a caller takes the lock that n8n's Redis nodes take, too: no queue and no push, so it looks again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.base import Apply, Expired, Micros, steady
from backstay.errors import (
    EngineError,
    EngineUnavailable,
    LockHeld,
    LockTimeout,
    OutcomeUnknown,
    WouldDeadlock,
)
from backstay.gate.lease import Held
from backstay.gate.machine import Granted as Grant
from backstay.gate.machine import Who
from backstay.gate.n8n.machine import WIRE, Busy, Granted, Leaving, Take, Withdraw
from backstay.gate.n8n.wire import Wired, holder, identity, millis, moment
from backstay.runtime.core import Core
from backstay.runtime.flows import CORRECTIONS, GRACE, Attempts, deadline
from backstay.runtime.lease import LIVE

if TYPE_CHECKING:
    from backstay.gate.flows import Spec

L = TypeVar("L", bound=Held)

#: How long an identity without its counter is left alone. An n8n workflow deletes the two one after the other.
SETTLE = 1.0
#: How often it is looked at meanwhile.
SETTLE_POLL = 0.1


class Taking(Struct):
    """One caller's way to the lock. `again` once a copy of its wish may have arrived; `doubt`: until when it may."""

    core: Core
    scope: str
    ticket: str
    lock_id: str
    identity: str
    ttl: float
    again: bool = False
    doubt: Micros = 0
    under_way: Micros = 0
    sent_at: float = 0.0
    #: An identity without a counter, and since when it has been there.
    trace: str = ""
    since: float = 0.0

    async def ask(self) -> Granted | Busy | Leaving:
        """Once, through lost replies and short absences. Every copy is the same wish: the second finds the first."""
        core = self.core
        over = self.trace if self.trace and steady() - self.since >= SETTLE else ""
        command = Take(
            deadline(core.engine), self.ticket, self.lock_id, self.identity, millis(self.ttl), self.again, over
        )
        attempts: Attempts | None = None
        started, corrections = steady(), 0
        while True:
            self.sent_at = steady()
            self.under_way = command.not_after
            try:
                reply = await core.port.apply(Apply(WIRE, self.scope, command))
            except (OutcomeUnknown, EngineUnavailable) as error:
                if isinstance(error, EngineUnavailable):
                    self.under_way = 0  # nothing of this copy arrived
                if attempts is None:
                    attempts = Attempts(
                        core.port, core.policy.lock_retries, core.telemetry, f"{WIRE.name} {self.scope}", started
                    )
                await attempts.failed(error)
                if attempts.doubt:
                    self.doubt = max(self.doubt, command.not_after)
                    self.again = True
                    command = replace(command, again=True)
                continue
            self.under_way = 0
            if type(reply) is Expired:
                core.engine.correct(reply.now)
                corrections += 1
                if corrections > CORRECTIONS:
                    raise EngineUnavailable(f"{WIRE.name} {self.scope!r}: the engine found every attempt too late")
                command = replace(command, not_after=deadline(core.engine))
                continue
            self.notice(reply)
            answer: Granted | Busy | Leaving = reply
            return answer

    def notice(self, reply: object) -> None:
        """How long an identity has stood there without its counter."""
        trace = reply.trace if isinstance(reply, Leaving) else ""
        if trace != self.trace:
            self.trace, self.since = trace, steady()

    def withdrawal(self) -> Withdraw | None:
        """What undoes a wish that may have arrived, or may yet."""
        until = max(self.doubt, self.under_way, deadline(self.core.engine) if self.under_way else 0)
        if not until:
            return None
        return Withdraw(deadline(self.core.engine), self.ticket, self.lock_id, self.identity, until)


async def acquire(core: Core, spec: Spec, who: Who, lock_id: str, wait: float | None, make: type[L]) -> L:
    """Look, and take it when its counter is absent. Leaves nothing behind when it fails or is cancelled."""
    owner = core.port.owner()
    ticket = core.identity.new_id()
    lock_id = lock_id or ticket
    words = identity(lock_id, who.workflow_id, who.workflow_name, who.execution_id)
    taking = Taking(core, spec.name, ticket, lock_id, words, spec.ttl)
    started = steady()
    latch = None
    last = False
    try:
        while True:
            reply = await taking.ask()
            if isinstance(reply, Granted):
                return _held(core, spec, taking, reply, owner, who, make)
            nap = min(spec.poll, SETTLE_POLL) if isinstance(reply, Leaving) else spec.poll
            if wait is not None and (last or (wait == 0 and not isinstance(reply, Leaving))):
                raise _over(core, spec, reply, wait)
            if latch is None:
                latch = core.await_hint(None, ticket)  # nobody sends one: it is how close() wakes us
                core.telemetry.emit("lock.queued", name=spec.name, position=0, lock_id=lock_id)
                _refuse_deadlock(core, spec, owner)
            ends = max(wait, SETTLE + SETTLE_POLL) if wait is not None and isinstance(reply, Leaving) else wait
            last = not await core.nap(ticket, latch, nap, started, ends)  # looked at once more when the time is over
    except BaseException as error:
        if (leaving := taking.withdrawal()) is not None:
            op = Apply(WIRE, spec.name, leaving)
            if isinstance(error, EngineError):  # it was away just now: whoever gives up is not made to wait again
                core.keeper.later(op, steady() + spec.ttl)
            else:
                await core.port.shield(_leave(core, op, spec.ttl), GRACE)
        raise
    finally:
        if latch is not None:
            core.forget_hint(ticket)


def _held(core: Core, spec: Spec, taking: Taking, reply: Granted, owner: object, who: Who, make: type[L]) -> L:
    grant = Grant(0, moment(reply.locked_at), reply.until)
    lease = make(core, spec, taking.ticket, taking.lock_id, grant, taking.sent_at, owner, who, taking.doubt)
    lease.wired = Wired(reply.count, reply.locked_at)
    core.hold(lease)
    core.telemetry.counts["lock.granted"] += 1
    core.telemetry.emit("lock.granted", name=spec.name, fence=0, waited=0.0)
    return lease


async def _leave(core: Core, op: Apply, ttl: float) -> None:
    try:
        reply = await core.port.apply(op)
        if type(reply) is Expired:
            core.engine.correct(reply.now)
            await core.port.apply(Apply(WIRE, op.name, replace(op.command, not_after=deadline(core.engine))))
    except EngineError:
        core.keeper.later(op, steady() + ttl)


def _over(core: Core, spec: Spec, reply: Busy | Leaving, wait: float) -> Exception:
    count = reply.count if isinstance(reply, Busy) else 0
    found = holder(max(1, count), reply.owner, core.engine.now())
    if wait == 0:
        return LockHeld(name=spec.name, holder=found, count=count)
    return LockTimeout(name=spec.name, waited=wait, holder=found)


def _refuse_deadlock(core: Core, spec: Spec, owner: object) -> None:
    for lease in core.held.get((spec.name, owner), ()):
        if isinstance(lease, Held) and lease.wired is not None and lease.state is LIVE and not lease.is_lost:
            raise WouldDeadlock(name=spec.name, lock_id=lease.id)
