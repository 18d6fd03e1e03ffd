"""The state machine of idempotency keys, behind `run`, the decorator and the middleware: one run, one outcome per key.

A key moves through these states:

    idle → running (a lease with a fence, renewed while the call runs) → completed or failed (stored for a TTL) → idle

The client sends `Begin` repeatedly. Depending on the state it starts the call, waits for the running call, takes over
a call whose lease has expired, or gets the stored outcome. Waiters get a hint when the call ends. After the lease
of a call has expired, exactly one other call may take over. Until another call has taken over, the machine accepts a
late outcome of the first call; afterwards it refuses that outcome, so a stored outcome never changes.

The outcome itself (the body) is stored beside the record, not in it. Times are µs of the engine's clock. `lua/*.lua`
implement the same machine for Redis; a property test compares both.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.base import Command, Expired, Micros, Record, Room, Transition, Wake

#: A waiter expires this long after its last Begin. A live waiter sends a Begin at least every `RECHECK`.
LIFE = 30_000_000
#: When a key becomes free, only the first waiter is woken. The second rechecks after this many milliseconds, in case
#: the first has crashed.
LAPSE = 2_001
#: Each waiter rechecks this much (µs) later than the waiter before it in the list, so that not all recheck at once.
STAGGER = 10_000
#: The longest time a waiter sleeps before it rechecks, because hints may be lost.
RECHECK = 10_000_000
#: A waiter rechecks one millisecond after the lease of the running call ends.
SLACK = 1_000
#: How long (µs) the record of a key is kept after its last use. It holds the key's highest fence: without it, a fence
#: could repeat after the clock was set back. A call also stays in the record for this long after its lease has expired,
#: because it may still send its outcome.
DAY = 86_400_000_000
#: The most waiters in the record: a longer list would be slow to rewrite. Further waiters get no hint and poll.
MAX_WAITERS = 1000
#: Incremented when the stored format changes.
VERSION = 1

IDLE, RUNNING, COMPLETED, FAILED = "idle", "running", "completed", "failed"


class Waiter(Struct, frozen=True, array_like=True):
    """A waiting call, which gets a hint when the running call ends. `alive`: when this waiter expires."""

    ticket: str
    inbox: str
    alive: Micros


class Tombstone(Struct, frozen=True, array_like=True):
    """Marks an abandoned ticket. Until `until`, a Begin with this ticket is refused: a delayed copy of an earlier Begin
    must not start the call.
    """

    ticket: str
    until: Micros


class KeyState(Record, frozen=True, array_like=True):
    """The state of one key. The fields `phase` to `fingerprint` describe the call that runs or ran.

    last: The highest fence that this key has given or seen in a command.
    seen: The latest time at which a command was applied. Time never goes back.
    ticket: The attempt that runs or ran the call.
    by: The process of that attempt.
    since: When the call began.
    until: While the call runs: the end of its lease. Afterwards: when its stored outcome expires.
    waiters: Calls that wait for the running call.
    gone: The tombstones of abandoned tickets.
    """

    last: int
    seen: Micros
    phase: str = IDLE
    ticket: str = ""
    by: str = ""
    fence: int = 0
    since: Micros = 0
    until: Micros = 0
    fingerprint: str = ""
    waiters: tuple[Waiter, ...] = ()
    gone: tuple[Tombstone, ...] = ()


class Begin(Command, frozen=True, array_like=True):
    """Start the call, wait for the running one, take over an expired one, or get the stored outcome."""

    ticket: str
    by: str
    #: The fingerprint of the request; empty: do not compare.
    fingerprint: str
    lease: Micros
    #: The channel that gets a hint when the running call has ended; empty: do not register as a waiter.
    inbox: str


class Renew(Command, frozen=True, array_like=True):
    """Extend the lease of a running call. It never revives a lost one."""

    ticket: str
    fence: int
    lease: Micros

    renews_lease: ClassVar[bool] = True


class Complete(Command, frozen=True, array_like=True):
    """Store a call's outcome for `ttl`. Refused once another call has taken over."""

    ticket: str
    fence: int
    ttl: Micros
    failed: bool
    body: bytes


class Abandon(Command, frozen=True, array_like=True):
    """Remove a ticket, running or waiting, without storing an outcome. A caller that does not know whether its Begin
    was applied may send it, too.
    """

    ticket: str
    gone_until: Micros


class Forget(Command, frozen=True, array_like=True):
    """Reset the key to idle, even while a call runs. The fence advances, so that the outcome of that call is
    refused.
    """


class Begun(Struct, frozen=True, array_like=True, tag="begun"):
    """The ticket holds the lease: run the call."""

    fence: int
    since: Micros
    until: Micros


