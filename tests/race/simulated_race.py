"""A race in simulated time: the real gate machine, simulated clients that pause and die, an observer, and failovers.

It produces thousands of histories in the time of one real race, and a seed gives the same history every time. The
clients behave as `gate/flows.py` does. The engine calls the current `machine.step`, so a test may patch it.
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
from backstay.testing.histories.history import Amnesia, HistoryEvent, HistoryReport, check
from backstay.testing.histories.order import QueuedWaiter, Snapshot

SECOND = 1_000_000
BASE = 1_700_000_000 * SECOND
TTL = SECOND
NAME = "x"


@dataclass
class Client:
    """A client that acquires the lock repeatedly. While it is paused, it processes no event."""

    label: str
    ticket: str = ""
    nth: int = 0
    paused_until: int = 0
    gives_up: int = 0
    #: Grows with every request, so that an outdated timer is recognized.
    turn: int = 0
    #: Whether a request is in flight, and whether a hint has arrived since it was sent.
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
    #: The probabilities that a hint is lost, that a reply is lost, and that a client pauses or dies before it acts.
    lost_hints: float = 0.1
    lost_replies: float = 0.0
    pauses: float = 0.01
    #: The possible delays between two snapshots of the observer, in µs.
    intervals: tuple[int, ...] = (10_000,) * 20 + (300_000, 3 * SECOND)
    events: list[HistoryEvent] = field(default_factory=list[HistoryEvent])
    snapshots: list[Snapshot] = field(default_factory=list[Snapshot])
    amnesia: list[Amnesia] = field(default_factory=list[Amnesia])

    def run(self) -> HistoryReport:
        self.dice = random.Random(self.seed)
        self.now = BASE
        self.available_at = BASE
        self.state: Gate | None = None
        #: Recent states of the engine. A replica that lags behind has one of them.
        self.recent: list[Gate | None] = [None]
        self.agenda: list[tuple[int, int, Callable[[], None]]] = []
        self.order = count()
        self.waiting: dict[str, Client] = {}
        for nth in range(self.clients):
            self.after(self.dice.randrange(SECOND), partial(self.begin, Client(f"p{nth}")))
        for _ in range(self.failovers):
            self.after(self.dice.randrange(self.seconds * SECOND), self.fail_over)
        self.after(0, self.observe)
        while self.agenda[0][0] < BASE + self.seconds * SECOND:
            self.now, _, action = heapq.heappop(self.agenda)
            action()
        return check(self.events, self.snapshots, permits={NAME: self.permits}, amnesia=self.amnesia, ttl=TTL / SECOND)

    def after(self, delay: int, action: Callable[[], None]) -> None:
        heapq.heappush(self.agenda, (self.now + delay, next(self.order), action))

    def record(self, kind: str, ticket: str, **facts: object) -> None:
        self.events.append(HistoryEvent(kind, NAME, ticket, self.now / SECOND, facts))

    # ── the engine ──

    def fail_over(self) -> None:
        """Replace the master by a replica, which continues from a recent state and is available after a while."""
        self.amnesia.append(Amnesia(self.now / SECOND, self.now))
        self.state = self.dice.choice(self.recent)
        self.recent = [self.state]
        self.available_at = self.now + self.dice.randrange(1, 4 * SECOND)

    def observe(self) -> None:
        if self.state is not None and self.now >= self.available_at:
            queue = tuple(QueuedWaiter(w.lock_id, w.since, w.alive - LIFE, w.offer) for w in self.state.queue)
            holders = tuple(h.lock_id for h in self.state.holders)
            self.snapshots.append(Snapshot(NAME, self.state.seen, holders, queue, self.now / SECOND))
        self.after(self.dice.choice(self.intervals), self.observe)

    def send(self, command: machine.Command, client: Client, receive: Callable[[object], None]) -> None:
        """Apply the command and pass its reply to `receive`. During a failover, or when the reply is lost, the client
        sends the command again.
        """
        if self.now < self.available_at:
            wait = self.available_at - self.now + self.dice.randrange(SECOND // 2)
            self.after(wait, lambda: self.send(command, client, receive))
            return
        done = machine.step(self.state, command, self.now)
        if done.write:
            self.state = done.state
            self.recent = [*self.recent[-5:], done.state]
        for _, payload in done.wakes:
            if self.dice.random() >= self.lost_hints:
                ticket, _, wait = payload.partition(" ")
                self.after(int(wait or 0) * 1000 + self.dice.randrange(3000), partial(self.hint, ticket))
        if self.lost_replies and self.dice.random() < self.lost_replies:
            self.after(self.dice.randrange(3 * SECOND // 2), lambda: self.send(command, client, receive))
            return
        self.after(self.dice.randrange(100, 2000), lambda: self.run_awake(client, lambda: receive(done.reply)))

    # ── the clients ──

    def run_awake(self, client: Client, act: Callable[[], None]) -> None:
        """Call `act` as soon as the client is not paused. At random, the client pauses or dies first; a new client
        replaces one that died.
        """
        if self.now < client.paused_until:
            self.after(client.paused_until - self.now, lambda: self.run_awake(client, act))
        elif self.dice.random() < self.pauses:
            dies = self.dice.random() < 0.1
            client.paused_until = self.now + (10**12 if dies else self.dice.randrange(5 * SECOND))
            self.run_awake(client, act)
            if dies:
                self.after(SECOND, lambda: self.begin(Client(client.label + "'")))
        else:
            act()

    def begin(self, client: Client) -> None:
        client.nth += 1
        client.ticket = f"{client.label}-{client.nth}"
        client.gives_up = self.now + self.dice.choice((50_000, 5 * SECOND, 20 * SECOND))
        self.waiting[client.ticket] = client
        self.record("asked", client.ticket)
        self.poll(client)

    def hint(self, ticket: str) -> None:
        client = self.waiting.get(ticket)
        if client is not None:
            client.hinted = True
            self.poll_after(client, 0)

    def poll_after(self, client: Client, delay: int) -> None:
        """Poll after the delay, unless the client has sent another request before that."""
        ticket, turn = client.ticket, client.turn

        def poll_if_idle() -> None:
            if not client.busy and (client.ticket, client.turn) == (ticket, turn):
                self.poll(client)

        self.after(delay, lambda: self.run_awake(client, poll_if_idle))

    def poll(self, client: Client) -> None:
        client.turn += 1
        client.busy, client.hinted = True, False
        identity = CallerIdentity(client.label)
        ticket, sent = client.ticket, self.now
        command = Acquire(
            self.now + 60 * SECOND, ticket, ticket, self.permits == 1, self.permits, TTL, client.label, 1000, identity
        )
        self.send(command, client, lambda reply: self.on_reply(client, sent, reply))

    def on_reply(self, client: Client, sent: int, reply: object) -> None:
        ticket = client.ticket
        client.busy = False
        if isinstance(reply, Granted):
            self.waiting.pop(ticket)
            client.turn += 1
            deadline = (sent + TTL * 0.98) / SECOND
            self.record("granted", ticket, fence=reply.fence, sent=sent / SECOND, deadline=deadline, at=reply.since)
            hold = self.dice.choice((1000, 5000, 5000, 60_000, 1_500_000))
            self.after(hold, lambda: self.run_awake(client, lambda: self.release(client, reply.fence, deadline)))
        elif self.now >= client.gives_up:
            self.waiting.pop(ticket)
            client.turn += 1
            command = Withdraw(self.now + 60 * SECOND, ticket, 0)
            self.send(command, client, lambda _: self.begin_later(client, "refused", why="LockTimeout"))
        else:
            assert isinstance(reply, Queued), reply
            delay = 0 if client.hinted else min(reply.recheck_after, client.gives_up - self.now)
            self.poll_after(client, delay)

    def release(self, client: Client, fence: int, deadline: float) -> None:
        lost = "" if self.now / SECOND < deadline else "it ran out"
        self.record("leaving", client.ticket, deadline=deadline, lost=lost)
        command = Release(self.now + 60 * SECOND, client.ticket, client.ticket, fence, 0)
        self.send(command, client, lambda _: self.begin_later(client, "released", idempotent=False))

    def begin_later(self, client: Client, kind: str, **facts: object) -> None:
        """Record how the attempt ended, and begin the next one soon."""
        self.record(kind, client.ticket, **facts)
        self.after(self.dice.randrange(20_000), lambda: self.run_awake(client, lambda: self.begin(client)))
