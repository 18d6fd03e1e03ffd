"""What the server hears: that jobs became pending, that something happened in a run. Hints that wake; whoever waits
looks by itself all the same.
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

#: The channel on which stores tell of runs: `<run>:<seq of its last event>`.
EVENTS = "events"

#: What a claim asks for: those who ask for the same stand in one line.
Wish = tuple[tuple[str, ...], tuple[str, ...]]


class Ears:
    """Bells by topic, rung by the hub. Everything but the hub's callbacks runs on the loop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._subscriptions: list[Subscription] = []
        self._bells: dict[str, set[asyncio.Event]] = {}
        self._lines: dict[Wish, deque[asyncio.Event]] = {}

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        prefix = self._core.hub_prefix
        for name, heard in ((protocol.SCHEDULED, self._scheduled), (EVENTS, self._happened)):
            self._subscriptions.append(
                self._core.hub.subscribe(protocol.channel(prefix, name), heard, partial(heard, None), prompt=True)
            )

    def close(self) -> None:
        """Safe twice."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close()

    # ── on whichever thread hears ──

    def _scheduled(self, payload: str | None) -> None:
        if self._lines:
            self._call(self.ring_jobs)

    def _happened(self, payload: str | None) -> None:
        if not self._bells:
            return
        if payload is None:
            self._call(self._ring_all)
        else:
            run = payload.rpartition(":")[0]
            self._call(lambda: self.ring(f"run:{run}", "events"))

    def _call(self, callback: object) -> None:
        if not callable(callback) or self._loop is None:
            return
        if threading.get_ident() == self._thread:
            callback()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(callback)

    # ── on the loop ──

    def ring(self, *topics: str) -> None:
        for topic in topics:
            for bell in self._bells.get(topic, ()):
                bell.set()

    def _ring_all(self) -> None:
        self.ring(*self._bells)

    @contextmanager
    def bell(self, topic: str) -> Generator[asyncio.Event, None, None]:
        """A bell that rings when something may have happened there."""
        bell = asyncio.Event()
        self._bells.setdefault(topic, set()).add(bell)
        try:
            yield bell
        finally:
            bells = self._bells[topic]
            bells.discard(bell)
            if not bells:
                del self._bells[topic]

    def ring_jobs(self) -> None:
        """Jobs became pending: the first of each line looks. Whoever gets one wakes the next."""
        for line in self._lines.values():
            line[0].set()

    def ring_next(self, wish: Wish) -> None:
        line = self._lines.get(wish)
        if line:
            line[0].set()

    @contextmanager
    def in_line(self, wish: Wish) -> Generator[asyncio.Event, None, None]:
        """A place among those who wait for the same kind of job."""
        bell = asyncio.Event()
        line = self._lines.setdefault(wish, deque())
        line.append(bell)
        try:
            yield bell
        finally:
            line.remove(bell)
            if not line:
                del self._lines[wish]
            elif bell.is_set():  # it was told, and leaves: the next ought to know
                line[0].set()

    def is_first(self, wish: Wish, bell: asyncio.Event) -> bool:
        line = self._lines.get(wish)
        return line is not None and line[0] is bell
