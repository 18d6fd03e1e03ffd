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
    IDLE,
    PING_FIRST,
    ErrorReply,
    Handshake,
    Hello,
    describe_failure,
    is_push,
    new_reader,
    sign_in,
    watch_closing,
)
from backstay.engine.redis.link.tls import tls_refusal
from backstay.errors import EngineUnavailable, OutcomeUnknown

#: The largest number of commands in flight. Further ones wait in this process, where a cancellation removes them.
IN_FLIGHT = 10_000
#: Seconds that the connection stays open after a reply has timed out. If the event loop was blocked, the reply may have
#: arrived, and the loop can still read it in this time.
GRACE = 0.05
#: Commands are sent in one write at the end of the loop iteration. They are sent earlier if no command is in flight, or
#: if this many have collected, so that the server is not idle.
BURST = 16
#: Seconds between two checks whether all replies of a retired link have arrived.
RETIRE = 0.1
#: The longest time (seconds) to wait for the TLS alert of a server that closed the connection (`_read_tls_alert`).
ALERT_PATIENCE = 1.0


class AsyncLink(asyncio.Protocol):
    """A connection that the tasks of one event loop share. Each command has a future, and replies resolve the futures
    in the order of the commands. If a future was cancelled, its reply is read and dropped.
    """

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.ready = False
        #: What the handshake of `connect` returned. The default handshake, `sign_in`, returns a `Hello`.
        self.handshake_result: Any = None
        #: The exception that ended the connection, if known.
        self.why: Exception | None = None
        #: Whether the server has sent any bytes on this connection.
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
        self._closed_by_server: Callable[[], bool] = lambda: False
        self._watching: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = loop.create_future()
        #: A cancelled future. It stands for commands whose reply is not needed (PING, ASKING), so the reply is dropped.
        self._discarded: asyncio.Future[Any] = loop.create_future()
        self._discarded.cancel()
        #: Set only on the link of a hub's subscription: called with each Pub/Sub message and each error reply.
        self.on_push: Callable[[list[Any] | ErrorReply], None] | None = None

    @classmethod
    async def connect(
        cls, address: Address, client_name: str, tls: ssl.SSLContext | None, handshake: Handshake | None = None
    ) -> AsyncLink:
        """Connect and authenticate within `connect_timeout`. `handshake` is a generator of the first commands to send;
        by default `sign_in`, which authenticates.
        """
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

    def is_usable(self) -> bool:
        """Whether a command can be sent. Closes an idle connection that the server has closed, which the event loop may
        not have noticed yet.
        """
        if not self.ready:
            return False
        if not self._pending and self._loop.time() - self._progress > IDLE and self._closed_by_server():
            self.abort()
        return self.ready

    def send_after_ping(self, request: bytes) -> asyncio.Future[Any]:
        """Send a command that notifies waiting clients, such as a release. A PING is sent before it, so that the server
        sends these notifications before its reply to this client (see `PING_FIRST`).
        """
        if not self._pending and not self.closed.done():
            self._pending.append(self._discarded)
            request = PING_FIRST + request
        return self.send(request)

    def send_asking(self, request: bytes) -> asyncio.Future[Any]:
        """Send a command after an ASK redirect, to the node to which its slot is being migrated: ASKING and the command
        in one write.
        """
        if self.closed.done():
            return self.send(request)
        if len(self._pending) >= IN_FLIGHT:  # the command would be queued, and not sent right after its ASKING
            raise EngineUnavailable(f"too many commands in flight to {self.address}")
        self._pending.append(self._discarded)
        return self.send(ASKING + request)

    def retire(self) -> None:
        """Close the link once all pending replies have arrived. Callers must send no further commands."""
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
        """Send a command that has no reply: SUBSCRIBE and UNSUBSCRIBE are confirmed by messages."""
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
        """Write the collected commands now, not at the end of the loop iteration, so that the server can start on them.
        This writes to the socket directly. It does nothing while asyncio's transport still has unsent bytes, because
        those must be sent first.
        """
        transport = self._transport
        if transport is None or self.closed.done() or transport.get_write_buffer_size():
            return
        data = b"".join(self._out)
        try:
            sent = os.write(self._fd, data)
        except BlockingIOError:  # the buffer is full: `_flush` hands the data to the transport
            return
        except OSError:  # the connection is lost, and nothing of `data` was sent
            self.abort()
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
        """Close the connection if commands are pending and no reply has arrived for `address.timeout` seconds. One
        timer for all commands is enough, because replies come in order.
        """
        self._watching = None
        if not self._pending:
            return
        pause = self.address.timeout / 2
        if self._loop.time() - self._progress > self.address.timeout:
            if self._suspect:
                self.abort()
                return
            pause = GRACE  # the loop may have been blocked: let it read a reply that has arrived already
            self._suspect = True
        self._watching = self._loop.call_later(pause, self._watch)

    def close(self) -> None:
        self.abort()

    def interrupt(self) -> None:
        """Close the connection; may be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop was closed before
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
            self._closed_by_server = watch_closing(sock.fileno())
            if transport.get_extra_info("sslcontext") is None:
                self._fd = sock.fileno()
        if self.closed.done():  # `abort` was called while connecting
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
        except Exception:  # noqa: BLE001 - after invalid RESP or an extra reply, replies no longer match their commands
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
    """Return the TLS alert with which a server closes connections after the handshake, if it requires a client
    certificate, for example. A client that is writing at that moment sees only a connection reset, and asyncio drops
    the unread alert. So this connects a second time and only reads.
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
