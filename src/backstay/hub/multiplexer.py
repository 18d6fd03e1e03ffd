"""Share one transport subscription per channel between any number of subscribers.

    idle → starting → running → stopping → idle

The subscription of a channel starts with the channel's first subscriber and stops with its last subscriber. This is a
state machine without I/O: the hub calls the `on_…` methods and `dispatch` for events of its transport, and the
multiplexer calls `start` and `stop`. The hub holds its lock during every call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Literal

from backstay.errors import EngineUnavailable

log = logging.getLogger("backstay.hub")

State = Literal["idle", "starting", "running", "stopping"]
#: Passed to a callback instead of a payload if messages may have been missed.
MISSED = None


def _ignore_state(channel: str, state: State) -> None:
    pass


def reraise_interrupt(error: BaseException) -> None:
    """Raise `error` again if it is a Ctrl-C in the main thread; otherwise return, and the caller logs it. Callbacks of
    users run on Backstay's threads: a `sys.exit()` or a CancelledError in a callback must not end the thread that
    serves all subscribers.
    """
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error


class Subscriber:
    """One callback on one channel. `ready` is called once: when the subscription is active, or has failed (`error`)."""

    __slots__ = ("active", "callback", "error", "is_ready", "ready")

    def __init__(self, callback: Callable[[str | None], None], ready: Callable[[], None]) -> None:
        self.callback = callback
        self.ready = ready
        self.active = True
        self.is_ready = False
        self.error: Exception | None = None

    def mark_ready(self, error: Exception | None = None) -> None:
        if not self.is_ready:
            self.is_ready = error is None
            self.error = error
            try:
                self.ready()
            except BaseException as raised:
                reraise_interrupt(raised)
                log.exception("a subscriber failed")

    def deliver(self, payload: str | None) -> None:
        """Call the callback. An exception is logged and does not affect other subscribers."""
        if not self.active:
            return
        try:
            self.callback(payload)
        except BaseException as error:
            reraise_interrupt(error)
            log.exception("a subscriber failed")


def _for_each(subscribers: Iterable[Subscriber], visit: Callable[[Subscriber], None]) -> None:
    """Visit all subscribers, and raise a Ctrl-C only after the last visit, so that each one gets the message."""
    interrupt: KeyboardInterrupt | None = None
    for subscriber in list(subscribers):
        try:
            visit(subscriber)
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


class ChannelMultiplexer:
    """The hub's one subscription to a channel on its transport, and the subscribers that share it."""

    def __init__(
        self,
        channel: str,
        *,
        start: Callable[[str], None],
        stop: Callable[[str], None],
        observe: Callable[[str, State], None] = _ignore_state,
    ) -> None:
        self.channel = channel
        self.state: State = "idle"
        #: The subscribers as keys, in the order in which they were added. A dict removes one of thousands faster than a
        #: list.
        self.subscribers: dict[Subscriber, None] = {}
        self._open = start
        self._close = stop
        self._observe = observe
        #: True after a connection loss: the next `on_opened` delivers MISSED to all subscribers.
        self._broken = False

    def _set_state(self, state: State) -> None:
        if state != self.state:
            self.state = state
            self._observe(self.channel, state)

    def add(self, subscriber: Subscriber) -> None:
        self.subscribers[subscriber] = None
        if self.state == "running":
            subscriber.mark_ready()
        elif self.state == "idle":
            self._start()
        # `starting` and `stopping` need no action here. In `starting`, the coming `on_opened` marks the new subscriber
        # ready. In `stopping`, the coming `on_closed` starts the subscription again.

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a subscriber. Its callback is not called afterwards. Safe to call twice."""
        subscriber.active = False
        self.subscribers.pop(subscriber, None)
        if not self.subscribers and self.state == "running":
            self._stop()
        # If the state is `starting`, `on_opened` will find no subscribers and stop the subscription.

    @property
    def was_refused(self) -> bool:
        """Whether the server refused the channel after a reconnect, so that its subscribers get no messages."""
        return self.state == "idle" and bool(self.subscribers)

    def wants_to_open(self) -> bool:
        """Whether the hub must open this channel on its new connection. A channel that the server refused on an earlier
        connection is tried again: its state changes to `starting`.
        """
        if self.was_refused:
            self._set_state("starting")
        return self.state in ("starting", "running")

    def on_opened(self) -> None:
        if self.state not in ("starting", "running"):
            return
        self._set_state("running")
        if not self.subscribers:
            self._stop()
            return
        broken, self._broken = self._broken, False

        def serve(subscriber: Subscriber) -> None:
            if not subscriber.is_ready:
                subscriber.mark_ready()
            elif broken:
                subscriber.deliver(MISSED)

        _for_each(self.subscribers, serve)

    def on_open_failed(self, error: Exception) -> None:
        """Return to idle and fail the subscribers that are not ready. Subscribers that were ready before a connection
        loss stay: they are served again once the hub or a new subscriber opens the channel.
        """
        if self.state != "starting":
            return
        self._set_state("idle")
        waiting = [subscriber for subscriber in self.subscribers if not subscriber.is_ready]
        for subscriber in waiting:
            del self.subscribers[subscriber]
            subscriber.active = False
        _for_each(waiting, lambda subscriber: subscriber.mark_ready(error))

    def on_closed(self) -> None:
        if self.state != "stopping":
            return
        self._set_state("idle")
        if self.subscribers:
            self._start()

    def on_close_failed(self, error: BaseException) -> None:
        """Treat the channel as closed anyway: messages that still arrive find no subscriber."""
        log.debug("closing %s failed: %s", self.channel, error)
        self.on_closed()

    def on_disconnected(self) -> None:
        """Handle a connection loss. The hub reopens all channels that still have subscribers."""
        if self.state == "stopping":
            self.on_closed()
        elif self.state == "running":
            self._set_state("starting")
            self._broken = True

    def report_missed(self) -> None:
        """Deliver MISSED: the transport has lost messages, although its connection was not interrupted."""
        _for_each(
            [subscriber for subscriber in self.subscribers if subscriber.is_ready],
            lambda subscriber: subscriber.deliver(MISSED),
        )

    def dispatch(self, payload: str) -> None:
        # A subscriber that was added while the channel was closing gets no messages before the channel opens again.
        ready = [subscriber for subscriber in self.subscribers if subscriber.is_ready]
        if len(ready) == 1:  # the common case
            ready[0].deliver(payload)
        else:
            _for_each(ready, lambda subscriber: subscriber.deliver(payload))

    def _start(self) -> None:
        try:
            self._set_state("starting")
            self._open(self.channel)
        except Exception as error:  # noqa: BLE001 - any error of the transport becomes the subscribers' error
            self.on_open_failed(error)
        except BaseException:  # Ctrl-C: without this, the channel would stay in `starting`
            self.on_open_failed(EngineUnavailable(f"opening channel {self.channel!r} was interrupted; listen again"))
            raise

    def _stop(self) -> None:
        try:
            self._set_state("stopping")
            self._close(self.channel)
        except BaseException as error:
            self.on_close_failed(error)
            if not isinstance(error, Exception):
                raise