class Running(Struct, frozen=True, array_like=True, tag="running"):
    """Another call runs; its lease ends at `until`. Send Begin again after `recheck_after` µs."""

    recheck_after: Micros
    by: str
    since: Micros
    until: Micros


class Done(Struct, frozen=True, array_like=True, tag="done"):
    """The call has run; `body` is its stored outcome."""

    failed: bool
    until: Micros
    body: bytes


class Mismatch(Struct, frozen=True, array_like=True, tag="mismatch"):
    """Refused: the call of this key, which runs or has run, began with another fingerprint."""

    phase: str
    since: Micros


class Renewed(Struct, frozen=True, array_like=True, tag="renewed"):
    """The lease is extended."""

    until: Micros


class Stored(Struct, frozen=True, array_like=True, tag="stored"):
    """The outcome is stored until `until`."""

    until: Micros


class Lost(Struct, frozen=True, array_like=True, tag="lost"):
    """Refused: the ticket no longer holds the call's lease. `by`: the process that holds it, or empty."""

    by: str


class Abandoned(Struct, frozen=True, array_like=True, tag="abandoned"):
    """The ticket is gone. `was`: running, waiting or absent."""

    was: str


class Forgotten(Struct, frozen=True, array_like=True, tag="forgotten"):
    """The key is idle. `was`: its phase before the command."""

    was: str


Reply = Begun | Running | Done | Mismatch | Renewed | Stored | Lost | Abandoned | Forgotten | Expired


def step(state: KeyState | None, command: Command, now: Micros) -> Transition[KeyState]:
    """Apply one command to a key. Pure: no clock, no I/O, no randomness."""
    entry = state or KeyState(VERSION, 0, now)
    now = max(now, entry.seen)
    # A stored outcome is returned even after `not_after`, because a replay changes nothing.
    if isinstance(command, Begin) and _can_replay(entry, command, now):
        return Transition(state, Done(entry.phase == FAILED, entry.until, b""), write=False, includes_body=True)
    if now > command.not_after:
        return Transition(state, Expired(now), write=False)
    entry = _expire(replace(entry, seen=now), now)
    match command:
        case Begin():
            return _begin(entry, command, now)
        case Renew():
            return _renew(entry, command, now)
        case Complete():
            return _complete(entry, command, now)
        case Abandon():
            return _abandon(entry, command, now)
        case Forget():
            fence = max(entry.last + 1, now)
            return _write(
                replace(_reset_to_idle(entry), last=fence), Forgotten(entry.phase), _wake_next(entry), body=b""
            )
        case _:
            raise TypeError(f"not an idempotency command: {command!r}")


def _can_replay(entry: KeyState, cmd: Begin, now: Micros) -> bool:
    has_outcome = entry.phase in (COMPLETED, FAILED) and now < entry.until
    return has_outcome and cmd.fingerprint in ("", entry.fingerprint)


def _expire(entry: KeyState, now: Micros) -> KeyState:
    """Remove what has ended by `now`: the call or its outcome, waiters and tombstones. A running call ends only a day
    after its lease, because it may still send its outcome.
    """
    if entry.phase != IDLE and now >= _ends(entry):
        entry = _reset_to_idle(entry)
    return replace(
        entry,
        waiters=tuple(w for w in entry.waiters if w.alive > now),
        gone=tuple(g for g in entry.gone if g.until > now),
    )


def _ends(entry: KeyState) -> Micros:
    """Return when the key becomes idle if no further command arrives: when its outcome expires, or a day after the
    lease of its running call has expired.
    """
    return entry.until + DAY if entry.phase == RUNNING else entry.until


def _reset_to_idle(entry: KeyState) -> KeyState:
    return replace(entry, phase=IDLE, ticket="", by="", fence=0, since=0, until=0, fingerprint="")


def _begin(entry: KeyState, cmd: Begin, now: Micros) -> Transition[KeyState]:
    if any(g.ticket == cmd.ticket for g in entry.gone):
        return Transition(entry, Expired(now), write=False)
    if entry.phase != IDLE and cmd.fingerprint not in ("", entry.fingerprint):
        return Transition(entry, Mismatch(entry.phase, entry.since), write=False)
    if entry.phase == RUNNING and entry.until > now:
        if entry.ticket == cmd.ticket:  # A resend after a lost reply. It never shortens the lease.
            entry = replace(entry, until=max(entry.until, now + cmd.lease))
            return _write(entry, Begun(entry.fence, entry.since, entry.until))
        return _wait(entry, cmd, now)
    fence = max(entry.last + 1, now)
    entry = replace(
        entry,
        last=fence,
        phase=RUNNING,
        ticket=cmd.ticket,
        by=cmd.by,
        fence=fence,
        since=now,
        until=now + cmd.lease,
        fingerprint=cmd.fingerprint,
        waiters=tuple(w for w in entry.waiters if w.ticket != cmd.ticket),
    )
    return _write(entry, Begun(fence, now, entry.until))


