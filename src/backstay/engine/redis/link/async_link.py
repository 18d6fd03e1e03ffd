"""One multiplexed connection for an event loop: every command of a loop turn leaves in one write."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from backstay.engine.base import steady
from backstay.engine.redis.address import Address
from backstay.engine.redis.link.credentials import Credentials
from backstay.engine.redis.link.protocol import (
    AFTER_YOU,
    ASKING,
    Hello,
    Refusal,
    SignIn,
    is_push,
    new_reader,
    sign_in,
    why_not,
)
from backstay.engine.redis.link.tls import refusal as tls_refusal
from backstay.errors import EngineUnavailable, OutcomeUnknown

#: Commands on the wire at once; more wait in this process, and leave it if they are cancelled.
IN_FLIGHT = 10_000
#: What a silent server gets before the connection is given up, once its time is over.
LAST_LOOK = 0.05
#: A lone command leaves at once. A turn that makes more than this sends them in bursts: the server works meanwhile.
BURST = 16
#: How often a link that is to be closed is looked at.
RETIRE = 0.1
#: How long a server that hung up on us is listened to, to learn why.
LAST_WORDS = 1.0


class AsyncLink(asyncio.Protocol):
    """A connection. Replies resolve futures in order; a cancelled future's reply is read and dropped."""

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.ready = False
        #: What the sign-in, or what was said instead of it, came to.
        self.told: Any = None
        #: What ended the connection, where that is known.
        self.why: Exception | None = None
        #: Whether the server ever said a word.
        self.heard = False
        self.connected_at = 0.0
        self._loop = loop
        self._reader = new_reader()
        self._transport: asyncio.Transport | None = None
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._out: list[bytes] = []
        self._overflow: deque[tuple[bytes, asyncio.Future[Any]]] = deque()
        self._progress = 0.0
        self._suspect = False
        self._fd = -1
        self._watching: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = loop.create_future()
        #: Stands for a reply that nobody wants.
        self._nobody: asyncio.Future[Any] = loop.create_future()
        self._nobody.cancel()
        #: For a subscription: takes what the server sends unasked, and what it refuses.
        self.on_push: Callable[[list[Any] | Refusal], None] | None = None

    @classmethod
    async def connect(
        cls, address: Address, client_name: str, tls: ssl.SSLContext | None, talk: SignIn | None = None
    ) -> AsyncLink:
        """Reach the server and sign in, within `connect_timeout`. `talk` is what to say instead of signing in."""
        loop = asyncio.get_running_loop()
        link = cls(address, loop)
        try:
            async with asyncio.timeout(address.connect_timeout):
                if address.path:
                    await loop.create_unix_connection(lambda: link, address.path)
                else:
                    await loop.create_connection(lambda: link, address.host, address.port, ssl=tls)
                started = steady()
                talk = talk or sign_in(address, client_name)
                batch = next(talk)
                while True:
                    if isinstance(batch, Credentials):
                        replies: Any = await batch.fetch_async()
                    else:
                        replies = await asyncio.gather(*[link.send(command) for command in batch])
                    try:
                        batch = talk.send(replies)
                    except StopIteration as done:
                        link.told = done.value
                        break
                    started = steady()
                link.connected_at = (started + steady()) / 2
        except BaseException as error:
            link.abort()
            why: BaseException = link.why or error
            if tls is not None and not link.heard and isinstance(why, (ConnectionError, OutcomeUnknown)):
                why = await _last_words(address, tls, loop) or why
            if refusal := tls_refusal(why, address):
                raise refusal from error
            if isinstance(error, (OSError, TimeoutError, OutcomeUnknown)):
                raise EngineUnavailable(f"cannot reach {address}: {why_not(error, address)}") from error
            raise
        link.ready = True
        return link

    @property
    def hello(self) -> Hello | None:
        return self.told if isinstance(self.told, Hello) else None

    def hand_over(self, request: bytes) -> asyncio.Future[Any]:
        """Send a command whose effect others wait for; they hear of it first."""
        if not self._pending and not self.closed.done():
            self._pending.append(self._nobody)
            request = AFTER_YOU + request
        return self.send(request)

    def send_asking(self, request: bytes) -> asyncio.Future[Any]:
        """Send to a node that takes a slot over: ASKING and the command leave together."""
        if self.closed.done():
            return self.send(request)
        if len(self._pending) >= IN_FLIGHT:  # the two must not be parted
            raise EngineUnavailable(f"too much is under way to {self.address}")
        self._pending.append(self._nobody)
        return self.send(ASKING + request)

    def retire(self) -> None:
        """Close as soon as everything under way is answered; nobody sends here any more."""
        if self._pending and not self.closed.done():
            self._loop.call_later(RETIRE, self.retire)
        else:
            self.abort()

    def send(self, request: bytes) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        if self.closed.done():
            future.set_exception(EngineUnavailable(f"the connection to {self.address} is closed"))
            return future
        if len(self._pending) >= IN_FLIGHT:
            self._overflow.append((request, future))
            return future
        self._put(request, future)
        return future

    def write(self, request: bytes) -> None:
        """Send what has no reply of its own: SUBSCRIBE and UNSUBSCRIBE are answered by pushes."""
        if self._transport is not None and not self.closed.done():
            self._transport.write(request)

    def _put(self, request: bytes, future: asyncio.Future[Any]) -> None:
        pending, out = self._pending, self._out
        lone = not pending or (len(pending) == 1 and pending[0] is self._nobody)
        if lone:
            self._progress = self._loop.time()
        pending.append(future)
        out.append(request)
        if self._fd >= 0 and (lone or len(out) >= BURST):
            self._write_now()
        if len(out) == 1:
            self._loop.call_soon(self._flush)

    def _write_now(self) -> None:
        """Let the server begin while this loop turn still makes commands: past the transport, if it has nothing."""
        transport = self._transport
        if transport is None or self.closed.done() or transport.get_write_buffer_size():
            return
        data = b"".join(self._out)
        try:
            sent = os.write(self._fd, data)
        except OSError:  # full, or gone: the turn's own flush will see
            return
        self._out.clear()
        self._arm()
        if sent < len(data):
            transport.write(data[sent:])

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not out or self._transport is None or self.closed.done():
            return
        self._arm()
        self._transport.write(b"".join(out))

    def _arm(self) -> None:
        if self._watching is None:
            self._watching = self._loop.call_later(self.address.timeout / 2, self._watch)

    def _watch(self) -> None:
        """One timer for all commands: replies come in order, so the oldest tells of all."""
        self._watching = None
        if not self._pending:
            return
        pause = self.address.timeout / 2
        if self._loop.time() - self._progress > self.address.timeout:
            if self._suspect:
                self.abort()
                return
            pause = LAST_LOOK  # the loop itself may have stood still, with the reply already here
            self._suspect = True
        self._watching = self._loop.call_later(pause, self._watch)

    def close(self) -> None:
        self.abort()

    def interrupt(self) -> None:
        """Give it up from another thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self.abort)

    def abort(self) -> None:
        """Give the connection up. Everything under way ends in OutcomeUnknown. Safe twice."""
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(None)

    # ── asyncio.Protocol ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if transport.get_extra_info("sslcontext") is None:
                self._fd = sock.fileno()
        if self.closed.done():  # given up while connecting
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        reader, pending = self._reader, self._pending
        self.heard = True
        self._progress = self._loop.time()
        self._suspect = False
        try:
            reader.feed(data)
            reply = reader.gets()
            while reply is not False:
                if self.on_push is not None and (is_push(reply) or isinstance(reply, Refusal)):
                    self.on_push(reply)
                else:
                    future = pending.popleft()
                    if not future.done():
                        future.set_result(reply)
                reply = reader.gets()
        except Exception:  # noqa: BLE001 - not RESP, or more replies than commands: trust nothing after it
            self.abort()
            return
        while self._overflow and len(pending) < IN_FLIGHT:
            request, future = self._overflow.popleft()
            if not future.done():
                self._put(request, future)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ready = False
        self._fd = -1
        if self.closed.done():
            return
        self.why = exc
        self.closed.set_result(None)
        if self._watching is not None:
            self._watching.cancel()
        unsent = len(self._out)
        while self._pending:
            future = self._pending.popleft()
            if future.done():
                continue
            if len(self._pending) < unsent:
                future.set_exception(EngineUnavailable(f"the connection to {self.address} was lost"))
            else:
                future.set_exception(OutcomeUnknown(f"the connection to {self.address} was lost; no reply came"))
        for _, future in self._overflow:
            if not future.done():
                future.set_exception(EngineUnavailable(f"the connection to {self.address} was lost"))
        self._overflow.clear()
        self._out.clear()


async def _last_words(address: Address, tls: ssl.SSLContext, loop: asyncio.AbstractEventLoop) -> BaseException | None:
    """Why a server hangs up after the handshake. It says so (that it wants a certificate, say) and resets the
    connection; whoever writes at that moment meets the reset first, and the loop drops what was not yet read. So
    reach it once more, and only listen.
    """
    link = AsyncLink(address, loop)
    try:
        async with asyncio.timeout(LAST_WORDS):
            await loop.create_connection(lambda: link, address.host, address.port, ssl=tls)
            await link.closed
    except (OSError, TimeoutError) as error:
        return error if isinstance(error, ssl.SSLError) else None
    finally:
        link.abort()
    return link.why
