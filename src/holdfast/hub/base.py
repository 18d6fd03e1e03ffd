"""The hub contract: hints that shorten waiting. A hint may be lost, doubled or late; nothing true depends on one."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from holdfast.engine.base import Op, Publish
from holdfast.hub.listener import Listener, Subscriber


class Subscription:
    """A place on a channel. Closing twice is safe."""

    __slots__ = ("_hub", "channel", "subscriber")

    def __init__(self, hub: Hub, channel: str, subscriber: Subscriber) -> None:
        self._hub = hub
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


class Hub(ABC):
    """Channels by name. Callbacks run on whichever thread heard the message and must not block."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listeners: dict[str, Listener] = {}
        self._closed = False

    def subscribe(
        self, channel: str, callback: Callable[[str | None], None], ready: Callable[[], None] = lambda: None
    ) -> Subscription:
        """Hear `channel` from `ready` on. The callback gets payloads, or None when some may have been missed."""
        subscriber = Subscriber(callback, ready)
        with self._lock:
            listener = self._listeners.get(channel)
            if listener is None:
                listener = self._listeners[channel] = Listener(channel, start=self._open, stop=self._close)
            listener.add(subscriber)
        return Subscription(self, channel, subscriber)

    def unsubscribe(self, channel: str, subscriber: Subscriber) -> None:
        with self._lock:
            if listener := self._listeners.get(channel):
                listener.remove(subscriber)
                self._forget_idle(listener)

    def publish(self, channel: str, payload: str) -> Op[None]:
        """The operation that sends a hint; `door` carries it out."""
        return Publish(channel, payload)

    def deliver(self, channel: str, payload: str) -> None:
        """A message came for whoever listens here."""
        with self._lock:
            if listener := self._listeners.get(channel):
                listener.dispatch(payload)

    def states(self) -> dict[str, str]:
        """Each channel's listener state, for telemetry and `doctor`."""
        with self._lock:
            return {channel: listener.state for channel, listener in self._listeners.items()}

    def wanted(self) -> list[str]:
        """The channels that ought to be open."""
        return [c for c, listener in self._listeners.items() if listener.state in ("starting", "running")]

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
