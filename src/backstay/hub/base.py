"""The hub contract. A hub delivers hints that shorten waiting; a hint may be lost, duplicated or late.

A hub has two sides. For receiving, a subclass of `Hub` opens and closes channels on its transport. For sending, its
operations run on an `OperationRunner`, which is the engine itself if the hub belongs to the engine:

    Publish(channel, payload)                 send a message to the current subscribers of a channel
    PublishHint(hint, count, life, channel, payload)
                                              the same, and create a counter before any subscriber gets the message
    TakeHint(hint, n, life) -> int            take up to n from the counter; n if there is none

An engine must run each of the three atomically. A counter expires at the end of its life; a missing one returns n, an
exhausted one 0. Messages of one sender arrive in order and are sent after the commit, but announcements with different
counters may be reordered (on a Cluster each one is published by its counter's node). `backstay.assembly.backends`
registers the engine's hub. An engine whose wakes are sent after the commit implements `attach`
(`engine.base.WakesAfterCommit`), so that `hub=` can replace its hub. A payload has at most `LONGEST_PAYLOAD` bytes; on
PostgreSQL it is encoded as JSON in a NOTIFY of fewer than 8000 bytes, so payloads with many quotes, newlines or control
characters raise `ConfigError` earlier. The three operations are not idempotent: an engine raises `EngineUnavailable` if
the request was certainly not sent, and `OutcomeUnknown` if it may have been.

`backstay.testing.conformance.HubSuite` tests any hub against this contract.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from backstay.engine.base import OperationRunner, Publish, PublishHint, TakeHint
from backstay.hub.mailbox import Mailbox
from backstay.hub.multiplexer import ChannelMultiplexer, State, Subscriber
from backstay.hub.protocol import HINT_LIFE, LONGEST_PAYLOAD

LIFE_MICROS = int(HINT_LIFE * 1_000_000)


def unobserved(event: str, **facts: object) -> None:
    """Ignore an event: the default observer."""


class Subscription:
    """A subscription to a channel. Closing twice is safe."""

    __slots__ = ("_hub", "_mailbox", "channel", "subscriber")

    def __init__(self, hub: Hub, channel: str, subscriber: Subscriber, mailbox: Mailbox | None = None) -> None:
        self._hub = hub
        self._mailbox = mailbox
        self.channel = channel
        self.subscriber = subscriber

    @property
    def is_ready(self) -> bool:
        return self.subscriber.is_ready

    @property
    def error(self) -> Exception | None:
        return self.subscriber.error

    def close(self) -> None:
        self._hub.unsubscribe(self.channel, self.subscriber)
        if self._mailbox is not None:
            self._mailbox.close()


class Hub(ABC):
    """Delivers messages to subscribers by channel. A callback runs on its own thread and may block, unless it is
    `prompt`.
    """

    #: Runs this hub's operations; None: the engine of the Backstay that uses it.
    runner: OperationRunner | None = None

    def __init__(self, *, observe: Callable[..., None] = unobserved) -> None:
        #: Called with "received", "malformed", "listener" and the events of the transport, with attributes.
        self.observe = observe
        self._lock = threading.RLock()
        self._multiplexers: dict[str, ChannelMultiplexer] = {}
        self._closed = False

    def subscribe(
        self,
        channel: str,
        callback: Callable[[str | None], None],
        ready: Callable[[], None] = lambda: None,
        *,
        prompt: bool = False,
    ) -> Subscription:
        """Subscribe to `channel`. After `ready` is called, the callback gets payloads, or None if some may be lost.

        prompt: call both on the thread that received the message. They must not block then, because all other
        subscribers wait for them.
        """
        mailbox = None if prompt else Mailbox(callback, ready)
        subscriber = Subscriber(callback, ready) if mailbox is None else Subscriber(mailbox.message, mailbox.ready)
        with self._lock:
            multiplexer = self._multiplexers.get(channel)
            if multiplexer is None:
                multiplexer = self._multiplexers[channel] = ChannelMultiplexer(
                    channel, start=self._open, stop=self._close, observe=self._changed
                )
            try:
                multiplexer.add(subscriber)
            except BaseException:  # Ctrl-C: the caller gets no subscription that it could close
                multiplexer.remove(subscriber)
                raise
            finally:
                self._forget_idle(multiplexer)
        return Subscription(self, channel, subscriber, mailbox)

    def unsubscribe(self, channel: str, subscriber: Subscriber) -> None:
        with self._lock:
            subscriber.active = False
            if multiplexer := self._multiplexers.get(channel):
                multiplexer.remove(subscriber)
                self._forget_idle(multiplexer)

    def publish(self, channel: str, payload: str) -> Publish:
        """Return the operation that sends a message; `runner` runs it."""
        return Publish(channel, payload)

    def publish_hint(self, hint: str, count: int, channel: str, payload: str) -> PublishHint:
        """Return the operation that creates a counter and sends a message."""
        return PublishHint(hint, count, LIFE_MICROS, channel, payload)

    def take_hint(self, hint: str, n: int) -> TakeHint:
        return TakeHint(hint, n, LIFE_MICROS)

    def deliver(self, channel: str, payload: str) -> None:
        """Deliver a received message to the subscribers of this hub."""
        with self._lock:
            multiplexer = self._multiplexers.get(channel)
            if multiplexer is None or not multiplexer.subscribers:
                return
            if len(payload) > LONGEST_PAYLOAD:
                self.observe("malformed", channel=channel)
                return
            self.observe("received", channel=channel)
            multiplexer.dispatch(payload)

    def states(self) -> dict[str, str]:
        """Return the state of each channel, for telemetry and `doctor`."""
        with self._lock:
            return {channel: multiplexer.state for channel, multiplexer in self._multiplexers.items()}

    def wanted(self) -> list[str]:
        """Return the channels that the transport should open after it has connected."""
        return [channel for channel, multiplexer in self._multiplexers.items() if multiplexer.wants_to_open()]

    def _changed(self, channel: str, state: State) -> None:
        self.observe("listener", channel=channel, state=state)

    def _forget_idle(self, multiplexer: ChannelMultiplexer) -> None:
        if multiplexer.state == "idle" and not multiplexer.subscribers:
            self._multiplexers.pop(multiplexer.channel, None)

    # The transport's side.

    @abstractmethod
    def _open(self, channel: str) -> None:
        """Start receiving a channel; call `opened` or `open_failed` on its multiplexer, now or later."""

    @abstractmethod
    def _close(self, channel: str) -> None:
        """Stop receiving a channel; call `closed` or `close_failed` on its multiplexer, now or later."""

    @abstractmethod
    def close(self) -> None:
        """Stop all threads and tasks of this hub. Safe to call twice, from any thread."""

    async def join(self) -> None:
        """Stop the hub, and wait for its task on the running event loop to end."""
        self.close()

    @abstractmethod
    def after_fork(self) -> None:
        """In a forked child: drop the parent's subscribers and connections."""

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._multiplexers = {}
