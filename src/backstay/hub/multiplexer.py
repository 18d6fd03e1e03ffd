"""The shared listener: any number of subscribers on one subscription per channel.

    idle → starting → running → stopping → idle

It starts with the first subscriber and stops with the last. It is a machine of events without I/O: the hub calls
`opened`, `open_failed`, `closed`, `close_failed`, `interrupted` and `dispatch` as its transport tells; the listener
calls `open` and `close`. The hub's lock is held around every call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Literal

from backstay.errors import EngineUnavailable
from backstay.hub.contain import contain

log = logging.getLogger("backstay.hub")

State = Literal["idle", "starting", "running", "stopping"]
#: What a subscriber is told instead of a payload when messages may have been missed.
MISSED = None


def _unseen(channel: str, state: State) -> None:
    pass


class Subscriber:
    """One callback on one channel. `ready` runs once when the channel is heard, or with the error that forbids it."""

    __slots__ = ("active", "callback", "error", "is_ready", "ready")

    def __init__(self, callback: Callable[[str | None], None], ready: Callable[[], None]) -> None:
        self.callback = callback
        self.ready = ready
        self.active = True
        self.is_ready = False
        self.error: Exception | None = None

    def settle(self, error: Exception | None = None) -> None:
        if not self.is_ready:
            self.is_ready = error is None
            self.error = error
            try:
                self.ready()
            except BaseException as raised:
                contain(raised)
                log.exception("a subscriber failed")

    def tell(self, payload: str | None) -> None:
        """One that throws does not disturb its neighbours."""
        if not self.active:
            return
        try:
            self.callback(payload)
        except BaseException as error:
            contain(error)
            log.exception("a subscriber failed")


def _each(subscribers: Iterable[Subscriber], visit: Callable[[Subscriber], None]) -> None:
    """Ctrl-C in one comes out only when all have had their turn: the others must not be left unready or untold."""
    interrupt: KeyboardInterrupt | None = None
    for subscriber in list(subscribers):
        try:
            visit(subscriber)
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


class Listener:
    """One channel's subscription and who shares it."""

    def __init__(
        self,
        channel: str,
        *,
        start: Callable[[str], None],
        stop: Callable[[str], None],
        observe: Callable[[str, State], None] = _unseen,
    ) -> None:
        self.channel = channel
        self.state: State = "idle"
        #: In the order of arrival. A dict, since thousands may leave one by one.
        self.subscribers: dict[Subscriber, None] = {}
        self._open = start
        self._close = stop
        self._observe = observe
        #: True after a break: at the next `opened` everybody is told that something may have been missed.
        self._broken = False

    def _become(self, state: State) -> None:
        if state != self.state:
            self.state = state
            self._observe(self.channel, state)

    def add(self, subscriber: Subscriber) -> None:
        self.subscribers[subscriber] = None
        if self.state == "running":
            subscriber.settle()
        elif self.state == "idle":
            self._start()
        # starting: `opened` serves it; stopping: `closed` starts again because somebody is here.

    def remove(self, subscriber: Subscriber) -> None:
        """Safe twice. No callback comes after it."""
        subscriber.active = False
        self.subscribers.pop(subscriber, None)
        if not self.subscribers and self.state == "running":
            self._stop()
        # starting: `opened` finds nobody and stops.

    @property
    def is_deaf(self) -> bool:
        """A refusal came after a break: some had heard the channel before, and nobody hears it now."""
        return self.state == "idle" and bool(self.subscribers)

    def wants_to_open(self) -> bool:
        """The transport can serve: whether this channel is to be heard. Those whom a refusal left deaf try again."""
        if self.is_deaf:
            self._become("starting")
        return self.state in ("starting", "running")

    def opened(self) -> None:
        if self.state not in ("starting", "running"):
            return
        self._become("running")
        if not self.subscribers:
            self._stop()
            return
        broken, self._broken = self._broken, False

        def serve(subscriber: Subscriber) -> None:
            if not subscriber.is_ready:
                subscriber.settle()
            elif broken:
                subscriber.tell(MISSED)

        _each(self.subscribers, serve)

    def open_failed(self, error: Exception) -> None:
        """Back to idle; those who waited are told, and whoever comes next tries again. Those who had heard the channel
        before stay: they hear it again when the hub, or somebody who comes, succeeds.
        """
        if self.state != "starting":
            return
        self._become("idle")
        waiting = [subscriber for subscriber in self.subscribers if not subscriber.is_ready]
        for subscriber in waiting:
            del self.subscribers[subscriber]
            subscriber.active = False
        _each(waiting, lambda subscriber: subscriber.settle(error))

    def closed(self) -> None:
        if self.state != "stopping":
            return
        self._become("idle")
        if self.subscribers:
            self._start()

    def close_failed(self, error: BaseException) -> None:
        """The transport is done with it either way; a stray message finds no subscriber."""
        log.debug("closing %s failed: %s", self.channel, error)
        self.closed()

    def interrupted(self) -> None:
        """The transport broke. It opens again by itself whatever still has subscribers."""
        if self.state == "stopping":
            self.closed()
        elif self.state == "running":
            self._become("starting")
            self._broken = True

    def dispatch(self, payload: str) -> None:
        # Who came while the channel was closing hears from its next opening on.
        hearing = [subscriber for subscriber in self.subscribers if subscriber.is_ready]
        if len(hearing) == 1:  # as most channels of most processes
            hearing[0].tell(payload)
        else:
            _each(hearing, lambda subscriber: subscriber.tell(payload))

    def _start(self) -> None:
        self._become("starting")
        try:
            self._open(self.channel)
        except Exception as error:  # noqa: BLE001 - whatever a transport raises, the subscribers hear of it
            self.open_failed(error)
        except BaseException:  # Ctrl-C; nobody else would take the channel out of `starting`
            self.open_failed(EngineUnavailable(f"opening channel {self.channel!r} was interrupted; listen again"))
            raise

    def _stop(self) -> None:
        self._become("stopping")
        try:
            self._close(self.channel)
        except BaseException as error:
            self.close_failed(error)
            if not isinstance(error, Exception):
                raise
