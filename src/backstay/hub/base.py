"""The hub contract: hints that shorten waiting. A hint may be lost, doubled or late; nothing true depends on one.

A hub has two sides. It *hears*: a subclass of `Hub` opens and closes channels on its transport. And its operations are
*carried out* through the doors of a `Carrier`, which for a hub of the engine's own is the engine:

    Publish(channel, payload)                 tell all who listen on the channel now
    PublishHint(hint, count, life, channel, payload)
                                              the same, with a counter that is there before anybody hears of it
    TakeHint(hint, n, life) -> int            take up to n from the counter; n when there is none

What a new engine must do: carry out these three, each atomic, a counter with its life gone at its end by itself (an
absent one answers n, an exhausted one 0), what one sender publishes in order, sent after the commit (announcements with
different counters may overtake one another: on a Cluster each comes from its counter's node). It names its hub in
`default_hub`. If its wakes leave after a commit, it offers `attach` (`engine.base.WakesAfterCommit`), and `hub=` can
replace its hub. Payloads have up to `LONGEST_PAYLOAD` bytes; on PostgreSQL, where they travel as JSON text in a NOTIFY
of fewer than 8000 bytes, those with many quotes, newlines or control characters raise `ConfigError` before that. The
three are counting commands: an engine raises `EngineUnavailable` when the request certainly never left,
`OutcomeUnknown` when it may have.

`backstay.testing.conformance.HubSuite` holds any hub to this.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from backstay.engine.base import Carrier, Publish, PublishHint, TakeHint
from backstay.hub.mailbox import Mailbox
from backstay.hub.multiplexer import Listener, State, Subscriber
from backstay.hub.protocol import HINT_LIFE, LONGEST_PAYLOAD

LIFE_MICROS = int(HINT_LIFE * 1_000_000)


def unobserved(event: str, **facts: object) -> None:
    """Nobody wants to know."""


class Subscription:
    """A place on a channel. Closing twice is safe."""

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
    """Channels by name. A callback runs on a thread of its own and may block, unless it promises to be prompt."""

    #: Where this hub's operations go; None: to the engine of the Backstay that uses it.
    carrier: Carrier | None = None

    def __init__(self, *, observe: Callable[..., None] = unobserved) -> None:
        #: Told of "received", "malformed", "listener" and what else the transport has to tell, with facts.
        self.observe = observe
        self._lock = threading.RLock()
        self._listeners: dict[str, Listener] = {}
        self._closed = False

    def subscribe(
        self,
        channel: str,
        callback: Callable[[str | None], None],
        ready: Callable[[], None] = lambda: None,
        *,
        prompt: bool = False,
    ) -> Subscription:
        """Hear `channel` from `ready` on. The callback gets payloads, or None when some may have been missed.

        prompt: call both on whichever thread heard the message. They must not block then: everybody waits for them.
        """
        mailbox = None if prompt else Mailbox(callback, ready)
        subscriber = Subscriber(callback, ready) if mailbox is None else Subscriber(mailbox.message, mailbox.ready)
        with self._lock:
            listener = self._listeners.get(channel)
            if listener is None:
                listener = self._listeners[channel] = Listener(
                    channel, start=self._open, stop=self._close, observe=self._changed
                )
            try:
                listener.add(subscriber)
            except BaseException:  # Ctrl-C: nobody will have a subscription to close
                listener.remove(subscriber)
                raise
            finally:
                self._forget_idle(listener)
        return Subscription(self, channel, subscriber, mailbox)

    def unsubscribe(self, channel: str, subscriber: Subscriber) -> None:
        with self._lock:
            subscriber.active = False
            if listener := self._listeners.get(channel):
                listener.remove(subscriber)
                self._forget_idle(listener)

    def publish(self, channel: str, payload: str) -> Publish:
        """The operation that sends a hint; `carrier` carries it out."""
        return Publish(channel, payload)

    def publish_hint(self, hint: str, count: int, channel: str, payload: str) -> PublishHint:
        """The same with a counter."""
        return PublishHint(hint, count, LIFE_MICROS, channel, payload)

    def take_hint(self, hint: str, n: int) -> TakeHint:
        return TakeHint(hint, n, LIFE_MICROS)

    def deliver(self, channel: str, payload: str) -> None:
        """A message came for whoever listens here."""
        with self._lock:
            listener = self._listeners.get(channel)
            if listener is None or not listener.subscribers:
                return
            if len(payload) > LONGEST_PAYLOAD:
                self.observe("malformed", channel=channel)
                return
            self.observe("received", channel=channel)
            listener.dispatch(payload)

    def states(self) -> dict[str, str]:
        """Each channel's listener state, for telemetry and `doctor`."""
        with self._lock:
            return {channel: listener.state for channel, listener in self._listeners.items()}

    def wanted(self) -> list[str]:
        """The channels that ought to be open, now that the transport can."""
        return [channel for channel, listener in self._listeners.items() if listener.wants_to_open()]

    def _changed(self, channel: str, state: State) -> None:
        self.observe("listener", channel=channel, state=state)

    def _forget_idle(self, listener: Listener) -> None:
        if listener.state == "idle" and not listener.subscribers:
            self._listeners.pop(listener.channel, None)

    # The transport's side.

    @abstractmethod
    def _open(self, channel: str) -> None:
        """Begin to hear a channel; say `opened` or `open_failed` on its listener, now or later."""

    @abstractmethod
    def _close(self, channel: str) -> None:
        """Stop hearing it; say `closed` or `close_failed`, now or later."""

    @abstractmethod
    def close(self) -> None:
        """Stop everything this hub runs. Safe twice, from any thread."""

    async def join(self) -> None:
        """From a loop: stop, and wait for what runs there to end."""
        self.close()

    @abstractmethod
    def after_fork(self) -> None:
        """In a forked child: forget the parent's subscribers and connections."""

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._listeners = {}
