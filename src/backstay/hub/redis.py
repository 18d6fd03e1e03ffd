"""The hub over Redis Pub/Sub: one subscription connection for all channels, separate from the commands' links."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

from backstay.engine.base import OperationRunner, steady
from backstay.engine.redis.link.protocol import ErrorReply, pack
from backstay.errors import EngineError, EngineRefused, EngineUnavailable
from backstay.hub.base import Hub, Subscription, unobserved
from backstay.hub.multiplexer import log
from backstay.hub.protocol import LONGEST_PAYLOAD

#: The first and the longest pause (seconds) between connection attempts: exponential backoff with jitter.
FIRST, LONGEST = 0.05, 1.0


class Stream(Protocol):
    """A signed-in subscription connection."""

    def write(self, request: bytes) -> None:
        """Send a request: from any thread (blocking) or from the event loop (async)."""
        ...

    async def run(self, receive: Callable[[list[Any] | ErrorReply], None], tick: Callable[[], None]) -> None:
        """Pass messages, confirmations and error replies to `receive` until the connection ends; detect a dead peer.
        Calls `tick` every few seconds, also under constant traffic.
        """
        ...

    def translate_error(self, reply: ErrorReply) -> EngineError:
        """Convert an error reply into a Backstay error."""
        ...

    def close(self) -> None: ...


class Connector(Protocol):
    """Connects, waits and runs the subscription: as a task on an event loop, or blocking on its own thread."""

    async def connect(self) -> Stream: ...

    async def pause(self, seconds: float) -> None: ...

    def start(self, run: Callable[[], Any]) -> None:
        """Start the coroutine that keeps the subscription alive."""
        ...

    def stop(self) -> None:
        """End the coroutine, and wait for its end if possible. Safe to call twice."""
        ...

    async def join(self) -> None:
        """Wait on the event loop for the coroutine's end."""
        ...


