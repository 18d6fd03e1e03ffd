"""The gate: the state machine of locks, semaphores and read-write locks.

A gate has holders and a FIFO queue of tickets. A ticket moves through three states:

    queued (expires unless refreshed) → offered (a short window to accept) → held (a lease with a fence)

The client sends `Acquire` repeatedly: it enters the queue, refreshes the ticket, and accepts an offer. Every command
first applies the passage of time: it removes ended leases and expired tickets and offers the free capacity in FIFO
order. An offer occupies capacity, so a newcomer cannot overtake a waiter. A ticket that lets its offer lapse keeps its
position but gets no offers until its client sends `Acquire` again. So a crashed waiter delays the queue by one offer
window, and several crashed waiters in a row delay it at most until a live waiter rechecks. A slow waiter loses its
offer but not its position. The same holds for a ticket that expires: the engine's clock may have jumped, or
the server may have been stopped, so its client is woken and keeps its position if it sends `Acquire` soon.

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

#: A queued ticket expires this long after its last Acquire. A live waiter sends an Acquire at least every `RECHECK`.
LIFE = 30_000_000
#: An expired ticket keeps its position this long. That is longer than `RECHECK`, so a live client asks in time.
GRACE = 15_000_000
#: A ticket that expired longer ago than this is removed at once: no clock jumps that far.
LONGEST_JUMP = 3_600_000_000
#: How long an offer lasts. A waiter that does not accept in time gets no further offers until its client sends Acquire
#: again.
OFFER = 2_000_000
#: When waiters get offers, the first waiter behind them rechecks after this many milliseconds. By then an offer that
#: was not accepted (its client may have crashed) has lapsed.
LAPSE = 2_001
#: The value of `Waiter.offer` after an offer has lapsed or the ticket has expired.
LAPSED = -1
#: Extra delay of the recheck per queue position; it prevents a thundering herd.
STAGGER = 10_000
#: The longest time a waiter sleeps before it rechecks, because hints may be lost.
RECHECK = 10_000_000
#: A waiter rechecks one millisecond after the end of the lease that it waits for.
SLACK = 1_000
#: A newcomer is refused by the record as it is if the passage of time was applied to it less than this long ago. Its
#: reply then costs no rewriting of a long queue, and counts waiters that may have expired in the meantime.
REFUSE_WITHIN = 1_000_000
#: A gate's record is kept for a day (µs) after its last lease has ended. A gate without a record takes its next fence
#: from the clock alone. So if the record were deleted at once and the clock then set back, a fence could repeat.
DAY = 86_400_000_000
#: Incremented when the stored format changes.
VERSION = 1
#: A capacity of 0 means no limit on holders: any number of readers may hold a read-write lock.
UNLIMITED = 0


class Waiter(Struct, frozen=True, array_like=True):
    """A ticket in the queue.

    alive: When the ticket expires unless its client sends Acquire again.
    offer: When the ticket's offer ends; 0: no offer; LAPSED: the client did not accept its offer in time.
    """

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
    """The state of one lock, semaphore or read-write lock.

    capacity: The most holders at a time, or UNLIMITED.
    last: The highest fence that this gate has granted, or that the client sent with a renewal or a release.
    seen: The latest time at which a command was applied. Time in the gate never goes back.
    gone: The tombstones of removed tickets.
    """

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
    sender = ""
    if isinstance(command, Acquire):
        sender = command.ticket
        if (refusal := _refuse_at_once(gate, command, now)) is not None:
            return Transition(state, refusal, write=False)
    wakes: tuple[Wake, ...] = ()
    if now > gate.seen:  # else a command was applied at the same time, and nothing has ended since
        gate, wakes = _expire(gate, now, sender)
    if gate.queue:
        gate, more = _offer(_refresh(gate, sender, now), now, sender)
        wakes += more
    match command:
        case Acquire():
            gate, reply = _acquire(gate, command, now)
        case Release():
            gate, reply = _release(gate, command, now)
        case Renew():
            gate, reply = _renew(gate, command, now)
        case Withdraw():
            gate, reply = _withdraw(gate, command, now)
        case ForceRelease():
            gone = gate.holders
            gate = replace(gate, holders=(), last=max(gate.last + 1, now))
            reply = Removed(gate.last, gone)
        case Evict():
            gone = tuple(h for h in gate.holders if _is_evicted(h, command))
            gate = replace(
                gate,
                holders=tuple(h for h in gate.holders if not _is_evicted(h, command)),
                queue=tuple(w for w in gate.queue if not _is_evicted(w, command)),
            )
            # The first value is the new fence; 0 says that this command gave none. `gate.last` would be misleading
            # here: if the gate's record was deleted as expired, its last fence is no longer known.
            reply = Removed(0, gone)
        case _:
            raise TypeError(f"not a gate command: {command!r}")
    if gate.queue:
        gate, more = _offer(gate, now, sender)
        wakes += more
    return Transition(gate, reply, wakes, _keep_until(gate))


def _refuse_at_once(gate: Gate, cmd: Acquire, now: Micros) -> Reply | None:
    """Refuse a newcomer for which neither the gate nor its queue has room, without changing the record. Returns None if
    the command must be applied.
    """
    if not gate.queue or len(gate.queue) < cmd.max_waiters or now - gate.seen >= REFUSE_WITHIN:
        return None
    if gate.capacity != cmd.capacity or any(h.until <= now for h in gate.holders):
        return None
    if _fits(gate.capacity, [h.exclusive for h in gate.holders], cmd.exclusive):
        return None
    if any(known.ticket == cmd.ticket for places in (gate.holders, gate.queue, gate.gone) for known in places):
        return None
    if cmd.max_waiters == 0:
        return Busy(len(gate.holders) + len(gate.queue), gate.holders[:1])
    return Full(len(gate.queue))


def _expire(gate: Gate, now: Micros, sender: str) -> tuple[Gate, tuple[Wake, ...]]:
    """Remove the holders and tombstones that have ended at `now`, and mark lapsed offers. A ticket that has expired
    keeps its position for `GRACE`, and its client is woken; after that it is removed.
    """
    holders, queue, gone = gate.holders, gate.queue, gate.gone
    wakes: list[Wake] = []
    if holders:
        holders = tuple([h for h in holders if h.until > now])
    if queue:
        kept: list[Waiter] = []
        for w in queue:
            ends = max(w.alive, w.offer)
            if ends > now:
                kept.append(w if w.offer <= 0 or w.offer > now else replace(w, offer=LAPSED))
            elif w.offer != LAPSED and now - ends < LONGEST_JUMP:
                kept.append(replace(w, alive=now + GRACE, offer=LAPSED))
                if w.ticket != sender:
                    wakes.append(Wake(w.inbox, w.ticket))
        queue = tuple(kept)
    if gone:
        gone = tuple([g for g in gone if g.until > now])
    return replace(gate, seen=now, holders=holders, queue=queue, gone=gone), tuple(wakes)


def _refresh(gate: Gate, ticket: str, now: Micros) -> Gate:
    """Extend the life of the queued ticket whose client has sent this Acquire. If its offer had lapsed, it may get a
    new one.
    """
    for i, w in enumerate(gate.queue):
        if w.ticket == ticket:
            awake = replace(w, alive=now + LIFE, offer=max(w.offer, 0))
            return replace(gate, queue=(*gate.queue[:i], awake, *gate.queue[i + 1 :]))
    return gate


def _offer(gate: Gate, now: Micros, sender: str) -> tuple[Gate, tuple[Wake, ...]]:
    """Offer free capacity in FIFO order. Stop at the first waiter that does not fit, so that no later one overtakes it.
    The ticket `sender`, which sent this command, needs no hint: it gets the reply.
    """
    taken = _list_taken(gate)
    queue = list(gate.queue)
    wakes: list[Wake] = []
    offered = False
    for i, waiter in enumerate(queue):
        if waiter.offer:  # the waiter has an offer, or let its offer lapse
            continue
        if not _fits(gate.capacity, taken, waiter.exclusive):
            if offered:  # the client with the offer may have crashed: this waiter rechecks when the offer lapses
                wakes.append(Wake(waiter.inbox, f"{waiter.ticket} {LAPSE}"))
            break
        offered = True
        queue[i] = replace(waiter, offer=now + OFFER)
        if waiter.ticket != sender:
            wakes.append(Wake(waiter.inbox, waiter.ticket))
        taken.append(waiter.exclusive)
    return (replace(gate, queue=tuple(queue)), tuple(wakes)) if offered else (gate, ())


def _list_taken(gate: Gate) -> list[bool]:
    """Return one bool for each holder and for each waiter with an offer: whether it is exclusive."""
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
        if h.ticket == cmd.ticket:  # A resend after a lost reply; it never shortens the lease.
            held = h if h.ttl_number else replace(h, until=max(h.until, now + cmd.ttl))
            holders = (*gate.holders[:i], held, *gate.holders[i + 1 :])
            return replace(gate, holders=holders), Granted(h.fence, h.since, held.until)

    for i, w in enumerate(gate.queue):
        if w.ticket == cmd.ticket:
            if w.offer:
                gate = replace(gate, queue=gate.queue[:i] + gate.queue[i + 1 :])
                return _grant(gate, cmd, w.exclusive, now)  # exclusive as when the ticket was queued
            return gate, _build_queued(gate, i, now)

    if not any(w.offer == 0 for w in gate.queue) and _fits(gate.capacity, _list_taken(gate), cmd.exclusive):
        return _grant(gate, cmd, cmd.exclusive, now)
    if cmd.max_waiters == 0:
        return gate, Busy(len(gate.holders) + len(gate.queue), gate.holders[:1])
    if len(gate.queue) >= cmd.max_waiters:
        return gate, Full(len(gate.queue))
    waiter = Waiter(cmd.ticket, cmd.lock_id, cmd.exclusive, cmd.inbox, now, now + LIFE, 0, cmd.caller)
    gate = replace(gate, queue=(*gate.queue, waiter))
    return gate, _build_queued(gate, len(gate.queue) - 1, now)


def _grant(gate: Gate, cmd: Acquire, exclusive: bool, now: Micros) -> tuple[Gate, Reply]:
    fence = max(gate.last + 1, now)
    holder = Holder(cmd.ticket, cmd.lock_id, exclusive, fence, now, now + cmd.ttl, cmd.caller)
    return replace(gate, last=fence, holders=(*gate.holders, holder)), Granted(fence, now, holder.until)


def _build_queued(gate: Gate, index: int, now: Micros) -> Queued:
    ends = [h.until for h in gate.holders] + [w.offer for w in gate.queue if w.offer > 0]
    position = sum(w.offer != LAPSED for w in gate.queue[:index])
    after = min(ends) - now + SLACK + position * STAGGER
    return Queued(position, min(after, RECHECK), len(gate.holders) + len(gate.queue), gate.holders[:1])


def _renew(gate: Gate, cmd: Renew, now: Micros) -> tuple[Gate, Reply]:
    gate = replace(gate, last=max(gate.last, cmd.fence))
    for i, h in enumerate(gate.holders):
        if h.ticket == cmd.ticket:
            held = h
            if cmd.ttl_number > h.ttl_number:
                held = replace(h, until=now + cmd.ttl, ttl_number=cmd.ttl_number)
            elif cmd.ttl_number == h.ttl_number:
                held = replace(h, until=max(h.until, now + cmd.ttl))
            holders = (*gate.holders[:i], held, *gate.holders[i + 1 :])
            return replace(gate, holders=holders), Renewed(held.until, now, held.ttl_number)
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


def _is_evicted(entry: Holder | Waiter, cmd: Evict) -> bool:
    return entry.caller.execution_id == cmd.execution_id and entry.ticket.startswith(cmd.ticket_prefix)


def _add_tombstone(gate: Gate, ticket: str, until: Micros, now: Micros) -> Gate:
    if until <= now:
        return gate
    return replace(gate, gone=(*(g for g in gate.gone if g.ticket != ticket), Tombstone(ticket, until)))


def _keep_until(gate: Gate) -> Micros:
    """Return when the gate's record may be deleted. From then on, all in it has expired: without the record, every
    command gets the same reply.
    """
    until = max(gate.seen, gate.last)
    for holder in gate.holders:
        until = max(until, holder.until)
    for waiter in gate.queue:
        until = max(until, waiter.alive, waiter.offer)
    for gone in gate.gone:
        until = max(until, gone.until)
    return until + DAY


GATE = Room("gate", step=step, state=Gate, version=VERSION, replies=Reply, package="backstay.gate")
