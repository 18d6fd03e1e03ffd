"""Wake the callers in this process that wait for a job or chain to end, through one shared subscription.

A message on `<prefix>:chainc` carries the id of a chain that has ended, one on `<prefix>:jobc` the id of a job that has
ended. Messages may be lost, so waiters also poll.
"""

from __future__ import annotations

from backstay.hub import protocol
from backstay.hub.base import Subscription
from backstay.runtime.core import Core
from backstay.runtime.flows import Latch
from backstay.runtime.services import Service

CHANNELS = ("chainc", "jobc")
#: Seconds that `listen` waits until the subscription is active.
OPEN_WAIT = 1.0
#: A process without waiters unsubscribes after this many messages about jobs of other processes.
FOREIGN_ENDS = 1000


class CompletionWaiters:
    """The callers of one Backstay that wait for a job or chain to end, by the id of that job or chain. To get this
    object, call `core.services.get(COMPLETION_WAITERS)`. The hub may call `_on_message` and `_on_ready` on any thread.
    """

    channels: tuple[str, ...] = CHANNELS

    def __init__(self, core: Core) -> None:
        self._core = core
        self._latches: dict[str, set[Latch]] = {}
        self._subscriptions: list[Subscription] = []
        self._openers: set[Latch] = set()
        self._foreign_ends = 0

    @property
    def is_listening(self) -> bool:
        """Whether the subscriptions to all `channels` are active. Only then are waiters notified."""
        subscriptions = self._subscriptions
        return len(subscriptions) == len(self.channels) and all(s.is_ready for s in subscriptions)

    def add(self, id_: str) -> Latch:
        """Return a latch to wait on. It is set when this job or chain ends, or when a message about it may have been
        lost.
        """
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
        """Subscribe to `channels`. Returns whether the subscriptions are active. If not, no messages arrive, and the
        caller must poll more often.
        """
        if self.is_listening:
            return True
        latch = self._core.port.latch()
        self._openers.add(latch)
        try:
            if not self._subscriptions or any(s.error is not None for s in self._subscriptions):
                self._subscribe()
            if not self.is_listening:
                await self._core.park(latch, OPEN_WAIT)
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
        """Return the id of the job or chain that a message is about. A subclass, which waits for workflow runs,
        overrides this.
        """
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
        """Wake all waiters, so that each of them polls. Called when messages may have been lost."""
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
