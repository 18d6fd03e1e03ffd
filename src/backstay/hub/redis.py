"""The hub over Redis Pub/Sub: one subscription connection for all channels, separate from the commands' links."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from backstay.engine.base import OperationRunner
from backstay.engine.redis.link.protocol import ErrorReply, pack
from backstay.errors import EngineError, EngineRefused, EngineUnavailable
from backstay.hub.base import Hub, Subscription, ignore_event
from backstay.hub.protocol import LONGEST_PAYLOAD
from backstay.hub.redis_subscription import Connector, SubscriptionStream, keep_subscribed


class RedisHub(Hub):
    """Keeps one subscription connection alive. After each reconnect all subscribers get None instead of a message,
    because messages may have been lost.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        runner: OperationRunner | None = None,
        observe: Callable[..., None] = ignore_event,
    ) -> None:
        super().__init__(observe=observe)
        self.runner = runner
        self._connector = connector
        self._stream: SubscriptionStream | None = None
        self._running = False
        #: The number of forks between the first process and this one. A forked child inherits the parent's `_run`
        #: coroutine. When that copy ends, its old number shows that it must not change the state of the child's hub.
        self._generation = 0
        #: Requests, as (SUBSCRIBE or UNSUBSCRIBE, channel), that the server has neither confirmed nor refused, oldest
        #: first. An error reply names no channel: it refuses the oldest request.
        self._unconfirmed: deque[tuple[str, str]] = deque()
        #: Whether a connection was ever lost. Then each new connection is reported as a reconnect.
        self._broken = False
        #: Callbacks of channels whose messages are bytes, not text.
        self._raw: dict[bytes, Callable[[Any], None]] = {}

    def subscribe_raw(
        self, channel: str, callback: Callable[[bytes | None], None], ready: Callable[[], None]
    ) -> Subscription:
        """Subscribe like `subscribe(…, prompt=True)`, but call `callback` with bytes instead of text. Only the Redis
        hub can transport bytes. The channel must have no other subscriber.
        """
        subscription = self.subscribe(channel, cast("Callable[[str | None], None]", callback), ready, prompt=True)
        self._raw[channel.encode()] = subscription.subscriber.deliver
        return subscription

    def _open(self, channel: str) -> None:
        if self._closed:
            raise RuntimeError("this hub is closed")
        if self._stream is not None:
            self._send_request(self._stream, "SUBSCRIBE", channel)
        elif not self._running:
            self._running = True
            try:
                self._connector.start(self._run)
            except BaseException:  # it did not start: the next subscriber tries again
                self._running = False
                raise

    def _close(self, channel: str) -> None:
        if self._stream is not None:
            self._send_request(self._stream, "UNSUBSCRIBE", channel)
        else:
            self._multiplexers[channel].on_closed()

    def _send_request(self, stream: SubscriptionStream, verb: str, *channels: str) -> None:
        """Send SUBSCRIBE or UNSUBSCRIBE, as a separate command for each channel. If one command named several channels
        and the ACL forbade one of them, the server would refuse them all.
        """
        self._unconfirmed.extend([(verb, channel) for channel in channels])
        stream.write(b"".join([pack(verb, channel) for channel in channels]))

    async def _run(self) -> None:
        """Keep the subscription alive. If the application cancels this task (because it cancels all tasks of the loop,
        for example), the next subscriber starts a new task.
        """
        generation = self._generation
        try:
            await keep_subscribed(self._connector, self)
        finally:
            if not self._closed and generation == self._generation:
                with self._lock:
                    self._running = False
                    self._fail_opening(EngineUnavailable("the hub's subscription was ended; listen again"))

    @property
    def is_closed(self) -> bool:
        return self._closed

    def on_connect(self, stream: SubscriptionStream) -> None:
        with self._lock:
            self._stream = stream
            self._unconfirmed.clear()
            if channels := self.channels_to_open():
                self._send_request(stream, "SUBSCRIBE", *channels)
        self.observe("reconnected" if self._broken else "connected")

    def on_tick(self) -> None:
        """Try again to subscribe to the channels that the server's ACL forbade. The server does not tell when the ACL
        changes, so this is repeated every few seconds.
        """
        with self._lock:
            refused = [multiplexer for multiplexer in self._multiplexers.values() if multiplexer.was_refused]
            if refused and self._stream is not None:
                self._send_request(
                    self._stream, "SUBSCRIBE", *[each.channel for each in refused if each.wants_to_open()]
                )

    def on_disconnect(self) -> None:
        with self._lock:
            self._stream = None
            self._broken = True
            for multiplexer in list(self._multiplexers.values()):
                multiplexer.on_disconnected()
                self._forget_idle(multiplexer)
        if not self._closed:
            self.observe("interrupted")

    def on_refused(self, error: EngineRefused) -> None:
        self._fail_opening(error)

    def _fail_opening(self, error: EngineError) -> None:
        with self._lock:
            for multiplexer in list(self._multiplexers.values()):
                multiplexer.on_open_failed(error)
                self._forget_idle(multiplexer)

    def on_push(self, push: list[Any] | ErrorReply) -> None:
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
                multiplexer.on_opened()
            elif kind == b"unsubscribe":
                multiplexer.on_closed()
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
                multiplexer.on_open_failed(error)
            else:
                multiplexer.on_close_failed(error)
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
