"""How a blocked thread is woken without a second thread: its own connection hears its inbox.

RESP3 lets a connection that sends commands also receive messages. A thread that waits for a lock reads them itself,
which saves a switch between threads on every hand-over.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Any

from backstay.engine.redis.link.blocking_link import BlockingLink


class ThreadEar:
    """One thread's connection as an ear, and as the latch that it waits on. Set from any thread."""

    def __init__(self, link: Callable[[], BlockingLink]) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._link_of_thread = link
        self._link: BlockingLink | None = None
        self._thread = threading.get_ident()
        self._set = False
        #: The bell and the link that is heard now.
        self._poll: select.poll | None = None
        #: Whom to tell, by channel: several Backstays may share one engine.
        self._on_hint: dict[bytes, Callable[[str | None], None]] = {}

    def listen(self, channel: str, on_hint: Callable[[str | None], None]) -> bool:
        """Hear `channel` on this thread's connection. True when that is new: something may have passed unheard."""
        link = self._link_of_thread()
        if link is not self._link:
            self._link = link
            self._poll = None
            self._on_hint.clear()
        wire = channel.encode()
        if wire in self._on_hint:
            return False
        link.subscribe(channel, self._heard)
        self._on_hint[wire] = on_hint
        return True

    def _heard(self, push: list[Any]) -> None:
        if push[0] == b"message" and (on_hint := self._on_hint.get(push[1])):
            on_hint(push[2].decode(errors="replace"))

    # ── a latch ──

    def set(self) -> None:
        if threading.get_ident() == self._thread:
            self._set = True  # heard by the thread itself: it need not be woken
        else:
            os.eventfd_write(self._bell, 1)

    def clear(self) -> None:
        """A bell that nobody has heard yet stays rung: it costs one look too many, never one too few."""
        self._set = False

    def wait(self, timeout: float | None) -> bool:
        """Wait for a message, for `set`, or until the time is over."""
        if self._set:
            return True
        link = self._link
        if link is not None and not link.ready:  # given up by another thread since we listened
            self._deaf()
            return True
        poll = self._poll
        if poll is None:
            poll = self._register(link)
        ready = poll.poll(None if timeout is None else timeout * 1000 + 0.5)
        for fd, _ in ready:
            if fd == self._bell:
                os.eventfd_read(fd)
            elif link is not None:
                link.take_pushes()
                if not link.ready:
                    self._deaf()
        return bool(ready)

    def _deaf(self) -> None:
        """Look at once, and listen again on the next connection."""
        told = list(self._on_hint.values())
        self._link = self._poll = None
        self._on_hint.clear()
        for on_hint in told:
            on_hint(None)

    def _register(self, link: BlockingLink | None) -> select.poll:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        self._poll = None
        if link is not None and (fd := link.fileno()) >= 0:  # of a link that was given up: then it rings at once
            poll.register(fd, select.POLLIN)
            self._poll = poll
        return poll

    def __del__(self) -> None:
        if hasattr(self, "_bell"):
            os.close(self._bell)


class ThreadEars:
    """Each thread's ear, made when it first waits."""

    def __init__(self, link: Callable[[], BlockingLink]) -> None:
        self._link = link
        self._threads = threading.local()

    def of_this_thread(self) -> ThreadEar:
        ear: ThreadEar | None = getattr(self._threads, "ear", None)
        if ear is None:
            ear = self._threads.ear = ThreadEar(self._link)
        return ear

    @staticmethod
    def channel(inbox: str) -> str:
        return f"{inbox}:{threading.get_ident()}"
