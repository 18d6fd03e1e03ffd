"""The subscription connection of the Redis hub: connects, receives, and reconnects with backoff.

`keep_subscribed` is the reconnect loop, a coroutine. With an `AsyncConnector` it runs as a task on an event loop. With
a `ThreadConnector` it runs on a thread: there every await blocks the thread, so the coroutine never suspends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import hiredis

from backstay.engine.base import steady
from backstay.engine.jitter import RANDOM
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.async_link import AsyncLink
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import ErrorReply, is_push, pack, translate_error
from backstay.errors import EngineError, EngineRefused

log = logging.getLogger("backstay.hub")

#: The first and the longest pause (seconds) between connection attempts: exponential backoff with jitter.
FIRST, LONGEST = 0.05, 1.0
#: Seconds between two PINGs and calls of `tick`. A dead connection is noticed when a PING
#: gets no reply within the connection's time-out.
PING_EVERY = 5.0
#: The shortest time-out (seconds) of a read. It is used when the next tick is already overdue, because a time-out of 0
#: would mean to block forever.
LEAST = 0.001
PING = pack("PING")


class SubscriptionStream(Protocol):
    """A Pub/Sub connection that is already authenticated."""

    def write(self, request: bytes) -> None:
        """Send a request. Call it on the event loop (`AsyncStream`) or on any thread (`ThreadStream`)."""
        ...

    async def run(self, receive: Callable[[list[Any] | ErrorReply], None], tick: Callable[[], None]) -> None:
        """Pass messages, confirmations and error replies to `receive` until the connection ends, or does not reply to a
        PING. Calls `tick` every few seconds, also under constant traffic.
        """
        ...

    def translate_error(self, reply: ErrorReply) -> EngineError:
        """Convert an error reply into a Backstay error."""
        ...

    def close(self) -> None: ...


class Connector(Protocol):
    """Connects and runs the subscription: as a task on an event loop, or blocking on a thread of its own."""

    async def connect(self) -> SubscriptionStream: ...

    async def pause(self, seconds: float) -> None: ...

    def start(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the coroutine `run()`, which keeps the subscription alive."""
        ...

    def stop(self) -> None:
        """End the coroutine that `start` has started, and wait for its end if possible. Safe to call twice."""
        ...

    async def join(self) -> None:
        """Wait until the coroutine that `start` has started has ended, without blocking the event loop if it runs
        there.
        """
        ...


class SubscriptionOwner(Protocol):
    """The part of the hub that `keep_subscribed` calls."""

    @property
    def is_closed(self) -> bool:
        """Whether the reconnect loop must end."""
        ...

    def on_connect(self, stream: SubscriptionStream) -> None:
        """Handle a new connection: subscribe to all channels that have subscribers."""
        ...

    def on_push(self, push: list[Any] | ErrorReply) -> None:
        """Handle a message, a confirmation or an error reply."""
        ...

    def on_tick(self) -> None:
        """Do periodic work. Called every few seconds while the connection lives."""
        ...

    def on_disconnect(self) -> None:
        """Handle the end of a connection. Messages that are published before the next connection are lost."""
        ...

    def on_refused(self, error: EngineRefused) -> None:
        """Handle a permanent error of a connection attempt. The attempts continue: the server's ACL may change."""
        ...


async def keep_subscribed(connector: Connector, owner: SubscriptionOwner) -> None:
    """Connect, pass what arrives to the owner, and reconnect, until the owner is closed."""
    delay = FIRST
    while not owner.is_closed:
        began = steady()
        try:
            stream = await connector.connect()
        except EngineError as error:
            if isinstance(error, EngineRefused):
                owner.on_refused(error)
            await connector.pause(RANDOM.uniform(delay / 2, delay))
            delay = min(delay * 2, LONGEST)
            continue
        try:
            owner.on_connect(stream)
            await stream.run(owner.on_push, owner.on_tick)
        except Exception:  # a bug must not end the subscription of all channels
            log.exception("the subscription failed, reconnecting")
        finally:
            owner.on_disconnect()
            stream.close()
        if steady() - began > LONGEST:
            delay = FIRST
        else:  # back off from a server that closes connections at once
            await connector.pause(RANDOM.uniform(delay / 2, delay))
            delay = min(delay * 2, LONGEST)


