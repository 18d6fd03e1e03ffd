"""Hints over Redis Pub/Sub: one subscription connection for all channels, apart from the commands'."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.engine.redis.link import pack
from holdfast.errors import EngineError, EngineRefused
from holdfast.hub.base import Hub

#: The pause before a new attempt to connect: doubled each time, at random up to that, never above the last.
FIRST, LONGEST = 0.05, 1.0


class Stream(Protocol):
    """A signed-in subscription connection."""

    def write(self, request: bytes) -> None:
        """Send from any thread (blocking) or from the loop (async)."""
        ...

    async def run(self, receive: Callable[[list[Any]], None]) -> None:
        """Hand over what comes until the connection ends. Notices a silent death by itself."""
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

    def __init__(self, dialer: Dialer, *, observe: Callable[[str], None] = lambda _: None) -> None:
        super().__init__()
        self._dialer = dialer
        self._observe = observe
        self._stream: Stream | None = None
        self._running = False

    def _open(self, channel: str) -> None:
        if self._closed:
            raise RuntimeError("this hub is closed")
        if self._stream is not None:
            self._stream.write(pack("SUBSCRIBE", channel))
        elif not self._running:
            self._running = True
            self._dialer.start(self._keep)

    def _close(self, channel: str) -> None:
        if self._stream is not None:
            self._stream.write(pack("UNSUBSCRIBE", channel))
        else:
            self._listeners[channel].closed()

    async def _keep(self) -> None:
        """Written once: it awaits on a loop and never suspends on a thread."""
        delay = FIRST
        while not self._closed:
            try:
                stream = await self._dialer.dial()
            except EngineError as error:
                if isinstance(error, EngineRefused):  # waiting will not help those who wait now
                    self._refused(error)
                await self._dialer.pause(random.uniform(delay / 2, delay))
                delay = min(delay * 2, LONGEST)
                continue
            delay = FIRST
            try:
                self._attached(stream)
                await stream.run(self._received)
            finally:
                self._detached()
                stream.close()

    def _attached(self, stream: Stream) -> None:
        with self._lock:
            self._stream = stream
            if channels := self.wanted():
                stream.write(pack("SUBSCRIBE", *channels))
        self._observe("subscribed")

    def _detached(self) -> None:
        with self._lock:
            self._stream = None
            for listener in list(self._listeners.values()):
                listener.interrupted()
                self._forget_idle(listener)
        self._observe("interrupted")

    def _refused(self, error: EngineError) -> None:
        with self._lock:
            for listener in list(self._listeners.values()):
                listener.open_failed(error)
                self._forget_idle(listener)

    def _received(self, push: list[Any]) -> None:
        kind, raw = push[0], push[1]
        channel = raw.decode(errors="replace")
        with self._lock:
            listener = self._listeners.get(channel)
            if listener is None:
                return
            if kind == b"message":
                listener.dispatch(push[2].decode(errors="replace"))
            elif kind == b"subscribe":
                listener.opened()
            elif kind == b"unsubscribe":
                listener.closed()
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
        self._stream = None
        self._running = False
