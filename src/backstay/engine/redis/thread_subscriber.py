"""Wake a thread that waits for a lock without the help of a second thread: the thread's own connection subscribes to
the channel on which the thread receives hints.

With RESP3, a connection that sends commands can also receive messages. A thread that waits for a lock reads the
messages itself, which saves a thread switch each time a lock passes to it.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Any

from backstay.engine.redis.link.blocking_link import BlockingLink


class RedisThreadSubscriber:
    """The subscription of one thread's connection, and the latch on which the thread waits. `set` is thread-safe; the
    other methods belong to the thread.
    """

    def __init__(self, link: Callable[[], BlockingLink]) -> None:
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._link_of_thread = link
        self._link: BlockingLink | None = None
        self._thread = threading.get_ident()
        self._set = False
        #: Waits for the eventfd, which another thread's `set` writes to, and for the socket of the subscribed link.
        self._poll: select.poll | None = None
        #: The callback of each subscribed channel. Several Backstays that share the engine listen on several channels.
        self._on_hint: dict[bytes, Callable[[str | None], None]] = {}

    def listen(self, channel: str, on_hint: Callable[[str | None], None]) -> bool:
        """Subscribe this thread's connection to `channel`. Returns True for a new subscription: messages sent before it
        were missed. `on_hint` is called with each message, or with None if messages may be lost.
        """
        link = self._link_of_thread()
        if link is not self._link:
            self._link = link
            self._poll = None
            self._on_hint.clear()
        wire = channel.encode()
        if wire in self._on_hint:
            return False
        link.subscribe(channel, self._on_push)
        self._on_hint[wire] = on_hint
        return True

    def _on_push(self, push: list[Any]) -> None:
        if push[0] == b"message" and (on_hint := self._on_hint.get(push[1])):
            on_hint(push[2].decode(errors="replace"))

    # ── the latch ──

    def set(self) -> None:
        if threading.get_ident() == self._thread:
            self._set = True  # called by the thread itself, which therefore is not waiting: no wake-up is needed
        else:
            os.eventfd_write(self._eventfd, 1)

    def clear(self) -> None:
        """Clear the latch. If another thread has just called `set`, the eventfd stays readable, and the next `wait`
        returns once too often. That is harmless; no wake-up is lost.
        """
        self._set = False

    def wait(self, timeout: float | None) -> bool:
        """Wait for a message, for `set`, or for the time-out."""
        if self._set:
            return True
        link = self._link
        if link is not None and not link.ready:  # another thread has closed the link
            self._drop_subscriptions()
            return True
        poll = self._poll
        if poll is None:
            poll = self._register(link)
        ready = poll.poll(None if timeout is None else timeout * 1000 + 0.5)
        for fd, _ in ready:
            if fd == self._eventfd:
                os.eventfd_read(fd)
            elif link is not None:
                link.take_pushes()
                if not link.ready:
                    self._drop_subscriptions()
        return bool(ready)

    def _drop_subscriptions(self) -> None:
        """Forget all subscriptions of a closed link. Call each callback with None: messages may be lost. The next
        `listen` subscribes on a new link.
        """
        callbacks = list(self._on_hint.values())
        self._link = self._poll = None
        self._on_hint.clear()
        for on_hint in callbacks:
            on_hint(None)

    def _register(self, link: BlockingLink | None) -> select.poll:
        poll = select.poll()
        poll.register(self._eventfd, select.POLLIN)
        self._poll = None
        if link is not None and (fd := link.fileno()) >= 0:  # a closed link has no socket
            poll.register(fd, select.POLLIN)
            self._poll = poll
        return poll

    def __del__(self) -> None:
        if hasattr(self, "_eventfd"):
            os.close(self._eventfd)


class RedisThreadSubscribers:
    """One subscriber per thread, created when the thread first waits."""

    def __init__(self, link: Callable[[], BlockingLink]) -> None:
        self._link = link
        self._threads = threading.local()

    def for_this_thread(self) -> RedisThreadSubscriber:
        subscriber: RedisThreadSubscriber | None = getattr(self._threads, "subscriber", None)
        if subscriber is None:
            subscriber = self._threads.subscriber = RedisThreadSubscriber(self._link)
        return subscriber

    @staticmethod
    def channel(inbox: str) -> str:
        return f"{inbox}:{threading.get_ident()}"
