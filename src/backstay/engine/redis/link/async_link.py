"""One multiplexed connection for an event loop: all commands of one loop iteration are sent in one write."""

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
    ASKING,
    PING_FIRST,
    ErrorReply,
    Handshake,
    Hello,
    describe_failure,
    is_push,
    new_reader,
    sign_in,
)
from backstay.engine.redis.link.tls import refusal as tls_refusal
from backstay.errors import EngineUnavailable, OutcomeUnknown

#: The largest number of commands in flight. Further ones wait in this process, where a cancellation removes them.
IN_FLIGHT = 10_000
#: Extra seconds after the time-out before the connection is closed: the event loop may have been blocked.
GRACE = 0.05
#: A single command is sent at once. After this many in one loop iteration they are sent early, to keep the server busy.
BURST = 16
#: Seconds between two checks whether a retired link has no pending replies.
RETIRE = 0.1
#: Seconds to read the TLS alert of a server that closes the connection.
ALERT_PATIENCE = 1.0


class AsyncLink(asyncio.Protocol):
    """A connection. Replies resolve futures in order; the reply to a cancelled future is read and dropped."""

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.ready = False
        #: The result of the handshake: a `Hello`, or the result of another one.
        self.handshake_result: Any = None
        #: The exception that ended the connection, if known.
        self.why: Exception | None = None
        #: Whether the server has sent anything.
        self.has_received = False
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
        #: A cancelled future for replies that are dropped.
        self._discarded: asyncio.Future[Any] = loop.create_future()
        self._discarded.cancel()
        #: For a subscription: receives messages and error replies.
        self.on_push: Callable[[list[Any] | ErrorReply], None] | None = None

    @classmethod
    async def connect(
        cls, address: Address, client_name: str, tls: ssl.SSLContext | None, handshake: Handshake | None = None
    ) -> AsyncLink:
        """Connect and sign in within `connect_timeout`. `handshake` replaces the sign-in."""
        loop = asyncio.get_running_loop()
        link = cls(address, loop)
        try:
            async with asyncio.timeout(address.connect_timeout):
                if address.path:
                    await loop.create_unix_connection(lambda: link, address.path)
                else:
                    await loop.create_connection(lambda: link, address.host, address.port, ssl=tls)
                started = steady()
                handshake = handshake or sign_in(address, client_name)
                batch = next(handshake)
                while True:
                    if isinstance(batch, Credentials):
                        replies: Any = await batch.fetch_async()
                    else:
                        replies = await asyncio.gather(*[link.send(command) for command in batch])
                    try:
                        batch = handshake.send(replies)
                    except StopIteration as done:
                        link.handshake_result = done.value
                        break
                    started = steady()
                link.connected_at = (started + steady()) / 2
        except BaseException as error:
            link.abort()
            why: BaseException = link.why or error
            if tls is not None and not link.has_received and isinstance(why, (ConnectionError, OutcomeUnknown)):
                why = await _read_tls_alert(address, tls, loop) or why
            if refusal := tls_refusal(why, address):
                raise refusal from error
            if isinstance(error, (OSError, TimeoutError, OutcomeUnknown)):
                raise EngineUnavailable(f"cannot reach {address}: {describe_failure(error, address)}") from error
            raise
        link.ready = True
        return link

    @property
    def hello(self) -> Hello | None:
        return self.handshake_result if isinstance(self.handshake_result, Hello) else None

    def send_after_ping(self, request: bytes) -> asyncio.Future[Any]:
        """Send a command that wakes waiters, so that they are notified before this caller (`PING_FIRST`)."""
        if not self._pending and not self.closed.done():
            self._pending.append(self._discarded)
            request = PING_FIRST + request
        return self.send(request)

    def send_asking(self, request: bytes) -> asyncio.Future[Any]:
        """Send to a node that imports a slot: ASKING and the command in one write."""
        if self.closed.done():
            return self.send(request)
        if len(self._pending) >= IN_FLIGHT:  # ASKING and its command must not be separated
            raise EngineUnavailable(f"too many commands in flight to {self.address}")
        self._pending.append(self._discarded)
        return self.send(ASKING + request)

    def retire(self) -> None:
        """Close once all pending replies have arrived. Callers must send nothing more."""
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
        """Send a command without a reply: SUBSCRIBE and UNSUBSCRIBE are confirmed by messages."""
        if self._transport is not None and not self.closed.done():
            self._transport.write(request)

    def _put(self, request: bytes, future: asyncio.Future[Any]) -> None:
        pending, out = self._pending, self._out
        is_first = not pending or (len(pending) == 1 and pending[0] is self._discarded)
        if is_first:
            self._progress = self._loop.time()
        pending.append(future)
        out.append(request)
        if self._fd >= 0 and (is_first or len(out) >= BURST):
            self._write_now()
        if len(out) == 1:
            self._loop.call_soon(self._flush)

    def _write_now(self) -> None:
        """Write to the socket before the loop iteration ends, so that the server can start. Bypasses the transport,
        which is safe only while its buffer is empty.
        """
        transport = self._transport
        if transport is None or self.closed.done() or transport.get_write_buffer_size():
            return
        data = b"".join(self._out)
        try:
            sent = os.write(self._fd, data)
        except OSError:  # the buffer is full or the connection lost: `_flush` handles it
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
        """Close the connection if no reply arrives in time. One timer is enough, because replies come in order."""
        self._watching = None
        if not self._pending:
            return
        pause = self.address.timeout / 2
        if self._loop.time() - self._progress > self.address.timeout:
            if self._suspect:
                self.abort()
                return
            pause = GRACE  # if the loop was blocked, the reply may be in the socket's buffer
            self._suspect = True
        self._watching = self._loop.call_later(pause, self._watch)

    def close(self) -> None:
        self.abort()

    def interrupt(self) -> None:
        """Close the connection from another thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self.abort)

    def abort(self) -> None:
        """Close the connection. All pending commands fail with OutcomeUnknown. Safe to call twice."""
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
        if self.closed.done():  # aborted while connecting
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        reader, pending = self._reader, self._pending
        self.has_received = True
        self._progress = self._loop.time()
        self._suspect = False
        try:
            reader.feed(data)
            reply = reader.gets()
            while reply is not False:
                if self.on_push is not None and (is_push(reply) or isinstance(reply, ErrorReply)):
                    self.on_push(reply)
                else:
                    future = pending.popleft()
                    if not future.done():
                        future.set_result(reply)
                reply = reader.gets()
        except Exception:  # noqa: BLE001 - invalid RESP, or more replies than commands: replies no longer match
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


async def _read_tls_alert(
    address: Address, tls: ssl.SSLContext, loop: asyncio.AbstractEventLoop
) -> BaseException | None:
    """Return the TLS alert with which a server closes connections after the handshake (it requires a client
    certificate, for example). A client that writes at that moment sees only the reset, and asyncio drops the unread
    alert. So this connects once more and only reads.
    """
    link = AsyncLink(address, loop)
    try:
        async with asyncio.timeout(ALERT_PATIENCE):
            await loop.create_connection(lambda: link, address.host, address.port, ssl=tls)
            await link.closed
    except (OSError, TimeoutError) as error:
        return error if isinstance(error, ssl.SSLError) else None
    finally:
        link.abort()
    return link.why
