"""Waiters for finished jobs and chains of this process, woken through one shared subscription.

The hub publishes on `<prefix>:chainc` when a chain has ended and on `<prefix>:jobc` when a job has ended whose chain
continues. Messages may be lost; waiters also poll.
"""

from __future__ import annotations

from backstay.hub import protocol
from backstay.hub.base import Subscription
from backstay.runtime.core import Core
from backstay.runtime.flows import Latch
from backstay.runtime.services import Service

CHANNELS = ("chainc", "jobc")
#: Seconds that the first waiter waits for the subscription; polling is the backstop.
OPEN_WAIT = 1.0
#: A process without waiters unsubscribes after this many messages about jobs of other processes.
FOREIGN_ENDS = 1000


class CompletionWaiters:
    """The waiters of one Backstay, by job or chain id: `core.services.get(COMPLETION_WAITERS)`. The hub may call back
    on any thread.
    """

    channels: tuple[str, ...] = CHANNELS

    def __init__(self, core: Core) -> None:
        self._core = core
        self._latches: dict[str, set[Latch]] = {}
        self._subscriptions: list[Subscription] = []
        self._openers: set[Latch] = set()
        self._foreign_ends = 0
        core.wakeables.add(self)

    @property
    def is_listening(self) -> bool:
        """Whether the subscriptions are active, so that waiters are notified."""
        subscriptions = self._subscriptions
        return len(subscriptions) == len(self.channels) and all(s.is_ready for s in subscriptions)

    def add(self, id_: str) -> Latch:
        """Return a latch that is set when this job or chain ends, or when a message about it may have been lost."""
        latch = self._core.port.latch()
        self._latches[id_] = {*self._latches.get(id_, ()), latch}
        return latch

    def remove(self, id_: str, latch: Latch) -> None:
        left = self._latches.get(id_, set()) - {latch}
        if left:
            self._latches[id_] = left
        else:
            self._latches.pop(id_, None)

    async def listen(self) -> bool:
        """Subscribe to the channels. False: the subscription is not active (yet), so poll more often."""
        if self.is_listening:
            return True
        port = self._core.port
        latch = port.latch()
        self._openers.add(latch)
        try:
            if not self._subscriptions or any(s.error is not None for s in self._subscriptions):
                self._subscribe()
            if not self.is_listening:
                await port.park(latch, OPEN_WAIT)
        finally:
            self._openers.discard(latch)
        return self.is_listening

    def _subscribe(self) -> None:
        self.close()
        core = self._core
        self._foreign_ends = 0
        self._subscriptions = [
            core.hub.subscribe(protocol.channel(core.hub_prefix, name), self._on_message, self._on_ready, prompt=True)
            for name in self.channels
        ]

    def _on_ready(self) -> None:
        if self.is_listening:
            for latch in list(self._openers):
                latch.set()

    def _id_of(self, payload: str) -> str:
        """Return the id that a message is about."""
        return payload

    def _on_message(self, payload: str | None) -> None:
        if payload is None:
            self.wake()
            return
        id_ = self._id_of(payload)
        latches = self._latches.get(id_)
        if latches is not None:
            for latch in latches:
                latch.set()
        elif not self._latches:
            self._foreign_ends += 1
            if self._foreign_ends > FOREIGN_ENDS:
                self.close()

    def wake(self) -> None:
        """Wake all waiters to poll: messages may have been lost, or the Backstay is closing."""
        for latches in list(self._latches.values()):
            for latch in latches:
                latch.set()

    def close(self) -> None:
        """Unsubscribe. Safe to call twice."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close()


COMPLETION_WAITERS: Service[CompletionWaiters] = Service(
    "listener for job completions", CompletionWaiters, close=CompletionWaiters.close
)
