"""The two ways to run a Redis subscription: a task on an event loop, or a separate thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import hiredis

from backstay.engine.base import steady
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.async_link import AsyncLink
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import ErrorReply, is_push, pack, translate_error
from backstay.errors import EngineError
from backstay.hub.redis import Stream

#: Seconds between two PINGs and calls of `tick`. A dead connection is noticed one time-out after a PING.
PING_EVERY = 5.0
#: The shortest time-out of a read, for a tick that is overdue: 0 would block forever.
LEAST = 0.001
PING = pack("PING")


class AsyncStream:
    """A subscription connection on an event loop. The link's own timer notices a missing reply to PING."""

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
    """Retrieve the exception, so that asyncio logs no warning."""
    if not future.cancelled():
        future.exception()


class AsyncConnector:
    """Runs the subscription in a task of the event loop of the first subscriber."""

    def __init__(self, engine: RedisEngine) -> None:
        self._engine = engine
        self._task: asyncio.Task[None] | None = None

    async def connect(self) -> Stream:
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
    """Opens a thread's connections: an engine, or a `SentinelWatch`, which connects to Sentinels."""

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

    async def connect(self) -> Stream:
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
