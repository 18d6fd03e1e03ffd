"""The notifier: hub messages wake streams and long-polling claims when runs have events or jobs become pending.

A notification may be lost, so every stream and every waiting claim also polls the store.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial

from backstay.hub import protocol
from backstay.hub.base import Subscription
from backstay.runtime.core import Core

#: The hub channel on which stores announce events of runs, as `<run>:<sequence number of its last event>`.
EVENTS = "events"

#: Queues and labels of a claim. Long-polling claims with equal filters share a FIFO queue.
ClaimFilter = tuple[tuple[str, ...], tuple[str, ...]]


class Notifier:
    """Wakes subscribers by topic. The hub may call `_on_scheduled` and `_on_event` on any thread; all other methods run
    on the event loop.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._subscriptions: list[Subscription] = []
        self._subscribers: dict[str, set[asyncio.Event]] = {}
        self._claim_queues: dict[ClaimFilter, deque[asyncio.Event]] = {}

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        prefix = self._core.hub_prefix
        for name, callback in ((protocol.SCHEDULED, self._on_scheduled), (EVENTS, self._on_event)):
            self._subscriptions.append(
                self._core.hub.subscribe(protocol.channel(prefix, name), callback, partial(callback, None), prompt=True)
            )

    def close(self) -> None:
        """Unsubscribe from the hub. Safe to call twice."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close()

    # ── callbacks of the hub, on any thread ──

    def _on_scheduled(self, payload: str | None) -> None:
        if self._claim_queues:
            self._run_on_loop(self.wake_claims)

    def _on_event(self, payload: str | None) -> None:
        """Wake the subscribers of the run that `payload` names. If `payload` is None, messages may have been lost, so
        wake all subscribers.
        """
        if not self._subscribers:
            return
        if payload is None:
            self._run_on_loop(self._notify_all)
        else:
            run = payload.rpartition(":")[0]
            self._run_on_loop(lambda: self.notify(f"run:{run}", "events"))

    def _run_on_loop(self, callback: object) -> None:
        if not callable(callback) or self._loop is None:
            return
        if threading.get_ident() == self._thread:
            callback()
        else:
            with suppress(RuntimeError):  # the loop is closed: nothing waits
                self._loop.call_soon_threadsafe(callback)

    # ── on the event loop ──

    def notify(self, *topics: str) -> None:
        for topic in topics:
            for wakeup in self._subscribers.get(topic, ()):
                wakeup.set()

    def _notify_all(self) -> None:
        self.notify(*self._subscribers)

    @contextmanager
    def subscribe(self, topic: str) -> Generator[asyncio.Event, None, None]:
        """Yield an asyncio.Event that is set whenever the topic (one run, or all events) may have new data."""
        wakeup = asyncio.Event()
        self._subscribers.setdefault(topic, set()).add(wakeup)
        try:
            yield wakeup
        finally:
            subscribers = self._subscribers[topic]
            subscribers.discard(wakeup)
            if not subscribers:
                del self._subscribers[topic]

    def wake_claims(self) -> None:
        """Wake the first waiting claim of each FIFO queue of claims (see `queue_claim`). If that claim gets a job, it
        wakes the next one in its queue. Waking all claims at once would be a thundering herd.
        """
        for queue in self._claim_queues.values():
            queue[0].set()

    def wake_next_claim(self, claim_filter: ClaimFilter) -> None:
        queue = self._claim_queues.get(claim_filter)
        if queue:
            queue[0].set()

    @contextmanager
    def queue_claim(self, claim_filter: ClaimFilter) -> Generator[asyncio.Event, None, None]:
        """Join the FIFO queue of claims with this filter. Yields the event that wakes this claim."""
        wakeup = asyncio.Event()
        queue = self._claim_queues.setdefault(claim_filter, deque())
        queue.append(wakeup)
        try:
            yield wakeup
        finally:
            queue.remove(wakeup)
            if not queue:
                del self._claim_queues[claim_filter]
            elif wakeup.is_set():  # this claim was woken but has given up: wake the next one instead
                queue[0].set()

    def is_head(self, claim_filter: ClaimFilter, wakeup: asyncio.Event) -> bool:
        queue = self._claim_queues.get(claim_filter)
        return queue is not None and queue[0] is wakeup
