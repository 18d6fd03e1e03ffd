"""The gate: the one machine behind lock, semaphore and read-write lock.

A gate has holders and a first-come-first-served queue of tickets. A ticket goes

    queued (dies unless refreshed) → offered (a short window to confirm) → held (a lease with a fence)

and the one command `Acquire` enters, refreshes, polls and confirms. Every command first lets time pass: ended
leases and dead tickets leave, and freed places are offered in order. An offer occupies its place, so nobody
barges. A ticket whose offer lapsed keeps its place in the queue but is passed over until it asks again: a dead
waiter costs one offer window (several in a row, at most until a living one's recheck), a sleeping one loses its
turn and not its rank.

Lock: capacity 1, exclusive. Semaphore: capacity n, shared. Read-write lock: unlimited, readers shared, writers
exclusive. Times are µs of the engine's clock. `lua/*.lua` say the same for Redis; a property test
holds both against each other.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.base import Command, Expired, Micros, Record, Room, Step, Wake

#: A queued ticket lives this long without a sign of life; waiters poll at least every `RECHECK`.
LIFE = 30_000_000
#: How long an offer stands. A paused waiter is passed over after that.
OFFER = 2_000_000
#: Milliseconds after which the next in line looks whether an offer has lapsed.
LAPSE = 2_001
#: The `offer` of a ticket that let its offer lapse.
LAPSED = -1
#: Waiters further back look a little later each, so that they do not all come at once.
STAGGER = 10_000
#: The longest a waiter sleeps before it looks again: hints may be lost.
RECHECK = 10_000_000
#: A lease ends at its microsecond; look one millisecond later.
SLACK = 1_000
#: The fence's record outlives everything else by a day, so that a clock set back cannot repeat a fence.
DAY = 86_400_000_000
#: Bumped when the stored shape changes.
VERSION = 1
#: The capacity of a read-write lock.
UNLIMITED = 0


class Who(Struct, frozen=True, array_like=True):
    """The caller's identity, as people name it."""

    execution_id: str = ""
    workflow_id: str = ""
    workflow_name: str = ""


class Holder(Struct, frozen=True, array_like=True):
    """A granted place."""

    ticket: str
    lock_id: str
    exclusive: bool
    fence: int
    since: Micros
    until: Micros
    who: Who


class Waiter(Struct, frozen=True, array_like=True):
    """A ticket in the queue; `offer` is 0, or the moment until which an offer stands, or LAPSED."""

    ticket: str
    lock_id: str
    exclusive: bool
    inbox: str
    since: Micros
    alive: Micros
    offer: Micros
    who: Who


class Gone(Struct, frozen=True, array_like=True):
    """A ticket that must not come back: a copy of its Acquire may still be under way until `until`."""

    ticket: str
    until: Micros


class Gate(Record, frozen=True, array_like=True):
    """All there is to know about one name. `last` is the highest fence ever seen, `seen` the latest time."""

    capacity: int
    last: int
    seen: Micros
    holders: tuple[Holder, ...] = ()
    queue: tuple[Waiter, ...] = ()
    gone: tuple[Gone, ...] = ()


class Acquire(Command, frozen=True, array_like=True):
    """Enter, refresh, poll and confirm: whatever this ticket needs next."""

    ticket: str
    lock_id: str
    exclusive: bool
    capacity: int
    ttl: Micros
    inbox: str
    #: 0: do not queue. Else the longest queue this caller will join.
    max_waiters: int
    who: Who


class Renew(Command, frozen=True, array_like=True):
    """Extend a live lease. Never brings a lost one back."""

    ticket: str
    fence: int
    ttl: Micros


class Release(Command, frozen=True, array_like=True):
    """Give a lease back, by ticket or (ticket empty) by lock_id. Verifies ownership."""

    ticket: str
    lock_id: str
    fence: int
    #: Copies of this ticket's Acquire may be under way until then; 0 when there are none.
    gone_until: Micros

    hands_over: ClassVar[bool] = True