def _wait(entry: KeyState, cmd: Begin, now: Micros) -> Transition[KeyState]:
    """Reply that another call runs. If the command has an inbox, add its ticket to the FIFO list of waiters."""
    known = [w.ticket for w in entry.waiters]
    position = known.index(cmd.ticket) if cmd.ticket in known else len(known)
    after = min(entry.until - now + SLACK + position * STAGGER, RECHECK)
    reply = Running(after, entry.by, entry.since, entry.until)
    if not cmd.inbox or position >= MAX_WAITERS:
        return Transition(entry, reply, write=False)
    waiter = Waiter(cmd.ticket, cmd.inbox, now + LIFE)
    waiters = (*entry.waiters[:position], waiter, *entry.waiters[position + 1 :])
    return _write(replace(entry, waiters=waiters), reply)


def _renew(entry: KeyState, cmd: Renew, now: Micros) -> Transition[KeyState]:
    entry = replace(entry, last=max(entry.last, cmd.fence))
    if entry.ticket != cmd.ticket or (entry.phase == RUNNING and entry.until <= now):
        return _write(entry, _build_lost(entry, cmd.ticket))
    if entry.phase == RUNNING:
        entry = replace(entry, until=max(entry.until, now + cmd.lease))  # a delayed renewal never shortens the lease
    return _write(entry, Renewed(entry.until))


def _complete(entry: KeyState, cmd: Complete, now: Micros) -> Transition[KeyState]:
    entry = replace(entry, last=max(entry.last, cmd.fence))
    if entry.ticket != cmd.ticket:
        return _write(entry, _build_lost(entry, cmd.ticket))
    if entry.phase != RUNNING:  # a resend after a lost reply
        return _write(entry, Stored(entry.until))
    wakes = tuple(Wake(w.inbox, w.ticket) for w in entry.waiters)
    entry = replace(entry, phase=FAILED if cmd.failed else COMPLETED, until=now + cmd.ttl, waiters=())
    return _write(entry, Stored(entry.until), wakes, body=cmd.body)


def _abandon(entry: KeyState, cmd: Abandon, now: Micros) -> Transition[KeyState]:
    was = "waiting" if any(w.ticket == cmd.ticket for w in entry.waiters) else "absent"
    gone = entry.gone
    if cmd.gone_until > now:
        gone = (*(g for g in gone if g.ticket != cmd.ticket), Tombstone(cmd.ticket, cmd.gone_until))
    entry = replace(entry, gone=gone, waiters=tuple(w for w in entry.waiters if w.ticket != cmd.ticket))
    if entry.phase == RUNNING and entry.ticket == cmd.ticket:
        return _write(_reset_to_idle(entry), Abandoned(RUNNING), _wake_next(entry))
    return _write(entry, Abandoned(was))


def _wake_next(entry: KeyState) -> tuple[Wake, ...]:
    """The key is free: wake the first waiter, and let the second one recheck LAPSE ms later, in case the first has
    crashed.
    """
    first, second = entry.waiters[:1], entry.waiters[1:2]
    return (*(Wake(w.inbox, w.ticket) for w in first), *(Wake(w.inbox, f"{w.ticket} {LAPSE}") for w in second))


def _build_lost(entry: KeyState, ticket: str) -> Lost:
    return Lost(entry.by if entry.ticket != ticket else "")


def _write(
    entry: KeyState, reply: Reply, wakes: tuple[Wake, ...] = (), body: bytes | None = None
) -> Transition[KeyState]:
    return Transition(entry, reply, wakes, _keep_until(entry), body=body)


def _keep_until(entry: KeyState) -> Micros:
    """Return when the record may be deleted. From then on, a key without a record gives the same replies as this one,
    even if the engine's clock is set back by up to a day.
    """
    ends = [entry.seen, entry.last]
    if entry.phase != IDLE:
        ends.append(_ends(entry))
    ends += [w.alive for w in entry.waiters]
    ends += [g.until for g in entry.gone]
    return max(ends) + DAY


def _make_room(name: str) -> Room[KeyState]:
    return Room(
        name,
        step=step,
        state=KeyState,
        version=VERSION,
        replies=Reply,
        package="backstay.idempotency",
        has_bodies=True,
    )


IDEMPOTENCY = _make_room("idempotency")
#: The records of the server's own calls. No key of a user, in Python or over HTTP, can name a record in this room: a
#: client that completes such a call could choose its outcome, such as the id of a run.
SERVER_CALLS = _make_room("server-call")
