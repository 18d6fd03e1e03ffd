"""What a worker hears: that jobs became pending, and that one of its own is wanted back.

An announcement of N jobs carries a counter: whoever comes takes from it as many as it has free slots, so that about N
slots of a whole fleet wake up. A busy worker does not listen to it at all: it asks for more whenever a job ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from backstay.channel import listeners
from backstay.errors import BackstayError
from backstay.hub import protocol
from backstay.job.api.registry import store_of

if TYPE_CHECKING:
    from backstay.hub.base import Subscription
    from backstay.job.model import Claimed
    from backstay.job.worker.producer import Dispatch
    from backstay.job.worker.slots import Slots
    from backstay.runtime.core import Core

#: Announcements that wait to be looked at, and ids that are remembered; there are more than enough then.
MOST = 100


class Hearing:
    """Subscribed while the worker runs. A hint that is lost costs time, nothing more."""

    def __init__(
        self,
        core: Core,
        slots: Slots,
        dispatch: Dispatch,
        suits: Callable[[str], bool | None],
        wanted_back: Callable[[str | None], None],
    ) -> None:
        self._core = core
        self._slots = slots
        self._dispatch = dispatch
        #: Whether jobs of a type are for this worker: None when it does not know the type.
        self._suits = suits
        #: What it said of types that it knows: what is defined stays so.
        self._known: dict[str, bool] = {}
        self._wanted_back = wanted_back
        #: Whether a claim takes from the counter by itself.
        self._takes = store_of(core).takes and core.post is core.port
        self._read_handed = store_of(core).read_handed
        self._inbox: Subscription | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._hints: deque[str] = deque(maxlen=MOST)
        self._task: asyncio.Task[None] | None = None
        self._unknown: dict[str, bool] = {}
        self._subscriptions: list[Subscription] = []

    def open(self) -> None:
        prefix = self._core.hub_prefix
        for name, heard in ((protocol.SCHEDULED, self._scheduled), (protocol.OWNERSHIP_LOST, self._wanted)):
            # Once it is heard, whatever was said before has been missed.
            self._subscriptions.append(
                self._core.hub.subscribe(protocol.channel(prefix, name), heard, partial(heard, None), prompt=True)
            )
        hear = getattr(self._core.hub, "subscribe_raw", None)
        if self._read_handed is not None and self._takes and hear is not None:
            inbox: Subscription = hear(self._dispatch.standing.inbox, self._handed, self._opened)
            self._inbox = inbox
            self._subscriptions.append(inbox)

    def early(self, jobs: Sequence[Claimed]) -> None:
        """These have come in; one of them may have been wanted back before we knew of it."""
        if self._unknown:
            for job in jobs:
                if self._unknown.pop(job.id, False):
                    self._wanted_back(job.id)

    async def close(self) -> None:
        """Safe twice."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # ── on whichever thread hears ──

    def _wanted(self, payload: str | None) -> None:
        if payload is None:
            self._wanted_back(payload)
            return
        if len(self._unknown) >= MOST:
            self._unknown.clear()
        self._unknown[payload] = True  # somebody else's, or ours and the claim's reply is on its way
        if payload in self._slots.held:  # asked behind that: it may begin meanwhile
            self._unknown.pop(payload, None)
            self._wanted_back(payload)

    def _scheduled(self, payload: str | None) -> None:
        if self._slots.busy >= self._slots.size:  # the next end asks for more, in its own shard
            if len(self._dispatch.shards) > 1:
                self._call(self._dispatch.note)
            return
        if payload is None:
            self._call(self._dispatch.look)
            return
        parts = protocol.split_scheduled(payload)
        if parts is None:
            return
        kind, hint = parts
        suits = self._known.get(kind)
        if suits is None:
            suits = self._suits(kind)
            if suits is None:
                return
            self._known[kind] = suits
        if not suits:  # by its definition it is for others; but a call may have said otherwise
            self._call(self._dispatch.glance_soon)
            return
        if self._takes:
            if threading.get_ident() == self._thread:
                self._dispatch.called(hint)
            else:
                self._call(partial(self._dispatch.called, hint))
            return
        self._hints.append(hint)
        if self._task is None:
            self._call(self._begin)

    def _opened(self) -> None:
        """The inbox is heard, or may not be."""
        if self._inbox is None or self._inbox.error is None:
            self._dispatch.standing.open = True

    def _handed(self, message: bytes | None) -> None:
        """A message that was missed comes with the next step: the look that follows a break."""
        handed = self._read_handed(message) if self._read_handed is not None and message is not None else None
        if handed is not None:
            self._call(partial(self._dispatch.handed, handed))

    def _call(self, callback: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            callback()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(callback)

    # ── on the loop ──

    def _begin(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._take())

    async def _take(self) -> None:
        try:
            while self._hints:
                hint = self._hints.popleft()
                room = self._dispatch.room()
                if room <= 0:
                    self._hints.clear()
                    self._dispatch.note()
                    return
                with suppress(BackstayError):
                    if taken := await listeners.take_hint(self._core, hint, room):
                        self._dispatch.hint(taken)
        finally:
            self._task = None