class AsyncStream:
    """A subscription connection on an event loop. The timer of its `AsyncLink` notices a missing reply to PING."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link
        self.write = link.write
        self.close = link.abort

    def translate_error(self, reply: ErrorReply) -> EngineError:
        return translate_error(reply, self._link.address)

    async def run(self, receive: Callable[[list[Any] | ErrorReply], None], tick: Callable[[], None]) -> None:
        self._link.on_push = receive
        while True:
            done, _ = await asyncio.wait([self._link.closed], timeout=PING_EVERY)
            if done:
                return
            self._link.send(PING).add_done_callback(_retrieve_exception)
            tick()


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a failed PING, so that asyncio logs no warning about it."""
    if not future.cancelled():
        future.exception()


class AsyncConnector:
    """Runs the subscription in a task of the event loop of the first subscriber."""

    def __init__(self, engine: RedisEngine) -> None:
        self._engine = engine
        self._task: asyncio.Task[None] | None = None

    async def connect(self) -> SubscriptionStream:
        engine = self._engine
        return AsyncStream(await engine.connect(f"{engine.client_name}:hub"))

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def start(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.get_running_loop().create_task(run(), name="backstay-hub")

    def stop(self) -> None:
        if self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._task.cancel()

    async def join(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait([task])


class ThreadStream:
    """A subscription connection on a thread. Other threads send requests, so `write` takes a lock."""

    def __init__(self, link: BlockingLink) -> None:
        self._link = link
        self._writing = threading.Lock()

    def write(self, request: bytes) -> None:
        with self._writing:
            self._link.write(request)

    def translate_error(self, reply: ErrorReply) -> EngineError:
        return translate_error(reply, self._link.address)

    async def run(self, receive: Callable[[list[Any] | ErrorReply], None], tick: Callable[[], None]) -> None:
        pinged = False
        due = steady() + PING_EVERY
        while True:
            try:
                replies = self._link.receive(max(due - steady(), LEAST))
            except (OSError, hiredis.ProtocolError):
                return
            if replies is not None:
                pinged = False
                for reply in replies:
                    if is_push(reply) or isinstance(reply, ErrorReply):
                        receive(reply)
            if steady() < due:
                continue
            if pinged:  # nothing was received since the last PING
                return
            pinged = True
            self.write(PING)
            tick()
            due = steady() + PING_EVERY

    def close(self) -> None:
        self._link.shutdown()


class LinkFactory(Protocol):
    """What a ThreadConnector needs to open its connection. Implemented by RedisEngine, which connects to the Redis
    server, and by SentinelWatch, which connects to a Sentinel.
    """

    client_name: str

    def connect_blocking(self, client_name: str, patience: float | None = None) -> BlockingLink: ...


class ThreadConnector:
    """Runs the subscription in a daemon thread."""

    def __init__(self, engine: LinkFactory, thread_name: str = "backstay-hub") -> None:
        self._engine = engine
        self._thread_name = thread_name
        self._stopping = threading.Event()
        self._stream: ThreadStream | None = None
        self._thread: threading.Thread | None = None

    async def connect(self) -> SubscriptionStream:
        engine = self._engine
        self._stream = ThreadStream(engine.connect_blocking(f"{engine.client_name}:hub"))
        if self._stopping.is_set():
            self._stream.close()
        return self._stream

    async def pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def start(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._stopping = threading.Event()

        def body() -> None:
            with contextlib.suppress(StopIteration):
                run().send(None)

        self._thread = threading.Thread(target=body, name=self._thread_name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._stream is not None:
            self._stream.close()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    async def join(self) -> None:
        self.stop()
