"""The state machine of idempotency keys, behind `run`, the decorator and the middleware: one run, one outcome per key.

A key moves through these states:

    idle → running (a lease with a fence, renewed while the call runs) → completed or failed (stored for a TTL) → idle

The client sends `Begin` repeatedly. Depending on the state it starts the call, waits for the running call, takes over
an expired one, or gets the stored outcome. Waiters get a hint when the call ends. After the lease of a call has
expired, exactly one other call may take over. Until then the machine still accepts the late outcome of the first call;
afterwards it refuses it, so a stored outcome never changes.

The outcome itself (the body) is stored beside the record, not in it. Times are µs of the engine's clock. `lua/*.lua`
implement the same machine for Redis; a property test compares both.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.base import Command, Expired, Micros, Record, Room, Transition, Wake

#: A waiter expires this long after its last Begin; waiters send one at least every `RECHECK`.
LIFE = 30_000_000
#: Milliseconds after which the second waiter rechecks, in case the first has crashed.
LAPSE = 2_001
#: Extra delay of the recheck per position; it prevents a thundering herd.
STAGGER = 10_000
#: The longest time a waiter sleeps before it rechecks, because hints may be lost.
RECHECK = 10_000_000
#: A waiter rechecks one millisecond after the lease ends.
SLACK = 1_000
#: The fence, and a call with an expired lease that may still send its outcome, are kept for a day.
DAY = 86_400_000_000
#: A longer list would make the record slow to rewrite; further waiters get no hint and poll.
MAX_WAITERS = 1000
#: Incremented when the stored format changes.
VERSION = 1

IDLE, RUNNING, COMPLETED, FAILED = "idle", "running", "completed", "failed"


class Waiter(Struct, frozen=True, array_like=True):
    """A waiting call, which gets a hint when the running call ends. `alive`: when the entry expires."""

    ticket: str
    inbox: str
    alive: Micros


class Tombstone(Struct, frozen=True, array_like=True):
    """Refuses an abandoned ticket until `until`: a delayed copy of its Begin must not bring it back."""

    ticket: str
    until: Micros


class KeyState(Record, frozen=True, array_like=True):
    """The state of one key. `last`: the highest fence ever seen. `seen`: the latest time ever seen. The other fields
    describe the call that runs or ran; `until` is the end of its lease, or of its outcome.
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
    #: The channel for the hint that the call has ended; empty: do not wait.
    inbox: str


class Renew(Command, frozen=True, array_like=True):
    """Extend the lease of a running call. It never revives a lost one."""

    ticket: str
    fence: int
    lease: Micros


class Complete(Command, frozen=True, array_like=True):
    """Store a call's outcome for `ttl`. Refused once another call has taken over."""

    ticket: str
    fence: int
    ttl: Micros
    failed: bool
    body: bytes


class Abandon(Command, frozen=True, array_like=True):
    """Remove a running or waiting ticket without an outcome. Safe when the outcome of its Begin is unknown."""

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
    """Refused: the key runs or ran with another fingerprint."""

    phase: str
    since: Micros


class Renewed(Struct, frozen=True, array_like=True, tag="renewed"):
    """The lease is extended."""

    until: Micros


class Stored(Struct, frozen=True, array_like=True, tag="stored"):
    """The outcome is stored until `until`."""

    until: Micros


class Lost(Struct, frozen=True, array_like=True, tag="lost"):
    """Refused: the ticket no longer holds the call. `by`: the process that does, or empty."""

    by: str


class Abandoned(Struct, frozen=True, array_like=True, tag="abandoned"):
    """The ticket is gone. `was`: running, waiting or absent."""

    was: str


class Forgotten(Struct, frozen=True, array_like=True, tag="forgotten"):
    """The key is idle. `was`: its phase before."""

    was: str


Reply = Begun | Running | Done | Mismatch | Renewed | Stored | Lost | Abandoned | Forgotten | Expired


def step(state: KeyState | None, command: Command, now: Micros) -> Transition[KeyState]:
    """Apply one command to a key. Pure: no clock, no I/O, no randomness."""
    entry = state or KeyState(VERSION, 0, now)
    now = max(now, entry.seen)
    if isinstance(command, Begin) and _replays(entry, command, now):  # valid past `not_after`: it changes nothing
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
            return _written(replace(_idle(entry), last=fence), Forgotten(entry.phase), _wake_next(entry), body=b"")
        case _:
            raise TypeError(f"not an idempotency command: {command!r}")


def _replays(entry: KeyState, cmd: Begin, now: Micros) -> bool:
    settled = entry.phase in (COMPLETED, FAILED) and now < entry.until
    return settled and cmd.fingerprint in ("", entry.fingerprint)


def _expire(entry: KeyState, now: Micros) -> KeyState:
    """Remove what has ended at `now`. A running call stays for a day after its lease: it may still send its outcome."""
    if entry.phase != IDLE and now >= _ends(entry):
        entry = _idle(entry)
    return replace(
        entry,
        waiters=tuple(w for w in entry.waiters if w.alive > now),
        gone=tuple(g for g in entry.gone if g.until > now),
    )


