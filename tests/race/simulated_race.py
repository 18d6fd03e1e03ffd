"""A race on simulated time: the real machine, clients that sleep, die and are cut off, an observer, failovers.

Thousands of histories in the time that one real race takes, each the same every time. The clients behave as `flows`
does; the engine is whatever `machine.step` is at that moment, so a test may break it first.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from backstay.gate import machine
from backstay.gate.commands import Acquire, CallerIdentity, Granted, Queued, Release, Withdraw
from backstay.gate.machine import LIFE, Gate
from backstay.testing.histories.history import Amnesia, Event, Report, check
from backstay.testing.histories.order import Snapshot, Waiting

SECOND = 1_000_000
BASE = 1_700_000_000 * SECOND
TTL = SECOND
NAME = "x"


@dataclass
class Client:
    """A client that acquires repeatedly. While it sleeps, it processes no event."""

    label: str
    ticket: str = ""
    nth: int = 0
    sleeps_until: int = 0
    gives_up: int = 0
    #: Grows with every request, so that an outdated timer is recognized.
    turn: int = 0
    #: A request is under way; a hint that comes meanwhile is remembered.
    busy: bool = False
    hinted: bool = False


@dataclass
class SimulatedRace:
    """`run()` returns the checker's report. Times are in µs; events carry seconds of the same clock."""

    seed: int
    permits: int = 1
    clients: int = 6
    seconds: int = 20
    failovers: int = 0
    #: How likely a hint is lost, or a reply, and how likely a client falls asleep or dies before it acts.
    deaf: float = 0.1
    mute: float = 0.0
    sleepy: float = 0.01
    look: tuple[int, ...] = (10_000,) * 20 + (300_000, 3 * SECOND)
    events: list[Event] = field(default_factory=list[Event])
    looks: list[Snapshot] = field(default_factory=list[Snapshot])
    amnesia: list[Amnesia] = field(default_factory=list[Amnesia])

    def run(self) -> Report:
        self.dice = random.Random(self.seed)
        self.now = BASE
        self.back_at = BASE
        self.state: Gate | None = None
        #: What the engine was lately: a replica that is behind knows one of these.
        self.lately: list[Gate | None] = [None]
        self.agenda: list[tuple[int, int, Callable[[], None]]] = []
        self.order = count()
        self.waiting: dict[str, Client] = {}
        for nth in range(self.clients):
            self.after(self.dice.randrange(SECOND), partial(self.begin, Client(f"p{nth}")))
        for _ in range(self.failovers):
            self.after(self.dice.randrange(self.seconds * SECOND), self.fail)
        self.after(0, self.observe)
        while self.agenda[0][0] < BASE + self.seconds * SECOND:
            self.now, _, happen = heapq.heappop(self.agenda)
            happen()
        return check(self.events, self.looks, permits={NAME: self.permits}, amnesia=self.amnesia, ttl=TTL / SECOND)

    def after(self, delay: int, happen: Callable[[], None]) -> None:
        heapq.heappush(self.agenda, (self.now + delay, next(self.order), happen))

    def note(self, kind: str, who: str, **facts: object) -> None:
        self.events.append(Event(kind, NAME, who, self.now / SECOND, facts))

    # ── the engine ──

    def fail(self) -> None:
        """A successor goes on from what it knows."""
        self.amnesia.append(Amnesia(self.now / SECOND, self.now))
        self.state = self.dice.choice(self.lately)
        self.lately = [self.state]
        self.back_at = self.now + self.dice.randrange(1, 4 * SECOND)

    def observe(self) -> None:
        if self.state is not None and self.now >= self.back_at:
            queue = tuple(Waiting(w.lock_id, w.since, w.alive - LIFE, w.offer) for w in self.state.queue)
            holders = tuple(h.lock_id for h in self.state.holders)
            self.looks.append(Snapshot(NAME, self.state.seen, holders, queue, self.now / SECOND))
        self.after(self.dice.choice(self.look), self.observe)

    def tell(self, command: machine.Command, client: Client, hear: Callable[[object], None]) -> None:
        """Send the command; during a failover the client retries when a master is available."""
        if self.now < self.back_at:
            wait = self.back_at - self.now + self.dice.randrange(SECOND // 2)
            self.after(wait, lambda: self.tell(command, client, hear))
            return
        done = machine.step(self.state, command, self.now)
        if done.write:
            self.state = done.state
            self.lately = [*self.lately[-5:], done.state]
        for _, payload in done.wakes:
            if self.dice.random() >= self.deaf:
                ticket, _, wait = payload.partition(" ")
                self.after(int(wait or 0) * 1000 + self.dice.randrange(3000), partial(self.hint, ticket))
        if self.mute and self.dice.random() < self.mute:
            self.after(self.dice.randrange(3 * SECOND // 2), lambda: self.tell(command, client, hear))
            return
        self.after(self.dice.randrange(100, 2000), lambda: self.awake(client, lambda: hear(done.reply)))

    # ── the clients ──

    def awake(self, client: Client, act: Callable[[], None]) -> None:
        """Act as soon as the client does not sleep; now and then it falls asleep right here, or dies."""
        if self.now < client.sleeps_until:
            self.after(client.sleeps_until - self.now, lambda: self.awake(client, act))
        elif self.dice.random() < self.sleepy:
            dies = self.dice.random() < 0.1
            client.sleeps_until = self.now + (10**12 if dies else self.dice.randrange(5 * SECOND))
            self.awake(client, act)
            if dies:
                self.after(SECOND, lambda: self.begin(Client(client.label + "'")))
        else:
            act()

    def begin(self, client: Client) -> None:
        client.nth += 1
        client.ticket = f"{client.label}-{client.nth}"
        client.gives_up = self.now + self.dice.choice((50_000, 5 * SECOND, 20 * SECOND))
        self.waiting[client.ticket] = client
        self.note("asked", client.ticket)
        self.ask(client)

    def hint(self, ticket: str) -> None:
        client = self.waiting.get(ticket)
        if client is not None:
            client.hinted = True
            self.look_again(client, 0)

    def look_again(self, client: Client, nap: int) -> None:
        """After this long, unless it has asked meanwhile."""
        ticket, turn = client.ticket, client.turn

        def look() -> None:
            if not client.busy and (client.ticket, client.turn) == (ticket, turn):
                self.ask(client)

        self.after(nap, lambda: self.awake(client, look))

    def ask(self, client: Client) -> None:
        client.turn += 1
        client.busy, client.hinted = True, False
        who = CallerIdentity(client.label)
        ticket, sent = client.ticket, self.now
        command = Acquire(
            self.now + 60 * SECOND, ticket, ticket, self.permits == 1, self.permits, TTL, client.label, 1000, who
        )
        self.tell(command, client, lambda reply: self.answered(client, sent, reply))

    def answered(self, client: Client, sent: int, reply: object) -> None:
        ticket = client.ticket
        client.busy = False
        if isinstance(reply, Granted):
            self.waiting.pop(ticket)
            client.turn += 1
            deadline = (sent + TTL * 0.98) / SECOND
            self.note("granted", ticket, fence=reply.fence, sent=sent / SECOND, deadline=deadline, at=reply.since)
            hold = self.dice.choice((1000, 5000, 5000, 60_000, 1_500_000))
            self.after(hold, lambda: self.awake(client, lambda: self.leave(client, reply.fence, deadline)))
        elif self.now >= client.gives_up:
            self.waiting.pop(ticket)
            client.turn += 1
            command = Withdraw(self.now + 60 * SECOND, ticket, 0)
            self.tell(command, client, lambda _: self.rest(client, "refused", why="LockTimeout"))
        else:
            assert isinstance(reply, Queued), reply
            nap = 0 if client.hinted else min(reply.recheck_after, client.gives_up - self.now)
            self.look_again(client, nap)

    def leave(self, client: Client, fence: int, deadline: float) -> None:
        lost = "" if self.now / SECOND < deadline else "it ran out"
        self.note("leaving", client.ticket, deadline=deadline, lost=lost)
        command = Release(self.now + 60 * SECOND, client.ticket, client.ticket, fence, 0)
        self.tell(command, client, lambda _: self.rest(client, "released", idempotent=False))

    def rest(self, client: Client, kind: str, **facts: object) -> None:
        self.note(kind, client.ticket, **facts)
        self.after(self.dice.randrange(20_000), lambda: self.awake(client, lambda: self.begin(client)))
