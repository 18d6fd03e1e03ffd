"""Who waits for the end of a job or a chain in this process: one subscription for all of them.

Ends are hints on `<prefix>:chainc` (a chain ended) and `<prefix>:jobc` (a job did while its chain goes on).
"""

from __future__ import annotations

from typing import cast

from backstay.hub import protocol
from backstay.hub.base import Subscription
from backstay.runtime.core import Core
from backstay.runtime.flows import Latch

CHANNELS = ("chainc", "jobc")
#: How long the first waiter waits until the channels are heard; polling is the backstop.
OPEN_WAIT = 1.0
#: So many ends of other people's jobs may pass before a process in which nobody waits stops listening.
STRANGERS = 1000


class Waiters:
    """One for each Backstay; made by `waiters_of`."""

    channels: tuple[str, ...] = CHANNELS

    def __init__(self, core: Core) -> None:
        self._core = core
        self._latches: dict[str, set[Latch]] = {}
        self._subscriptions: list[Subscription] = []
        self._openers: set[Latch] = set()
        self._strangers = 0
        core.sleepers.add(self)

    @property
    def hears(self) -> bool:
        """Whether ends are heard now."""
        subscriptions = self._subscriptions
        return len(subscriptions) == len(self.channels) and all(s.is_ready for s in subscriptions)

    def join(self, id_: str) -> Latch:
        """A latch that is set when this job or chain ends, or when that may have passed unheard."""
        latch = self._core.port.latch()
        self._latches[id_] = {*self._latches.get(id_, ()), latch}
        return latch

    def leave(self, id_: str, latch: Latch) -> None:
        left = self._latches.get(id_, set()) - {latch}
        if left:
            self._latches[id_] = left
        else:
            self._latches.pop(id_, None)

    async def open(self) -> bool:
        """Hear the channels. False: they cannot be heard (yet), so look more often."""
        if self.hears:
            return True
        port = self._core.port
        latch = port.latch()
        self._openers.add(latch)
        try:
            if not self._subscriptions or any(s.error is not None for s in self._subscriptions):
                self._subscribe()
            if not self.hears:
                await port.park(latch, OPEN_WAIT)
        finally:
            self._openers.discard(latch)
        return self.hears

    def _subscribe(self) -> None:
        self.close()
        core = self._core
        self._strangers = 0
        self._subscriptions = [
            core.hub.subscribe(protocol.channel(core.hub_prefix, name), self._heard, self._ready, prompt=True)
            for name in self.channels
        ]

    def _ready(self) -> None:
        if self.hears:
            for latch in list(self._openers):
                latch.set()

    def _named(self, payload: str) -> str:
        """Whom a payload speaks of."""
        return payload

    def _heard(self, payload: str | None) -> None:
        if payload is None:
            self.wake()
            return
        id_ = self._named(payload)
        latches = self._latches.get(id_)
        if latches is not None:
            for latch in latches:
                latch.set()
        elif not self._latches:
            self._strangers += 1
            if self._strangers > STRANGERS:
                self.close()

    def wake(self) -> None:
        """Everybody looks: something may have passed unheard, or the Backstay closes."""
        for latches in list(self._latches.values()):
            for latch in latches:
                latch.set()

    def close(self) -> None:
        """Stop listening. Safe twice."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close()


def waiters_of(core: Core) -> Waiters:
    """The Backstay's own. A forked child begins with new ones."""
    waiters = core.notes.get("job.waiters")
    if waiters is None:
        waiters = core.notes["job.waiters"] = Waiters(core)
    return cast("Waiters", waiters)