def _ends(entry: KeyState) -> Micros:
    """Return when the key becomes idle without a further command."""
    return entry.until + DAY if entry.phase == RUNNING else entry.until


def _idle(entry: KeyState) -> KeyState:
    return replace(entry, phase=IDLE, ticket="", by="", fence=0, since=0, until=0, fingerprint="")


def _begin(entry: KeyState, cmd: Begin, now: Micros) -> Transition[KeyState]:
    if any(g.ticket == cmd.ticket for g in entry.gone):
        return Transition(entry, Expired(now), write=False)
    if entry.phase != IDLE and cmd.fingerprint not in ("", entry.fingerprint):
        return Transition(entry, Mismatch(entry.phase, entry.since), write=False)
    if entry.phase == RUNNING and entry.until > now:
        if entry.ticket == cmd.ticket:  # A resend after a lost reply. It may arrive late, so it never shortens.
            entry = replace(entry, until=max(entry.until, now + cmd.lease))
            return _written(entry, Begun(entry.fence, entry.since, entry.until))
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
    return _written(entry, Begun(fence, now, entry.until))


def _wait(entry: KeyState, cmd: Begin, now: Micros) -> Transition[KeyState]:
    """Reply that another call runs, and add the caller to the FIFO list of waiters if it wants a hint."""
    known = [w.ticket for w in entry.waiters]
    position = known.index(cmd.ticket) if cmd.ticket in known else len(known)
    after = min(entry.until - now + SLACK + position * STAGGER, RECHECK)
    reply = Running(after, entry.by, entry.since, entry.until)
    if not cmd.inbox or position >= MAX_WAITERS:
        return Transition(entry, reply, write=False)
    waiter = Waiter(cmd.ticket, cmd.inbox, now + LIFE)
    waiters = (*entry.waiters[:position], waiter, *entry.waiters[position + 1 :])
    return _written(replace(entry, waiters=waiters), reply)


def _renew(entry: KeyState, cmd: Renew, now: Micros) -> Transition[KeyState]:
    entry = replace(entry, last=max(entry.last, cmd.fence))
    if entry.ticket != cmd.ticket or (entry.phase == RUNNING and entry.until <= now):
        return _written(entry, _lost(entry, cmd.ticket))
    if entry.phase == RUNNING:
        entry = replace(entry, until=max(entry.until, now + cmd.lease))  # a delayed renewal never shortens
    return _written(entry, Renewed(entry.until))


def _complete(entry: KeyState, cmd: Complete, now: Micros) -> Transition[KeyState]:
    entry = replace(entry, last=max(entry.last, cmd.fence))
    if entry.ticket != cmd.ticket:
        return _written(entry, _lost(entry, cmd.ticket))
    if entry.phase != RUNNING:  # a resend after a lost reply
        return _written(entry, Stored(entry.until))
    wakes = tuple(Wake(w.inbox, w.ticket) for w in entry.waiters)
    entry = replace(entry, phase=FAILED if cmd.failed else COMPLETED, until=now + cmd.ttl, waiters=())
    return _written(entry, Stored(entry.until), wakes, body=cmd.body)


def _abandon(entry: KeyState, cmd: Abandon, now: Micros) -> Transition[KeyState]:
    was = "waiting" if any(w.ticket == cmd.ticket for w in entry.waiters) else "absent"
    gone = entry.gone
    if cmd.gone_until > now:
        gone = (*(g for g in gone if g.ticket != cmd.ticket), Tombstone(cmd.ticket, cmd.gone_until))
    entry = replace(entry, gone=gone, waiters=tuple(w for w in entry.waiters if w.ticket != cmd.ticket))
    if entry.phase == RUNNING and entry.ticket == cmd.ticket:
        return _written(_idle(entry), Abandoned(RUNNING), _wake_next(entry))
    return _written(entry, Abandoned(was))


def _wake_next(entry: KeyState) -> tuple[Wake, ...]:
    """Wake the first waiter, because the key is free, and let the second recheck later, in case the first has
    crashed.
    """
    first, second = entry.waiters[:1], entry.waiters[1:2]
    return (*(Wake(w.inbox, w.ticket) for w in first), *(Wake(w.inbox, f"{w.ticket} {LAPSE}") for w in second))


def _lost(entry: KeyState, ticket: str) -> Lost:
    return Lost(entry.by if entry.ticket != ticket else "")


def _written(
    entry: KeyState, reply: Reply, wakes: tuple[Wake, ...] = (), body: bytes | None = None
) -> Transition[KeyState]:
    return Transition(entry, reply, wakes, _keep_until(entry), body=body)


def _keep_until(entry: KeyState) -> Micros:
    """Return when the record may be deleted: from then on an absent record gives the same replies, even when the clock
    is set back by a day.
    """
    ends = [entry.seen, entry.last]
    if entry.phase != IDLE:
        ends.append(_ends(entry))
    ends += [w.alive for w in entry.waiters]
    ends += [g.until for g in entry.gone]
    return max(ends) + DAY


IDEMPOTENCY = Room(
    "idempotency",
    step=step,
    state=KeyState,
    version=VERSION,
    replies=Reply,
    package="backstay.idempotency",
    has_bodies=True,
)
