"""The gate: the state machine of locks, semaphores and read-write locks.

A gate has holders and a FIFO queue of tickets. A ticket moves through three states:

    queued (expires unless refreshed) → offered (a short window to accept) → held (a lease with a fence)

The client sends `Acquire` repeatedly: it enters the queue, refreshes the ticket, and accepts an offer. Every command
first applies the passage of time: it removes ended leases and expired tickets and offers the free capacity in FIFO
order. An offer occupies capacity, so a newcomer cannot overtake a waiter. A ticket that lets its offer lapse keeps its
position but gets no offers until its client sends `Acquire` again. So a crashed waiter delays the queue by one offer
window (several crashed waiters in a row: at most until a live waiter rechecks), and a slow waiter loses its turn but
not its position.

Lock: capacity 1, exclusive. Semaphore: capacity n, shared. Read-write lock: unlimited capacity, readers shared,
writers exclusive. Times are µs of the engine's clock. `lua/*.lua` implement the same machine for Redis; a property
test compares both.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.base import Command, Expired, Micros, Record, Room, Transition, Wake
from backstay.gate.commands import (
    Absent,
    Acquire,
    Busy,
    CallerIdentity,
    CapacityMismatch,
    Evict,
    ForceRelease,
    Foreign,
    Full,
    Granted,
    Holder,
    Lost,
    Queued,
    Release,
    Released,
    Removed,
    Renew,
    Renewed,
    Reply,
    Withdraw,
    Withdrawn,
)

#: A queued ticket expires this long after its last Acquire; waiters send one at least every `RECHECK`.
LIFE = 30_000_000
#: How long an offer lasts. A waiter that does not accept in time gets no further offers until it asks again.
OFFER = 2_000_000
#: Milliseconds after which the next waiter rechecks, in case the offer before it has lapsed.
LAPSE = 2_001
#: The value of `Waiter.offer` after an offer has lapsed.
LAPSED = -1
#: Extra delay of the recheck per queue position; it prevents a thundering herd.
STAGGER = 10_000
#: The longest time a waiter sleeps before it rechecks, because hints may be lost.
RECHECK = 10_000_000
#: A waiter rechecks one millisecond after the lease it waits for ends.
SLACK = 1_000
#: The record stays a day longer than its last lease, so that a clock set back cannot issue the same fence twice.
DAY = 86_400_000_000
#: Incremented when the stored format changes.
VERSION = 1
#: A capacity of 0 means no limit on holders: any number of readers may hold a read-write lock.
UNLIMITED = 0


class Waiter(Struct, frozen=True, array_like=True):
    """A ticket in the queue. `alive`: when it expires. `offer`: 0 for none, the end of its offer, or LAPSED."""

    ticket: str
    lock_id: str
    exclusive: bool
    inbox: str
    since: Micros
    alive: Micros
    offer: Micros
    caller: CallerIdentity


class Tombstone(Struct, frozen=True, array_like=True):
    """Refuses a removed ticket until `until`: a delayed copy of its Acquire must not bring it back."""

    ticket: str
    until: Micros


class Gate(Record, frozen=True, array_like=True):
    """The state of one name. `last`: the highest fence ever seen. `seen`: the latest time ever seen."""

    capacity: int
    last: int
    seen: Micros
    holders: tuple[Holder, ...] = ()
    queue: tuple[Waiter, ...] = ()
    gone: tuple[Tombstone, ...] = ()


def step(state: Gate | None, command: Command, now: Micros) -> Transition[Gate]:
    """Apply one command to the gate. Pure: no clock, no I/O, no randomness."""
    gate = state or Gate(VERSION, 0, 0, now)
    now = max(now, gate.seen)
    if now > command.not_after:
        return Transition(state, Expired(now), write=False)
    gate = _expire(gate, now)
    asking = command.ticket if isinstance(command, Acquire) else ""
    wakes: tuple[Wake, ...] = ()
    if gate.queue:
        gate, wakes = _offer(_refresh(gate, asking, now), now, asking)
    match command:
        case Acquire():
            gate, reply = _acquire(gate, command, now)
        case Renew():
            gate, reply = _renew(gate, command, now)
        case Release():
            gate, reply = _release(gate, command, now)
        case Withdraw():
            gate, reply = _withdraw(gate, command, now)
        case ForceRelease():
            gone = gate.holders
            gate = replace(gate, holders=(), last=max(gate.last + 1, now))
            reply = Removed(gate.last, gone)
        case Evict(execution_id=evicted):
            gone = tuple(h for h in gate.holders if h.caller.execution_id == evicted)
            gate = replace(
                gate,
                holders=tuple(h for h in gate.holders if h.caller.execution_id != evicted),
                queue=tuple(w for w in gate.queue if w.caller.execution_id != evicted),
            )
            reply = Removed(0, gone)  # 0: the fence did not advance; a swept row could not report the last one anyway
        case _:
            raise TypeError(f"not a gate command: {command!r}")
    if gate.queue:
        gate, more = _offer(gate, now, asking)
        wakes += more
    return Transition(gate, reply, wakes, _keep_until(gate))


def _expire(gate: Gate, now: Micros) -> Gate:
    """Remove the holders, tickets and tombstones that have ended at `now`, and mark lapsed offers."""
    holders, queue, gone = gate.holders, gate.queue, gate.gone
    if holders:
        holders = tuple([h for h in holders if h.until > now])
    if queue:
        queue = tuple(
            [
                w if w.offer <= 0 or w.offer > now else replace(w, offer=LAPSED)
                for w in queue
                if max(w.alive, w.offer) > now
            ]
        )
    if gone:
        gone = tuple([g for g in gone if g.until > now])
    return replace(gate, seen=now, holders=holders, queue=queue, gone=gone)


def _refresh(gate: Gate, ticket: str, now: Micros) -> Gate:
    """Extend the life of the ticket that sent this command, and make it eligible for offers again."""
    return replace(
        gate,
        queue=tuple(
            replace(w, alive=now + LIFE, offer=max(w.offer, 0)) if w.ticket == ticket else w for w in gate.queue
        ),
    )


def _offer(gate: Gate, now: Micros, asking: str) -> tuple[Gate, tuple[Wake, ...]]:
    """Offer free capacity in FIFO order. Stop at the first waiter that does not fit, so that no later one overtakes it.
    The ticket `asking`, which sent this command, needs no hint: it gets the reply.
    """
    taken = _taken(gate)
    queue = list(gate.queue)
    wakes: list[Wake] = []
    offered = False
    for i, waiter in enumerate(queue):
        if waiter.offer:  # it has an offer, or let one lapse
            continue
        if not _fits(gate.capacity, taken, waiter.exclusive):
            if offered:  # the client with the offer may have crashed: this waiter rechecks when the offer lapses
                wakes.append(Wake(waiter.inbox, f"{waiter.ticket} {LAPSE}"))
            break
        offered = True
        queue[i] = replace(waiter, offer=now + OFFER)
        if waiter.ticket != asking:
            wakes.append(Wake(waiter.inbox, waiter.ticket))
        taken.append(waiter.exclusive)
    return (replace(gate, queue=tuple(queue)), tuple(wakes)) if offered else (gate, ())


def _taken(gate: Gate) -> list[bool]:
    """List the held and offered places; True for an exclusive one."""
    return [h.exclusive for h in gate.holders] + [w.exclusive for w in gate.queue if w.offer > 0]


def _fits(capacity: int, taken: list[bool], wants_exclusive: bool) -> bool:
    if wants_exclusive:
        return not taken
    return not any(taken) and (capacity == UNLIMITED or len(taken) < capacity)


def _acquire(gate: Gate, cmd: Acquire, now: Micros) -> tuple[Gate, Reply]:
    if gate.gone and any(g.ticket == cmd.ticket for g in gate.gone):
        return gate, Expired(now)
    if not gate.holders and not gate.queue:
        return _grant(replace(gate, capacity=cmd.capacity), cmd, cmd.exclusive, now)
    if gate.capacity != cmd.capacity:
        return gate, CapacityMismatch(gate.capacity)

    for i, h in enumerate(gate.holders):
        if h.ticket == cmd.ticket:  # A resend after a lost reply. It may arrive late, so it never shortens the lease.
            held = replace(h, until=max(h.until, now + cmd.ttl))
            holders = (*gate.holders[:i], held, *gate.holders[i + 1 :])
            return replace(gate, holders=holders), Granted(h.fence, h.since, held.until)

    for i, w in enumerate(gate.queue):
        if w.ticket == cmd.ticket:
            if w.offer:
                gate = replace(gate, queue=gate.queue[:i] + gate.queue[i + 1 :])
                return _grant(gate, cmd, w.exclusive, now)  # in the mode of the offer, not of the command
            return gate, _queued(gate, i, now)

    if not any(w.offer == 0 for w in gate.queue) and _fits(gate.capacity, _taken(gate), cmd.exclusive):
        return _grant(gate, cmd, cmd.exclusive, now)
    if cmd.max_waiters == 0:
        return gate, Busy(len(gate.holders) + len(gate.queue), gate.holders[:1])
    if len(gate.queue) >= cmd.max_waiters:
        return gate, Full(len(gate.queue))
    waiter = Waiter(cmd.ticket, cmd.lock_id, cmd.exclusive, cmd.inbox, now, now + LIFE, 0, cmd.caller)
    gate = replace(gate, queue=(*gate.queue, waiter))
    return gate, _queued(gate, len(gate.queue) - 1, now)


def _grant(gate: Gate, cmd: Acquire, exclusive: bool, now: Micros) -> tuple[Gate, Reply]:
    fence = max(gate.last + 1, now)
    holder = Holder(cmd.ticket, cmd.lock_id, exclusive, fence, now, now + cmd.ttl, cmd.caller)
    return replace(gate, last=fence, holders=(*gate.holders, holder)), Granted(fence, now, holder.until)


def _queued(gate: Gate, index: int, now: Micros) -> Queued:
    ends = [h.until for h in gate.holders] + [w.offer for w in gate.queue if w.offer > 0]
    position = sum(w.offer != LAPSED for w in gate.queue[:index])
    after = min(ends) - now + SLACK + position * STAGGER
    return Queued(position, min(after, RECHECK), len(gate.holders) + len(gate.queue), gate.holders[:1])


def _renew(gate: Gate, cmd: Renew, now: Micros) -> tuple[Gate, Reply]:
    gate = replace(gate, last=max(gate.last, cmd.fence))
    for i, h in enumerate(gate.holders):
        if h.ticket == cmd.ticket:
            held = replace(h, until=max(h.until, now + cmd.ttl))  # a delayed renewal never shortens the lease
            holders = (*gate.holders[:i], held, *gate.holders[i + 1 :])
            return replace(gate, holders=holders), Renewed(held.until)
    return gate, Lost(gate.holders[:1])


def _release(gate: Gate, cmd: Release, now: Micros) -> tuple[Gate, Reply]:
    gate = replace(gate, last=max(gate.last, cmd.fence))
    if cmd.ticket:
        gate = _add_tombstone(gate, cmd.ticket, cmd.gone_until, now)
    for i, h in enumerate(gate.holders):
        if h.ticket == cmd.ticket if cmd.ticket else h.lock_id == cmd.lock_id:
            return replace(gate, holders=gate.holders[:i] + gate.holders[i + 1 :]), Released(h.lock_id)
    return gate, Foreign(gate.holders[:1]) if gate.holders else Absent()


def _withdraw(gate: Gate, cmd: Withdraw, now: Micros) -> tuple[Gate, Reply]:
    was = "absent"
    if any(h.ticket == cmd.ticket for h in gate.holders):
        was = "held"
    for w in gate.queue:
        if w.ticket == cmd.ticket:
            was = "offered" if w.offer > 0 else "queued"
    gate = replace(
        _add_tombstone(gate, cmd.ticket, cmd.gone_until, now),
        holders=tuple(h for h in gate.holders if h.ticket != cmd.ticket),
        queue=tuple(w for w in gate.queue if w.ticket != cmd.ticket),
    )
    return gate, Withdrawn(was, gate.holders[:1])


def _add_tombstone(gate: Gate, ticket: str, until: Micros, now: Micros) -> Gate:
    if until <= now:
        return gate
    return replace(gate, gone=(*(g for g in gate.gone if g.ticket != ticket), Tombstone(ticket, until)))


def _keep_until(gate: Gate) -> Micros:
    """Return when the record may be deleted: from then on an absent record gives the same replies."""
    until = max(gate.seen, gate.last)
    for holder in gate.holders:
        until = max(until, holder.until)
    for waiter in gate.queue:
        until = max(until, waiter.alive, waiter.offer)
    for gone in gate.gone:
        until = max(until, gone.until)
    return until + DAY


GATE = Room("gate", step=step, state=Gate, version=VERSION, replies=Reply, package="backstay.gate")
