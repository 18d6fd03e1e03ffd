"""Redis and Valkey as an engine: machines run there as Lua, one script per command, on the server's clock."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from backstay.engine.base import UNREADABLE, Apply, Micros, Op, Ping, Recall, only, steady
from backstay.engine.redis import keys
from backstay.engine.redis.address import Address, Place
from backstay.engine.redis.coalescing import Gathered, Gathering
from backstay.engine.redis.encoder import Ready, Talk, Talks, To
from backstay.engine.redis.link.async_link import AsyncLink
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import AFTER_YOU, STALE, Hello, Refusal, refused
from backstay.engine.redis.link.tls import context
from backstay.engine.redis.replica_ack import RedisWitness
from backstay.engine.redis.thread_subscriber import ThreadEars
from backstay.errors import BackstayError, Closed, EngineError

T = TypeVar("T")
UNANSWERED = object()


class RedisEngine:
    """One multiplexed link for the event loop, one socket for each thread that asks."""

    dialect = "redis"
    default_hub = "redis"
    recalls = True
    #: Whether keys live on different nodes by their hash tags.
    spreads = False

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
        #: Told of "connected" and "disconnected": several Backstays may share one engine.
        self._observers: list[Callable[[str], None]] = []
        self._test_clock = clock
        self._talks = Talks(namespace, clock)
        self._gathering: Gathering | None = None
        self._offset = 0.0
        self._link: AsyncLink | None = None
        self._connecting: asyncio.Task[AsyncLink] | None = None
        self._threads = threading.local()
        #: Weak: a thread that ends takes its connection with it.
        self._links: weakref.WeakSet[BlockingLink] = weakref.WeakSet()
        self._links_lock = threading.Lock()
        self._ears = ThreadEars(self._thread_link)
        self._witness = RedisWitness(namespace, self.second_link)
        #: Known from the first connection on.
        self._resp3 = False
        self._closed = False

    def watch(self, observer: Callable[[str], None]) -> None:
        self._observers.append(observer)

    def observe(self, event: str) -> None:
        for observer in list(self._observers):
            observer(event)

    # ── doors ──

    async def submit(self, op: Op[T]) -> T:
        link = self._link
        if link is None or not link.ready:
            link = await self._connected()
        if type(op) is Apply and self._test_clock is None:  # the hot path, without a generator
            request = op.wire or self._talks.request(op)
            raw = await (link.hand_over(request) if op.command.hands_over else link.send(request))
            if type(raw) is bytes:
                try:
                    answer: T = op.room.decode_reply(raw)
                except UNREADABLE as error:
                    raise op.room.unreadable(op.name, error) from error
                return answer
            if raw.code != "NOSCRIPT":
                raise self._refused(raw, link)
        elif type(op) is Gathered:
            return cast("T", await self._gathered().submit(op))
        elif type(op) is Ready and op.request is not None and self._test_clock is None:
            reply = await link.send(op.request())
            if type(reply) is not Refusal:
                return cast("T", op.read(reply))
        if type(op) is Recall:
            found = await link.send(self._talks.recall(op))
            if type(found) is not Refusal:
                return cast("T", found)
        talk = self._talks.of(op)
        try:
            asked = next(talk)
            while True:
                asked = talk.send(await link.send(asked.request if isinstance(asked, To) else asked))
        except StopIteration as done:
            return cast("T", done.value)
        except Refusal as refusal:
            raise self._refused(refusal, link) from None

    def _gathered(self) -> Gathering:
        if self._gathering is None or not self._gathering.is_here():
            self._gathering = Gathering(self.submit)
        return self._gathering

    def prepare(self, op: Apply) -> Apply:
        return Apply(op.room, op.name, op.command, self._talks.request(op))

    def _refused(self, refusal: Refusal, link: AsyncLink | BlockingLink) -> EngineError:
        if refusal.code in STALE:
            link.close()
        return refused(refusal, link.address)

    async def _connected(self) -> AsyncLink:
        """The link, connected once for all who ask at the same time; a caller's cancellation is its own."""
        if self._closed:
            raise Closed("this engine is closed")
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._connect_done)
        return await asyncio.shield(self._connecting)

    async def dial(self, client_name: str) -> AsyncLink:
        """A new connection to the server, for whoever needs one of its own."""
        return await AsyncLink.connect(self.address, client_name, self.tls)

    def dial_blocking(self, client_name: str, patience: float | None = None) -> BlockingLink:
        """The same for a thread."""
        return BlockingLink(self.address, client_name, self.tls, patience)

    async def _connect(self) -> AsyncLink:
        link = await self._reach()
        self._learn(link.hello, link.connected_at)
        self._link = link
        link.closed.add_done_callback(lambda _: self.observe("disconnected"))
        self.observe("connected")
        return link

    def _connect_done(self, task: asyncio.Task[AsyncLink]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # looked at, so that nobody is warned when all callers have gone

    def apply(self, op: Op[T]) -> T:
        if type(op) is Apply and self._test_clock is None:  # the hot path, without a generator
            link = getattr(self._threads, "link", None)
            if link is None or not link.ready:
                link = self._thread_link()
            request = op.wire or self._talks.request(op)
            raw = link.call_many([AFTER_YOU, request] if op.command.hands_over else [request])[-1]
            if type(raw) is bytes:
                try:
                    answer: T = op.room.decode_reply(raw)
                except UNREADABLE as error:
                    raise op.room.unreadable(op.name, error) from error
                return answer
            if raw.code != "NOSCRIPT":
                raise self._refused(raw, link)
        elif isinstance(op, Ready) and op.request is not None and self._test_clock is None:
            link = getattr(self._threads, "link", None)
            if link is None or not link.ready:
                link = self._thread_link()
            raw = link.call_many([op.request()])[0]
            if type(raw) is not Refusal:
                return cast("T", op.read(raw))
        return cast("T", only(self.apply_many([op])))

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        """All operations in one trip; a second one for scripts the server had not seen."""
        answers: list[Any] = [UNANSWERED] * len(ops)
        try:
            link = self._thread_link(timeout)
            begun: list[tuple[int, Talk, Any]] = [(i, self._talks.of(op), None) for i, op in enumerate(ops)]
            while True:
                asked: list[tuple[int, Talk, bytes]] = []
                for i, talk, reply in begun:
                    try:
                        request = talk.send(reply)
                        asked.append((i, talk, request.request if isinstance(request, To) else request))
                    except StopIteration as done:
                        answers[i] = done.value
                    except Refusal as refusal:
                        answers[i] = self._refused(refusal, link)
                    except BackstayError as error:  # a record that cannot be read: this operation's trouble alone
                        answers[i] = error
                if not asked:
                    break
                replies = link.call_many([request for _, _, request in asked], timeout)
                begun = [(i, talk, reply) for (i, talk, _), reply in zip(asked, replies, strict=True)]
        except EngineError as error:
            kind = type(error)
            return [kind(str(error)) if answer is UNANSWERED else answer for answer in answers]
        except Closed as error:
            return [error] * len(ops)
        return answers

    def _thread_link(self, timeout: float | None = None) -> BlockingLink:
        link = getattr(self._threads, "link", None)
        if link is None or not link.ready:
            if self._closed:
                raise Closed("this engine is closed")
            link = self._reach_blocking(timeout)
            self._learn(link.hello, link.connected_at)
            self._threads.link = link
            self._keep(link)
        return link

    def _keep(self, link: BlockingLink) -> None:
        with self._links_lock:
            self._links.add(link)
        self.observe("connected")

    async def _reach(self) -> AsyncLink:
        return await self.dial(self.client_name)

    def _reach_blocking(self, timeout: float | None) -> BlockingLink:
        patience = min(self.address.connect_timeout, timeout or self.address.connect_timeout)
        return self.dial_blocking(self.client_name, patience)

    def thread_ears(self) -> ThreadEars | None:
        """Where threads may wait on their own connections: RESP3, without TLS, on a system with eventfd."""
        return self._ears if self._resp3 and self.tls is None and hasattr(os, "eventfd") else None

    def witness(self) -> RedisWitness | None:
        return self._witness

    def second_link(self, place: Place | None) -> BlockingLink:
        """Apart from the thread's own link: what waits for replicas must hold up nothing else."""
        if self._closed:
            raise Closed("this engine is closed")
        if place is None:
            link = self.dial_blocking(self.client_name)
        else:
            address = replace(self.address, host=place.host, port=place.port)
            link = BlockingLink(address, self.client_name, self.tls)
        self._keep(link)
        return link

    # ── the clock ──

    def key(self, room: str, name: str) -> str:
        return keys.state(self.namespace, room, name)

    def now(self) -> Micros:
        if self._test_clock is not None:
            return self._test_clock()
        return int((steady() + self._offset) * 1_000_000)

    def correct(self, now: Micros) -> None:
        self._offset = now / 1_000_000 - steady()

    def _learn(self, hello: Hello | None, at: float) -> None:
        if hello is not None:
            self._offset = hello.now / 1_000_000 - at
            self._resp3 = hello.resp3

    # ── life ──

    async def open(self) -> None:
        self.correct(await self.submit(Ping()))

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
            link.close()  # closes the child's copy only; the parent's connection lives on
        self._links = weakref.WeakSet()
        self._links_lock = threading.Lock()
        self._threads = threading.local()
        self._ears = ThreadEars(self._thread_link)
        self._link = None
        self._connecting = None
        self._gathering = None