class Withdraw(Command, frozen=True, array_like=True):
    """Leave, whatever state the ticket is in. Right even when the Acquire's outcome is unknown."""

    ticket: str
    gone_until: Micros


class ForceRelease(Command, frozen=True, array_like=True):
    """Take the lease away from whoever holds it. The fence moves on, so their writes can be refused."""


class Evict(Command, frozen=True, array_like=True):
    """Remove what one execution holds or waits for, and nothing else."""

    execution_id: str


class Granted(Struct, frozen=True, array_like=True, tag="granted"):
    fence: int
    since: Micros
    until: Micros


class Queued(Struct, frozen=True, array_like=True, tag="queued"):
    position: int
    recheck_after: Micros
    count: int
    holders: tuple[Holder, ...]


class Held(Struct, frozen=True, array_like=True, tag="held"):
    count: int
    holders: tuple[Holder, ...]


class Full(Struct, frozen=True, array_like=True, tag="full"):
    waiters: int


class Disagree(Struct, frozen=True, array_like=True, tag="disagree"):
    capacity: int


class Renewed(Struct, frozen=True, array_like=True, tag="renewed"):
    until: Micros


class Lost(Struct, frozen=True, array_like=True, tag="lost"):
    holders: tuple[Holder, ...]


class Released(Struct, frozen=True, array_like=True, tag="released"):
    lock_id: str


class Absent(Struct, frozen=True, array_like=True, tag="absent"):
    """Not held by the caller, nor by anybody else."""


class Foreign(Struct, frozen=True, array_like=True, tag="foreign"):
    """Not held by the caller, but by these."""

    holders: tuple[Holder, ...]


class Withdrawn(Struct, frozen=True, array_like=True, tag="withdrawn"):
    """`was`: held, offered, queued or absent. `holders`: who stands in the way, if anybody."""

    was: str
    holders: tuple[Holder, ...]


class Removed(Struct, frozen=True, array_like=True, tag="removed"):
    """The holders that were removed, and the fence from now on (0: it did not move)."""

    fence: int
    holders: tuple[Holder, ...]


Reply = (
    Granted
    | Queued
    | Held
    | Full
    | Disagree
    | Renewed
    | Lost
    | Released
    | Absent
    | Foreign
    | Withdrawn
    | Removed
    | Expired
)


def step(state: Gate | None, command: Command, now: Micros) -> Step[Gate]:
    """The whole meaning of the gate. Pure: no clock, no I/O, no randomness."""
    gate = state or Gate(VERSION, 0, 0, now)
    now = max(now, gate.seen)
    if now > command.not_after:
        return Step(state, Expired(now), write=False)
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
        case Evict(execution_id=who):
            gone = tuple(h for h in gate.holders if h.who.execution_id == who)
            gate = replace(
                gate,
                holders=tuple(h for h in gate.holders if h.who.execution_id != who),
                queue=tuple(w for w in gate.queue if w.who.execution_id != who),
            )
            reply = Removed(0, gone)  # no fence moved; and a row that was swept would not know the last one
        case _:
            raise TypeError(f"not a gate command: {command!r}")
    if gate.queue:
        gate, more = _offer(gate, now, asking)
        wakes += more
    return Step(gate, reply, wakes, _keep_until(gate))


def _expire(gate: Gate, now: Micros) -> Gate:
    """Let time pass: what has ended is no longer there."""
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
    """This ticket's owner asks: it is alive, and it is passed over no longer."""
    return replace(
        gate,
        queue=tuple(
            replace(w, alive=now + LIFE, offer=max(w.offer, 0)) if w.ticket == ticket else w for w in gate.queue
        ),
    )


