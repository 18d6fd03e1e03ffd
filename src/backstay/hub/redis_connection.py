"""The two ways to keep a Redis subscription: a task on an event loop, or a thread of its own."""

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
from backstay.engine.redis.link.protocol import Refusal, is_push, pack, refused
from backstay.errors import EngineError
from backstay.hub.redis import Stream

#: A silent connection is asked for a sign of life this often; a dead one is noticed one timeout later. The hub's tick.
PING_EVERY = 5.0
#: Whoever comes late to its tick looks all the same at what has arrived: 0 would mean "for ever".
LEAST = 0.001
PING = pack("PING")


class AsyncStream:
    """A subscription on the loop; the link's own watchdog notices a missing answer to PING."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link
        self.write = link.write
        self.close = link.abort

    def refused(self, refusal: Refusal) -> EngineError:
        return refused(refusal, self._link.address)

    async def run(self, receive: Callable[[list[Any] | Refusal], None], tick: Callable[[], None]) -> None:
        self._link.on_push = receive
        while True:
            done, _ = await asyncio.wait([self._link.closed], timeout=PING_EVERY)
            if done:
                return
            self._link.send(PING).add_done_callback(_look_at)
            tick()


def _look_at(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


class AsyncDialer:
    """Keeps the subscription in a task of the loop that first listened."""

    def __init__(self, engine: RedisEngine) -> None:
        self._engine = engine
        self._task: asyncio.Task[None] | None = None

    async def dial(self) -> Stream:
        engine = self._engine
        return AsyncStream(await engine.dial(f"{engine.client_name}:hub"))

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
    """A subscription on a thread; others write, so writing is locked."""

    def __init__(self, link: BlockingLink) -> None:
        self._link = link
        self._writing = threading.Lock()

    def write(self, request: bytes) -> None:
        with self._writing:
            self._link.write(request)

    def refused(self, refusal: Refusal) -> EngineError:
        return refused(refusal, self._link.address)

    async def run(self, receive: Callable[[list[Any] | Refusal], None], tick: Callable[[], None]) -> None:
        asked = False
        due = steady() + PING_EVERY
        while True:
            try:
                replies = self._link.receive(max(due - steady(), LEAST))
            except (OSError, hiredis.ProtocolError):
                return
            if replies is not None:
                asked = False
                for reply in replies:
                    if is_push(reply) or isinstance(reply, Refusal):
                        receive(reply)
            if steady() < due:
                continue
            if asked:  # and nothing has come since
                return
            asked = True
            self.write(PING)
            tick()
            due = steady() + PING_EVERY

    def close(self) -> None:
        self._link.shutdown()


class BlockingDials(Protocol):
    """What makes a thread's connections: an engine, or something that knows another kind of server."""

    client_name: str

    def dial_blocking(self, client_name: str, patience: float | None = None) -> BlockingLink: ...


class ThreadDialer:
    """Keeps the subscription in a daemon thread."""

    def __init__(self, engine: BlockingDials, thread_name: str = "backstay-hub") -> None:
        self._engine = engine
        self._thread_name = thread_name
        self._stopping = threading.Event()
        self._stream: ThreadStream | None = None
        self._thread: threading.Thread | None = None

    async def dial(self) -> Stream:
        engine = self._engine
        self._stream = ThreadStream(engine.dial_blocking(f"{engine.client_name}:hub"))
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
