"""The Redis and Valkey engine: machines run on the server as Lua, one script per command, on the server's clock."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from backstay.engine.base import DECODE_ERRORS, Apply, Micros, Op, Ping, ReadBody, single_result, steady
from backstay.engine.redis import keys
from backstay.engine.redis.address import Address, HostPort
from backstay.engine.redis.coalescing import CoalescedRequest, Coalescer
from backstay.engine.redis.encoder import Encoder, KeyedRequest, Procedure, SingleRequest
from backstay.engine.redis.link.async_link import AsyncLink
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import PING_FIRST, STALE_CODES, ErrorReply, Hello, translate_error
from backstay.engine.redis.link.tls import context
from backstay.engine.redis.replica_ack import RedisReplicaAcks
from backstay.engine.redis.thread_subscriber import RedisThreadSubscribers
from backstay.errors import BackstayError, Closed, EngineError

T = TypeVar("T")
NO_RESULT = object()


class RedisEngine:
    """An engine on one server: one multiplexed link for the event loop, and one socket per thread."""

    expires_bodies = True
    exposes_redis_keys = True
    is_clustered = False

    def __init__(
        self,
        address: Address,
        *,
        namespace: str = "backstay",
        client_name: str = "backstay",
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], Micros] | None = None,
    ) -> None:
        self.address = address
        self.namespace = namespace
        self.client_name = client_name
        self.tls = tls if tls is not None else context(address)
        #: Called with "connected" and "disconnected". A list, because several Backstays may share one engine.
        self._observers: list[Callable[[str], None]] = []
        self._test_clock = clock
        self._encoder = Encoder(namespace, clock)
        self._coalescer: Coalescer | None = None
        self._offset = 0.0
        self._link: AsyncLink | None = None
        self._connecting: asyncio.Task[AsyncLink] | None = None
        self._threads = threading.local()
        #: Weak references: a thread's connection is closed when the thread ends.
        self._links: weakref.WeakSet[BlockingLink] = weakref.WeakSet()
        self._links_lock = threading.Lock()
        self._thread_subscribers = RedisThreadSubscribers(self._thread_link)
        self._replica_acks = RedisReplicaAcks(namespace, self.second_link)
        #: Whether the server speaks RESP3; known after the first connection.
        self._resp3 = False
        self._closed = False

    def watch(self, observer: Callable[[str], None]) -> None:
        self._observers.append(observer)

    def observe(self, event: str) -> None:
        for observer in list(self._observers):
            observer(event)

    # ── operations ──

    async def submit(self, op: Op[T]) -> T:
        link = self._link
        if link is None or not link.is_usable():
            link = await self._ensure_connected()
        if type(op) is Apply and self._test_clock is None:  # the hot path, without creating a generator (`procedure`)
            request = op.encoded or self._encoder.request(op)
            raw = await (link.send_after_ping(request) if op.command.wakes_waiters else link.send(request))
            if type(raw) is bytes:
                try:
                    result: T = op.room.decode_reply(raw)
                except DECODE_ERRORS as error:
                    raise op.room.corrupt_record(op.name, error) from error
                return result
            if raw.code != "NOSCRIPT":
                raise self._error(raw, link)
        elif type(op) is CoalescedRequest:
            return cast("T", await self._loop_coalescer().submit(op))
        elif type(op) is SingleRequest and op.request is not None and self._test_clock is None:
            reply = await link.send(op.request())
            if type(reply) is not ErrorReply:
                return cast("T", op.read(reply))
        if type(op) is ReadBody:
            found = await link.send(self._encoder.read_body_request(op))
            if type(found) is not ErrorReply:
                return cast("T", found)
        procedure = self._encoder.procedure(op)
        try:
            step = next(procedure)
            while True:
                step = procedure.send(await link.send(step.request if isinstance(step, KeyedRequest) else step))
        except StopIteration as done:
            return cast("T", done.value)
        except ErrorReply as reply:
            raise self._error(reply, link) from None

    def _loop_coalescer(self) -> Coalescer:
        if self._coalescer is None or not self._coalescer.is_on_this_loop():
            self._coalescer = Coalescer(self.submit)
        return self._coalescer

    def prepare(self, op: Apply) -> Apply:
        return Apply(op.room, op.name, op.command, self._encoder.request(op))

    def _error(self, reply: ErrorReply, link: AsyncLink | BlockingLink) -> EngineError:
        """Convert an error reply to an exception. Closes the link if the server is not the master: a new link may reach
        the master.
        """
        if reply.code in STALE_CODES:
            link.close()
        return translate_error(reply, link.address)

    async def _ensure_connected(self) -> AsyncLink:
        """Return the link of the event loop, and connect it first if necessary. Concurrent callers share one attempt to
        connect; if one caller is cancelled, the attempt continues.
        """
        if self._closed:
            raise Closed("this engine is closed")
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._connect_done)
        return await asyncio.shield(self._connecting)

    async def connect(self, client_name: str) -> AsyncLink:
        """Open a separate link to the server (the hub uses it)."""
        return await AsyncLink.connect(self.address, client_name, self.tls)

    def connect_blocking(self, client_name: str, patience: float | None = None) -> BlockingLink:
        """Open a separate link for a thread."""
        return BlockingLink(self.address, client_name, self.tls, patience)

    async def _connect(self) -> AsyncLink:
        link = await self._connect_shared()
        self._learn(link.hello, link.connected_at)
        self._link = link
        link.closed.add_done_callback(lambda _: self.observe("disconnected"))
        self.observe("connected")
        return link

    def _connect_done(self, task: asyncio.Task[AsyncLink]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # mark it as retrieved: if all callers were cancelled, asyncio would log a warning

    def apply(self, op: Op[T]) -> T:
        if type(op) is Apply and self._test_clock is None:  # the hot path, without creating a generator (`procedure`)
            link = getattr(self._threads, "link", None)
            if link is None or not link.is_usable():
                link = self._thread_link()
            request = op.encoded or self._encoder.request(op)
            raw = link.call_many([PING_FIRST, request] if op.command.wakes_waiters else [request])[-1]
            if type(raw) is bytes:
                try:
                    result: T = op.room.decode_reply(raw)
                except DECODE_ERRORS as error:
                    raise op.room.corrupt_record(op.name, error) from error
                return result
            if raw.code != "NOSCRIPT":
                raise self._error(raw, link)
        elif isinstance(op, SingleRequest) and op.request is not None and self._test_clock is None:
            link = getattr(self._threads, "link", None)
            if link is None or not link.is_usable():
                link = self._thread_link()
            raw = link.call_many([op.request()])[0]
            if type(raw) is not ErrorReply:
                return cast("T", op.read(raw))
        return cast("T", single_result(self.apply_many([op])))

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        """Run all operations in one round trip, and a second one for scripts that the server does not know."""
        results: list[Any] = [NO_RESULT] * len(ops)
        try:
            link = self._thread_link(timeout)
            running: list[tuple[int, Procedure, Any]] = [
                (i, self._encoder.procedure(op), None) for i, op in enumerate(ops)
            ]
            while True:
                sent: list[tuple[int, Procedure, bytes]] = []
                for i, procedure, reply in running:
                    try:
                        request = procedure.send(reply)
                        sent.append((i, procedure, request.request if isinstance(request, KeyedRequest) else request))
                    except StopIteration as done:
                        results[i] = done.value
                    except ErrorReply as error_reply:
                        results[i] = self._error(error_reply, link)
                    except BackstayError as error:  # for example, a record that cannot be read
                        results[i] = error
                if not sent:
                    break
                replies = link.call_many([request for _, _, request in sent], timeout)
                running = [(i, procedure, reply) for (i, procedure, _), reply in zip(sent, replies, strict=True)]
        except EngineError as error:
            kind = type(error)
            return [kind(str(error)) if result is NO_RESULT else result for result in results]
        except Closed as error:
            return [error] * len(ops)
        return results

    def _thread_link(self, timeout: float | None = None) -> BlockingLink:
        link = getattr(self._threads, "link", None)
        if link is None or not link.is_usable():
            if self._closed:
                raise Closed("this engine is closed")
            link = self._connect_thread(timeout)
            self._learn(link.hello, link.connected_at)
            self._threads.link = link
            self._register(link)
        return link

    def _register(self, link: BlockingLink) -> None:
        with self._links_lock:
            self._links.add(link)
        self.observe("connected")

    async def _connect_shared(self) -> AsyncLink:
        return await self.connect(self.client_name)

    def _connect_thread(self, timeout: float | None) -> BlockingLink:
        patience = min(self.address.connect_timeout, timeout or self.address.connect_timeout)
        return self.connect_blocking(self.client_name, patience)

    def thread_subscribers(self) -> RedisThreadSubscribers | None:
        """Return the subscribers with which waiting threads receive hints on their own connections; None if they
        cannot. They need RESP3, a system with eventfd, and a connection without TLS.
        """
        return self._thread_subscribers if self._resp3 and self.tls is None and hasattr(os, "eventfd") else None

    def replica_acks(self) -> RedisReplicaAcks | None:
        return self._replica_acks

    def second_link(self, place: HostPort | None) -> BlockingLink:
        """Open a second link for this thread, to the node at `place`; None: to the server that the engine uses now. The
        link is for WAIT, which blocks all later commands on its connection.
        """
        if self._closed:
            raise Closed("this engine is closed")
        if place is None:
            link = self.connect_blocking(self.client_name)
        else:
            address = replace(self.address, host=place.host, port=place.port)
            link = BlockingLink(address, self.client_name, self.tls)
        self._register(link)
        return link

    # ── keys and the clock ──

    def key(self, room: str, name: str) -> str:
        return keys.state(self.namespace, room, name)

    def now(self) -> Micros:
        if self._test_clock is not None:
            return self._test_clock()
        return int((steady() + self._offset) * 1_000_000)

    def correct_clock(self, now: Micros) -> None:
        self._offset = now / 1_000_000 - steady()

    def _learn(self, hello: Hello | None, at: float) -> None:
        if hello is not None:
            self._offset = hello.now / 1_000_000 - at
            self._resp3 = hello.resp3

    # ── lifecycle ──

    async def open(self) -> None:
        self.correct_clock(await self.submit(Ping()))

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.abort()
        self.close_blocking()

    def close_blocking(self) -> None:
        self._closed = True
        with self._links_lock:
            for link in list(self._links):
                link.close()

    def after_fork(self) -> None:
        self._observers = []
        for link in list(self._links):
            link.close()  # closes the child's copy of the socket only; the parent's connection stays open
        self._links = weakref.WeakSet()
        self._links_lock = threading.Lock()
        self._threads = threading.local()
        self._thread_subscribers = RedisThreadSubscribers(self._thread_link)
        self._link = None
        self._connecting = None
        self._coalescer = None
