"""Idempotency: one key, one run, one outcome. The machine behind `run`, the decorator and the middleware.

A key goes

    idle → running (a lease with a fence, renewed while the call runs) → completed or failed (kept for its TTL) → idle

and the one command `Begin` starts, joins those who wait, takes over and replays: whatever the key needs next. Who waits
is told when the call ends. A call whose lease ended may be taken over by exactly one other; until somebody does, its
own outcome is still welcome. From then on it is refused: the outcome of a key never changes.

What a call answered is kept beside the record, not in it. Times are µs of the engine's clock. `lua/*.lua`
say the same for Redis; a property test holds both against each other.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.base import Command, Expired, Micros, Record, Room, Step, Wake

#: Someone who waits is remembered this long without a sign of life; waiters look at least every `RECHECK`.
LIFE = 30_000_000
#: Milliseconds after which the second in line looks whether the first was dead.
LAPSE = 2_001
#: Waiters further back look a little later each, so that they do not all come at once.
STAGGER = 10_000
#: The longest a waiter sleeps before it looks again: hints may be lost.
RECHECK = 10_000_000
#: A lease ends at its microsecond; look one millisecond later.
SLACK = 1_000
#: A fence, and a call that may still report its outcome, are remembered a day.
DAY = 86_400_000_000
#: Longer lists make the record slow to rewrite; whoever comes later is not told and looks by itself.
MAX_WAITERS = 1000
#: Bumped when the stored shape changes.
VERSION = 1

IDLE, RUNNING, COMPLETED, FAILED = "idle", "running", "completed", "failed"


class Waiter(Struct, frozen=True, array_like=True):
    """Who is told when the call ends."""

    ticket: str
    inbox: str
    alive: Micros


class Gone(Struct, frozen=True, array_like=True):
    """A ticket that must not come back: a copy of its Begin may still be under way until `until`."""

    ticket: str
    until: Micros


class Entry(Record, frozen=True, array_like=True):
    """All there is to know about one key. `last` is the highest fence ever seen, `seen` the latest time. The rest is
    about the call that runs or ran; `until` ends its lease, or its outcome.
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
    gone: tuple[Gone, ...] = ()


class Begin(Command, frozen=True, array_like=True):
    """Start, wait, take over or replay: whatever the key needs next."""

    ticket: str
    by: str
    #: What the call is about; empty: do not compare.
    fingerprint: str
    lease: Micros
    #: Where to tell of the end; empty: do not wait.
    inbox: str


class Renew(Command, frozen=True, array_like=True):
    """Keep a running call's lease. Never brings a lost one back."""

    ticket: str
    fence: int
    lease: Micros


class Complete(Command, frozen=True, array_like=True):
    """Keep a call's outcome for `ttl`. Refused once another has taken over."""

    ticket: str
    fence: int
    ttl: Micros
    failed: bool
    body: bytes


class Abandon(Command, frozen=True, array_like=True):
    """Leave without an outcome, running or waiting. Right even when the Begin's outcome is unknown."""

    ticket: str
    gone_until: Micros


class Forget(Command, frozen=True, array_like=True):
    """Make the key as good as new, whoever runs it. The fence moves on, so that their outcome is refused."""


class Begun(Struct, frozen=True, array_like=True, tag="begun"):
    fence: int
    since: Micros
    until: Micros


class Running(Struct, frozen=True, array_like=True, tag="running"):
    """Somebody else's call runs; `until` its lease ends."""

    recheck_after: Micros
    by: str
    since: Micros
    until: Micros


class Done(Struct, frozen=True, array_like=True, tag="done"):
    """It ran: this is what came of it."""

    failed: bool
    until: Micros
    body: bytes


class Mismatch(Struct, frozen=True, array_like=True, tag="mismatch"):
    phase: str
    since: Micros


class Renewed(Struct, frozen=True, array_like=True, tag="renewed"):
    until: Micros


class Stored(Struct, frozen=True, array_like=True, tag="stored"):
    until: Micros


class Lost(Struct, frozen=True, array_like=True, tag="lost"):
    """The call is somebody else's by now (`by`), or nobody's."""

    by: str


class Abandoned(Struct, frozen=True, array_like=True, tag="abandoned"):
    """`was`: running, waiting or absent."""

    was: str


class Forgotten(Struct, frozen=True, array_like=True, tag="forgotten"):
    """`was`: the phase before."""

    was: str


Reply = Begun | Running | Done | Mismatch | Renewed | Stored | Lost | Abandoned | Forgotten | Expired


def step(state: Entry | None, command: Command, now: Micros) -> Step[Entry]:
    """The whole meaning of a key. Pure: no clock, no I/O, no randomness."""
    entry = state or Entry(VERSION, 0, now)
    now = max(now, entry.seen)
    if isinstance(command, Begin) and _replays(entry, command, now):  # however late it comes: it changes nothing
        return Step(state, Done(entry.phase == FAILED, entry.until, b""), write=False, quotes=True)
    if now > command.not_after:
        return Step(state, Expired(now), write=False)
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
            return _written(replace(_idle(entry), last=fence), Forgotten(entry.phase), _heirs(entry), body=b"")
        case _:
            raise TypeError(f"not an idempotency command: {command!r}")


def _replays(entry: Entry, cmd: Begin, now: Micros) -> bool:
    settled = entry.phase in (COMPLETED, FAILED) and now < entry.until
    return settled and cmd.fingerprint in ("", entry.fingerprint)


