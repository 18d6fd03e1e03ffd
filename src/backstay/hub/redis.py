"""Hints over Redis Pub/Sub: one subscription connection for all channels, apart from the commands'."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

from backstay.engine.base import Carrier, steady
from backstay.engine.redis.link.protocol import Refusal, pack
from backstay.errors import EngineError, EngineRefused, EngineUnavailable
from backstay.hub.base import Hub, Subscription, unobserved
from backstay.hub.multiplexer import log
from backstay.hub.protocol import LONGEST_PAYLOAD

#: The pause before a new attempt to connect: doubled each time, at random up to that, never above the last.
FIRST, LONGEST = 0.05, 1.0


class Stream(Protocol):
    """A signed-in subscription connection."""

    def write(self, request: bytes) -> None:
        """Send from any thread (blocking) or from the loop (async)."""
        ...

    async def run(self, receive: Callable[[list[Any] | Refusal], None], tick: Callable[[], None]) -> None:
        """Hand over messages, confirmations and refusals until the connection ends. Notices a silent death. `tick`
        comes every few seconds, however much there is to hear.
        """
        ...

    def refused(self, refusal: Refusal) -> EngineError:
        """What a refusal means, as an error of ours."""
        ...

    def close(self) -> None: ...


class Dialer(Protocol):
    """How this process reaches the server and waits: awaiting on a loop, or blocking on a thread of its own."""

    async def dial(self) -> Stream: ...

    async def pause(self, seconds: float) -> None: ...

    def start(self, run: Callable[[], Any]) -> None:
        """Begin the one coroutine that keeps the subscription."""
        ...

    def stop(self) -> None:
        """End it and wait for its end where that is possible. Safe twice."""
        ...

    async def join(self) -> None:
        """Wait for its end on the loop."""
        ...


class RedisHub(Hub):
    """Keeps one subscription alive and tells every listener once after each break."""

    def __init__(
        self, dialer: Dialer, *, carrier: Carrier | None = None, observe: Callable[..., None] = unobserved
    ) -> None:
        super().__init__(observe=observe)
        self.carrier = carrier
        self._dialer = dialer
        self._stream: Stream | None = None
        self._running = False
        #: Counts forks: what a child inherited and throws away must not speak for what it began itself.
        self._life = 0
        #: What the server has neither confirmed nor refused yet, in the order in which it will: a refusal has no name.
        self._asked: deque[tuple[str, str]] = deque()
        #: True from the first break on.
        self._broken = False
        #: Whom to call on channels whose messages are no text.
        self._raw: dict[bytes, Callable[[Any], None]] = {}

    def subscribe_raw(
        self, channel: str, callback: Callable[[bytes | None], None], ready: Callable[[], None]
    ) -> Subscription:
        """`subscribe(…, prompt=True)` to a channel of one's own whose messages come as the bytes that they are. Of this
        hub alone: others carry text.
        """
        subscription = self.subscribe(channel, cast("Callable[[str | None], None]", callback), ready, prompt=True)
        self._raw[channel.encode()] = subscription.subscriber.tell
        return subscription

    def _open(self, channel: str) -> None:
        if self._closed:
            raise RuntimeError("this hub is closed")
        if self._stream is not None:
            self._ask(self._stream, "SUBSCRIBE", channel)
        elif not self._running:
            self._running = True
            try:
                self._dialer.start(self._run)
            except BaseException:  # the next to come tries again
                self._running = False
                raise

    def _close(self, channel: str) -> None:
        if self._stream is not None:
            self._ask(self._stream, "UNSUBSCRIBE", channel)
        else:
            self._listeners[channel].closed()

    def _ask(self, stream: Stream, verb: str, *channels: str) -> None:
        """One command for each: a server that refuses one channel refuses the whole command."""
        self._asked.extend([(verb, channel) for channel in channels])
        stream.write(b"".join([pack(verb, channel) for channel in channels]))

    async def _run(self) -> None:
        """Ended from outside, as when somebody cancels every task of the loop, it begins anew for the next to come."""
        life = self._life
        try:
            await self._keep()
        finally:
            if not self._closed and life == self._life:
                with self._lock:
                    self._running = False
                    self._refused(EngineUnavailable("the hub's subscription was ended; listen again"))

    async def _keep(self) -> None:
        """Written once: it awaits on a loop and never suspends on a thread."""
        delay = FIRST
        while not self._closed:
            began = steady()
            try:
                stream = await self._dialer.dial()
            except EngineError as error:
                if isinstance(error, EngineRefused):  # waiting will not help those who wait now
                    self._refused(error)
                await self._dialer.pause(random.uniform(delay / 2, delay))
                delay = min(delay * 2, LONGEST)
                continue
            try:
                self._attached(stream)
                await stream.run(self._received, self._try_again)
            except Exception:  # noqa: BLE001 - a mistake of ours must not leave everybody deaf
                log.exception("the subscription failed; it is opened again")
            finally:
                self._detached()
                stream.close()
            if steady() - began > LONGEST:
                delay = FIRST
            else:  # a server that hangs up at once is not hammered
                await self._dialer.pause(random.uniform(delay / 2, delay))
                delay = min(delay * 2, LONGEST)

    def _attached(self, stream: Stream) -> None:
        with self._lock:
            self._stream = stream
            self._asked.clear()
            if channels := self.wanted():
                self._ask(stream, "SUBSCRIBE", *channels)
        self.observe("reconnected" if self._broken else "connected")

    def _try_again(self) -> None:
        """Rights that were taken away may be back: nobody tells, so those whom a refusal left deaf ask now and then."""
        with self._lock:
            deaf = [listener for listener in self._listeners.values() if listener.is_deaf]
            if deaf and self._stream is not None:
                self._ask(self._stream, "SUBSCRIBE", *[each.channel for each in deaf if each.wants_to_open()])

    def _detached(self) -> None:
        with self._lock:
            self._stream = None
            self._broken = True
            for listener in list(self._listeners.values()):
                listener.interrupted()
                self._forget_idle(listener)
        if not self._closed:
            self.observe("interrupted")

    def _refused(self, error: EngineError) -> None:
        with self._lock:
            for listener in list(self._listeners.values()):
                listener.open_failed(error)
                self._forget_idle(listener)

    def _received(self, push: list[Any] | Refusal) -> None:
        if isinstance(push, Refusal):
            self._forbidden(push)
            return
        if push[1] in self._raw and push[0] == b"message":
            self._raw[push[1]](push[2])
            return
        kind, channel = push[0], push[1].decode(errors="replace")
        if kind == b"message":
            raw = push[2]
            if len(raw) > LONGEST_PAYLOAD:
                self.observe("malformed", channel=channel)
            else:
                self.deliver(channel, raw.decode(errors="replace"))
            return
        with self._lock:
            if self._asked:
                self._asked.popleft()
            listener = self._listeners.get(channel)
            if listener is None:
                return
            if kind == b"subscribe":
                listener.opened()
            elif kind == b"unsubscribe":
                listener.closed()
                self._forget_idle(listener)
                if channel not in self._listeners:
                    self._raw.pop(push[1], None)

    def _forbidden(self, refusal: Refusal) -> None:
        """The oldest unconfirmed request is not allowed. The others are served all the same."""
        with self._lock:
            if not self._asked or self._stream is None:
                return
            verb, channel = self._asked.popleft()
            listener = self._listeners.get(channel)
            if listener is None:
                return
            error = self._stream.refused(refusal)
            if verb == "SUBSCRIBE":
                listener.open_failed(error)
            else:
                listener.close_failed(error)
            self._forget_idle(listener)

    def close(self) -> None:
        self._closed = True
        if self._running:
            self._running = False
            self._dialer.stop()

    async def join(self) -> None:
        self.close()
        await self._dialer.join()

    def after_fork(self) -> None:
        self._reset()
        self._life += 1
        self._stream = None
        self._running = False
        self._broken = False
        self._asked.clear()
        self._raw.clear()