def _offer(gate: Gate, now: Micros, asking: str) -> tuple[Gate, tuple[Wake, ...]]:
    """Offer free places in arrival order and stop at the first who does not fit: nobody overtakes.
    Who asks this very moment needs no hint.
    """
    taken = _taken(gate)
    queue = list(gate.queue)
    wakes: list[Wake] = []
    offered = False
    for i, waiter in enumerate(queue):
        if waiter.offer:  # a place is kept for it already, or it is passed over
            continue
        if not _fits(gate.capacity, taken, waiter.exclusive):
            if offered:  # whoever was offered a place may be dead: then this one's turn comes when it lapses
                wakes.append(Wake(waiter.inbox, f"{waiter.ticket} {LAPSE}"))
            break
        offered = True
        queue[i] = replace(waiter, offer=now + OFFER)
        if waiter.ticket != asking:
            wakes.append(Wake(waiter.inbox, waiter.ticket))
        taken.append(waiter.exclusive)
    return (replace(gate, queue=tuple(queue)), tuple(wakes)) if offered else (gate, ())


def _taken(gate: Gate) -> list[bool]:
    """The places that are held or offered: exclusively or not."""
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
        return gate, Disagree(gate.capacity)

    for i, h in enumerate(gate.holders):
        if h.ticket == cmd.ticket:  # A resend: the first reply was lost. It may be late, so it never shortens.
            held = replace(h, until=max(h.until, now + cmd.ttl))
            holders = (*gate.holders[:i], held, *gate.holders[i + 1 :])
            return replace(gate, holders=holders), Granted(h.fence, h.since, held.until)

    for i, w in enumerate(gate.queue):
        if w.ticket == cmd.ticket:
            if w.offer:
                gate = replace(gate, queue=gate.queue[:i] + gate.queue[i + 1 :])
                return _grant(gate, cmd, w.exclusive, now)  # the place that was offered, not another
            return gate, _queued(gate, i, now)

    if not any(w.offer == 0 for w in gate.queue) and _fits(gate.capacity, _taken(gate), cmd.exclusive):
        return _grant(gate, cmd, cmd.exclusive, now)
    if cmd.max_waiters == 0:
        return gate, Held(len(gate.holders) + len(gate.queue), gate.holders[:1])
    if len(gate.queue) >= cmd.max_waiters:
        return gate, Full(len(gate.queue))
    waiter = Waiter(cmd.ticket, cmd.lock_id, cmd.exclusive, cmd.inbox, now, now + LIFE, 0, cmd.who)
    gate = replace(gate, queue=(*gate.queue, waiter))
    return gate, _queued(gate, len(gate.queue) - 1, now)


def _grant(gate: Gate, cmd: Acquire, exclusive: bool, now: Micros) -> tuple[Gate, Reply]:
    fence = max(gate.last + 1, now)
    holder = Holder(cmd.ticket, cmd.lock_id, exclusive, fence, now, now + cmd.ttl, cmd.who)
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
            held = replace(h, until=max(h.until, now + cmd.ttl))  # a late one never shortens what a later one gave
            holders = (*gate.holders[:i], held, *gate.holders[i + 1 :])
            return replace(gate, holders=holders), Renewed(held.until)
    return gate, Lost(gate.holders[:1])


def _release(gate: Gate, cmd: Release, now: Micros) -> tuple[Gate, Reply]:
    gate = replace(gate, last=max(gate.last, cmd.fence))
    if cmd.ticket:
        gate = _bury(gate, cmd.ticket, cmd.gone_until, now)
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
        _bury(gate, cmd.ticket, cmd.gone_until, now),
        holders=tuple(h for h in gate.holders if h.ticket != cmd.ticket),
        queue=tuple(w for w in gate.queue if w.ticket != cmd.ticket),
    )
    return gate, Withdrawn(was, gate.holders[:1])


def _bury(gate: Gate, ticket: str, until: Micros, now: Micros) -> Gate:
    if until <= now:
        return gate
    return replace(gate, gone=(*(g for g in gate.gone if g.ticket != ticket), Gone(ticket, until)))


def _keep_until(gate: Gate) -> Micros:
    """From then on an absent row answers exactly as this one would."""
    until = max(gate.seen, gate.last)
    for holder in gate.holders:
        until = max(until, holder.until)
    for waiter in gate.queue:
        until = max(until, waiter.alive, waiter.offer)
    for gone in gate.gone:
        until = max(until, gone.until)
    return until + DAY


GATE = Room("gate", step=step, state=Gate, version=VERSION, replies=Reply, package="backstay.gate")