def _expire(entry: Entry, now: Micros) -> Entry:
    """Let time pass: what has ended is no longer there. A call whose lease ended may be taken over, and lingers."""
    if entry.phase != IDLE and now >= _ends(entry):
        entry = _idle(entry)
    return replace(
        entry,
        waiters=tuple(w for w in entry.waiters if w.alive > now),
        gone=tuple(g for g in entry.gone if g.until > now),
    )


def _ends(entry: Entry) -> Micros:
    """When the key is idle again if nobody does anything."""
    return entry.until + DAY if entry.phase == RUNNING else entry.until


def _idle(entry: Entry) -> Entry:
    return replace(entry, phase=IDLE, ticket="", by="", fence=0, since=0, until=0, fingerprint="")


def _begin(entry: Entry, cmd: Begin, now: Micros) -> Step[Entry]:
    if any(g.ticket == cmd.ticket for g in entry.gone):
        return Step(entry, Expired(now), write=False)
    if entry.phase != IDLE and cmd.fingerprint not in ("", entry.fingerprint):
        return Step(entry, Mismatch(entry.phase, entry.since), write=False)
    if entry.phase == RUNNING and entry.until > now:
        if entry.ticket == cmd.ticket:  # A resend: the first reply was lost. It may be late, so it never shortens.
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


def _wait(entry: Entry, cmd: Begin, now: Micros) -> Step[Entry]:
    """Somebody else's call runs. Whoever wants to be told is remembered, in the order of coming."""
    known = [w.ticket for w in entry.waiters]
    position = known.index(cmd.ticket) if cmd.ticket in known else len(known)
    after = min(entry.until - now + SLACK + position * STAGGER, RECHECK)
    reply = Running(after, entry.by, entry.since, entry.until)
    if not cmd.inbox or position >= MAX_WAITERS:
        return Step(entry, reply, write=False)
    waiter = Waiter(cmd.ticket, cmd.inbox, now + LIFE)
    waiters = (*entry.waiters[:position], waiter, *entry.waiters[position + 1 :])
    return _written(replace(entry, waiters=waiters), reply)


def _renew(entry: Entry, cmd: Renew, now: Micros) -> Step[Entry]:
    entry = replace(entry, last=max(entry.last, cmd.fence))
    if entry.ticket != cmd.ticket or (entry.phase == RUNNING and entry.until <= now):
        return _written(entry, _lost(entry, cmd.ticket))
    if entry.phase == RUNNING:
        entry = replace(entry, until=max(entry.until, now + cmd.lease))  # a late one never shortens
    return _written(entry, Renewed(entry.until))


def _complete(entry: Entry, cmd: Complete, now: Micros) -> Step[Entry]:
    entry = replace(entry, last=max(entry.last, cmd.fence))
    if entry.ticket != cmd.ticket:
        return _written(entry, _lost(entry, cmd.ticket))
    if entry.phase != RUNNING:  # A resend: the first reply was lost.
        return _written(entry, Stored(entry.until))
    told = tuple(Wake(w.inbox, w.ticket) for w in entry.waiters)
    entry = replace(entry, phase=FAILED if cmd.failed else COMPLETED, until=now + cmd.ttl, waiters=())
    return _written(entry, Stored(entry.until), told, body=cmd.body)


def _abandon(entry: Entry, cmd: Abandon, now: Micros) -> Step[Entry]:
    was = "waiting" if any(w.ticket == cmd.ticket for w in entry.waiters) else "absent"
    gone = entry.gone
    if cmd.gone_until > now:
        gone = (*(g for g in gone if g.ticket != cmd.ticket), Gone(cmd.ticket, cmd.gone_until))
    entry = replace(entry, gone=gone, waiters=tuple(w for w in entry.waiters if w.ticket != cmd.ticket))
    if entry.phase == RUNNING and entry.ticket == cmd.ticket:
        return _written(_idle(entry), Abandoned(RUNNING), _heirs(entry))
    return _written(entry, Abandoned(was))


def _heirs(entry: Entry) -> tuple[Wake, ...]:
    """The key is free: the first who waits may begin. If it is dead, the second finds out."""
    first, second = entry.waiters[:1], entry.waiters[1:2]
    return (*(Wake(w.inbox, w.ticket) for w in first), *(Wake(w.inbox, f"{w.ticket} {LAPSE}") for w in second))


def _lost(entry: Entry, ticket: str) -> Lost:
    return Lost(entry.by if entry.ticket != ticket else "")


def _written(entry: Entry, reply: Reply, wakes: tuple[Wake, ...] = (), body: bytes | None = None) -> Step[Entry]:
    return Step(entry, reply, wakes, _keep_until(entry), body=body)


def _keep_until(entry: Entry) -> Micros:
    """From then on an absent row answers exactly as this one would, although the clock be set back by a day."""
    ends = [entry.seen, entry.last]
    if entry.phase != IDLE:
        ends.append(_ends(entry))
    ends += [w.alive for w in entry.waiters]
    ends += [g.until for g in entry.gone]
    return max(ends) + DAY


IDEMPOTENCY = Room(
    "idempotency",
    step=step,
    state=Entry,
    version=VERSION,
    replies=Reply,
    package="backstay.idempotency",
    bodies=True,
)