class RedisHub(Hub):
    """Keeps one subscription connection alive. After each reconnect all subscribers get None: messages may be lost."""

    def __init__(
        self, connector: Connector, *, runner: OperationRunner | None = None, observe: Callable[..., None] = unobserved
    ) -> None:
        super().__init__(observe=observe)
        self.runner = runner
        self._connector = connector
        self._stream: Stream | None = None
        self._running = False
        #: Counts forks: the end of an inherited coroutine in the child must not change the child's own state.
        self._generation = 0
        #: Requests that the server has neither confirmed nor refused, oldest first: an error reply names no channel.
        self._unconfirmed: deque[tuple[str, str]] = deque()
        #: True from the first connection loss on.
        self._broken = False
        #: Callbacks of channels whose messages are bytes, not text.
        self._raw: dict[bytes, Callable[[Any], None]] = {}

    def subscribe_raw(
        self, channel: str, callback: Callable[[bytes | None], None], ready: Callable[[], None]
    ) -> Subscription:
        """Subscribe like `subscribe(…, prompt=True)`, but pass messages as bytes. Only this hub can: the others
        transport text. The channel must have no other subscriber.
        """
        subscription = self.subscribe(channel, cast("Callable[[str | None], None]", callback), ready, prompt=True)
        self._raw[channel.encode()] = subscription.subscriber.deliver
        return subscription

    def _open(self, channel: str) -> None:
        if self._closed:
            raise RuntimeError("this hub is closed")
        if self._stream is not None:
            self._ask(self._stream, "SUBSCRIBE", channel)
        elif not self._running:
            self._running = True
            try:
                self._connector.start(self._run)
            except BaseException:  # the next subscriber tries again
                self._running = False
                raise

    def _close(self, channel: str) -> None:
        if self._stream is not None:
            self._ask(self._stream, "UNSUBSCRIBE", channel)
        else:
            self._multiplexers[channel].closed()

    def _ask(self, stream: Stream, verb: str, *channels: str) -> None:
        """Send one command per channel, because a server that refuses one channel refuses the whole command."""
        self._unconfirmed.extend([(verb, channel) for channel in channels])
        stream.write(b"".join([pack(verb, channel) for channel in channels]))

    async def _run(self) -> None:
        """Keep the subscription alive. If the task is cancelled from outside (a program that cancels all tasks of the
        loop, for example), the next subscriber starts a new one.
        """
        generation = self._generation
        try:
            await self._keep_subscribed()
        finally:
            if not self._closed and generation == self._generation:
                with self._lock:
                    self._running = False
                    self._fail_opening(EngineUnavailable("the hub's subscription was ended; listen again"))

    async def _keep_subscribed(self) -> None:
        """Connect, receive and reconnect. The same code runs on a loop, where it awaits, and on a thread, where it
        never suspends.
        """
        delay = FIRST
        while not self._closed:
            began = steady()
            try:
                stream = await self._connector.connect()
            except EngineError as error:
                if isinstance(error, EngineRefused):  # permanent: subscribers that wait now get the error
                    self._fail_opening(error)
                await self._connector.pause(random.uniform(delay / 2, delay))
                delay = min(delay * 2, LONGEST)
                continue
            try:
                self._attached(stream)
                await stream.run(self._received, self._retry_refused)
            except Exception:  # noqa: BLE001 - a bug must not end the subscription of all channels
                log.exception("the subscription failed, reconnecting")
            finally:
                self._detached()
                stream.close()
            if steady() - began > LONGEST:
                delay = FIRST
            else:  # back off from a server that closes connections at once
                await self._connector.pause(random.uniform(delay / 2, delay))
                delay = min(delay * 2, LONGEST)

    def _attached(self, stream: Stream) -> None:
        with self._lock:
            self._stream = stream
            self._unconfirmed.clear()
            if channels := self.wanted():
                self._ask(stream, "SUBSCRIBE", *channels)
        self.observe("reconnected" if self._broken else "connected")

    def _retry_refused(self) -> None:
        """Subscribe refused channels again: the server does not announce that the ACL allows them now."""
        with self._lock:
            refused = [multiplexer for multiplexer in self._multiplexers.values() if multiplexer.was_refused]
            if refused and self._stream is not None:
                self._ask(self._stream, "SUBSCRIBE", *[each.channel for each in refused if each.wants_to_open()])

    def _detached(self) -> None:
        with self._lock:
            self._stream = None
            self._broken = True
            for multiplexer in list(self._multiplexers.values()):
                multiplexer.interrupted()
                self._forget_idle(multiplexer)
        if not self._closed:
            self.observe("interrupted")

    def _fail_opening(self, error: EngineError) -> None:
        with self._lock:
            for multiplexer in list(self._multiplexers.values()):
                multiplexer.open_failed(error)
                self._forget_idle(multiplexer)

    def _received(self, push: list[Any] | ErrorReply) -> None:
        if isinstance(push, ErrorReply):
            self._on_error_reply(push)
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
            if self._unconfirmed:
                self._unconfirmed.popleft()
            multiplexer = self._multiplexers.get(channel)
            if multiplexer is None:
                return
            if kind == b"subscribe":
                multiplexer.opened()
            elif kind == b"unsubscribe":
                multiplexer.closed()
                self._forget_idle(multiplexer)
                if channel not in self._multiplexers:
                    self._raw.pop(push[1], None)

    def _on_error_reply(self, reply: ErrorReply) -> None:
        """Fail the oldest unconfirmed request: the ACL forbids its channel. Other channels are not affected."""
        with self._lock:
            if not self._unconfirmed or self._stream is None:
                return
            verb, channel = self._unconfirmed.popleft()
            multiplexer = self._multiplexers.get(channel)
            if multiplexer is None:
                return
            error = self._stream.translate_error(reply)
            if verb == "SUBSCRIBE":
                multiplexer.open_failed(error)
            else:
                multiplexer.close_failed(error)
            self._forget_idle(multiplexer)

    def close(self) -> None:
        self._closed = True
        if self._running:
            self._running = False
            self._connector.stop()

    async def join(self) -> None:
        self.close()
        await self._connector.join()

    def after_fork(self) -> None:
        self._reset()
        self._generation += 1
        self._stream = None
        self._running = False
        self._broken = False
        self._unconfirmed.clear()
        self._raw.clear()
