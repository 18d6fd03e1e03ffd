"""The hub contract. A hub delivers hints that shorten waiting; a hint may be lost, duplicated or late.

A hub has two sides. To receive, a subclass of `Hub` opens and closes channels on its transport. To send, an
`OperationRunner` runs three operations. The runner is the engine itself, unless the hub is on another server:

    Publish(channel, payload)                 send a message to the current subscribers of a channel
    PublishHint(hint, count, life, channel, payload)
                                              create a counter, then send a message: its receivers find the counter
    TakeHint(hint, n, life) -> int            take up to n from a counter; returns how many were taken

The runner must run each of the three atomically. A counter expires at the end of its life. `TakeHint` returns n
for a missing counter and 0 for an exhausted one. The three operations are not idempotent: the runner raises
`EngineUnavailable` if the request was certainly not sent, and `OutcomeUnknown` if it may have been.

Messages that a transaction causes are sent after its commit. The messages of one sender arrive in order. Only
announcements with different counters may be reordered: on a Cluster, the node of each counter publishes its
announcement. A payload has at most `LONGEST_PAYLOAD` bytes. On PostgreSQL it is encoded as JSON in a NOTIFY of fewer
than 8000 bytes, so a shorter payload with many quotes, newlines or control characters may raise `ConfigError`.

`backstay.assembly.backends` registers the engine's hub. An engine that sends its wakes (hints for waiters)
after the commit implements `attach` (`engine.base.WakesAfterCommit`). Then the option `hub=` can replace its hub.

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


def ignore_event(event: str, **facts: object) -> None:
    """Ignore a telemetry event of a hub. The default for `observe`."""


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
    """Delivers messages to the subscribers of channels. Each subscriber has a thread of its own for its callbacks, so
    they may block. A subscriber with `prompt` has none: its callbacks run on the thread that receives the messages.
    """

    #: Runs the operations that send messages (Publish, PublishHint, TakeHint). None: the engine of the Backstay that
    #: uses the hub runs them.
    runner: OperationRunner | None = None

    def __init__(self, *, observe: Callable[..., None] = ignore_event) -> None:
        #: Called with the name of each telemetry event and its attributes: "received" and "malformed" for a message,
        #: "listener" when the state of a channel changes, and events of the connection, such as "reconnected".
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
        """Subscribe to `channel`. First `ready` is called, then `callback` gets each payload, or None if payloads may
        have been lost.

        prompt: call both on the thread that receives the messages. Then they must not block, because all other
        subscribers would wait for them.
        """
        mailbox = None if prompt else Mailbox(callback, ready)
        subscriber = (
            Subscriber(callback, ready) if mailbox is None else Subscriber(mailbox.put_message, mailbox.put_ready)
        )
        subscription = Subscription(self, channel, subscriber, mailbox)
        with self._lock:
            multiplexer = self._multiplexers.get(channel)
            if multiplexer is None:
                multiplexer = self._multiplexers[channel] = ChannelMultiplexer(
                    channel, start=self._open, stop=self._close, observe=self._on_state
                )
            try:
                multiplexer.add(subscriber)
            except BaseException:  # Ctrl-C: the caller gets no subscription to close, so it is removed here
                multiplexer.remove(subscriber)
                raise
            finally:
                self._forget_idle(multiplexer)
        return subscription

    def unsubscribe(self, channel: str, subscriber: Subscriber) -> None:
        with self._lock:
            subscriber.active = False
            if multiplexer := self._multiplexers.get(channel):
                multiplexer.remove(subscriber)
                self._forget_idle(multiplexer)

    def publish(self, channel: str, payload: str) -> Publish:
        """Return the operation that sends a message. The caller runs it on `runner`."""
        return Publish(channel, payload)

    def publish_hint(self, hint: str, count: int, channel: str, payload: str) -> PublishHint:
        """Return the operation that creates a counter and sends a message. The caller runs it on `runner`."""
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
        """Return each channel's state (idle, starting, running, stopping), for telemetry and `backstay doctor`."""
        with self._lock:
            return {channel: multiplexer.state for channel, multiplexer in self._multiplexers.items()}

    def channels_to_open(self) -> list[str]:
        """Return the channels that the transport must open on a new connection."""
        return [channel for channel, multiplexer in self._multiplexers.items() if multiplexer.wants_to_open()]

    def _on_state(self, channel: str, state: State) -> None:
        self.observe("listener", channel=channel, state=state)

    def _forget_idle(self, multiplexer: ChannelMultiplexer) -> None:
        if multiplexer.state == "idle" and not multiplexer.subscribers:
            self._multiplexers.pop(multiplexer.channel, None)

    # Implemented by each transport.

    @abstractmethod
    def _open(self, channel: str) -> None:
        """Start to receive a channel's messages. As soon as that has succeeded or failed, now or later, the hub must
        call `on_opened` or `on_open_failed` on the channel's ChannelMultiplexer.
        """

    @abstractmethod
    def _close(self, channel: str) -> None:
        """Stop receiving a channel's messages. As soon as that has succeeded or failed, now or later, the hub must call
        `on_closed` or `on_close_failed` on the channel's ChannelMultiplexer.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop all threads and tasks of this hub. Safe to call twice, from any thread."""

    async def join(self) -> None:
        """Stop the hub. If it has a task on the running event loop, wait until that task has ended."""
        self.close()

    @abstractmethod
    def after_fork(self) -> None:
        """In a forked child: drop the parent's subscribers and connections."""

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._multiplexers = {}
