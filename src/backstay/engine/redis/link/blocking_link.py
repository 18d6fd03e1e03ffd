"""One blocking socket for a thread: it writes batches of commands and reads their replies."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

import hiredis

from backstay.engine.base import steady
from backstay.engine.redis.address import Address
from backstay.engine.redis.link.credentials import Credentials
from backstay.engine.redis.link.protocol import (
    ErrorReply,
    Handshake,
    Hello,
    describe_failure,
    is_push,
    new_reader,
    pack,
    sign_in,
    translate_error,
)
from backstay.engine.redis.link.tls import refusal as tls_refusal
from backstay.errors import EngineUnavailable, OutcomeUnknown

CHUNK = 65536
#: Seconds to read the TLS alert of a server that has closed the connection.
ALERT_PATIENCE = 0.1


class BlockingLink:
    """A connection that belongs to one thread. Any error closes it: a half-read reply must not be taken for the reply
    to the next command.
    """

    def __init__(
        self,
        address: Address,
        client_name: str,
        tls: ssl.SSLContext | None,
        patience: float | None = None,
        handshake: Handshake | None = None,
    ) -> None:
        """Connect and sign in. `handshake` replaces the sign-in."""
        patience = patience or address.connect_timeout
        self.address = address
        self._reader = new_reader()
        self._timeout = 0.0
        self._tls = tls is not None
        self._on_push: Callable[[list[Any]], None] | None = None
        self._sock: socket.socket | None = None
        self.ready = False
        #: The result of the handshake: a `Hello`, or the result of another one.
        self.handshake_result: Any = None
        try:
            self._sock = sock = self._open_socket(address, patience)
            if tls is not None:
                self._sock = sock = tls.wrap_socket(sock, server_hostname=address.host)
            started = steady()
            handshake = handshake or sign_in(address, client_name)
            batch = next(handshake)
            while True:
                replies: Any = batch.fetch() if isinstance(batch, Credentials) else self.call_many(batch, patience)
                try:
                    batch = handshake.send(replies)
                except StopIteration as done:
                    self.handshake_result = done.value
                    break
                started = steady()
            self.connected_at = (started + steady()) / 2
            self.ready = True
        except BaseException as error:
            self.close()
            # Only the cause of OutcomeUnknown comes from the server; a credential provider's error has other causes.
            if refusal := tls_refusal(error.__cause__ if isinstance(error, OutcomeUnknown) else error, address):
                raise refusal from error
            if isinstance(error, (OSError, OutcomeUnknown)):
                raise EngineUnavailable(f"cannot reach {address}: {describe_failure(error, address)}") from error
            raise

    @staticmethod
    def _open_socket(address: Address, patience: float) -> socket.socket:
        if address.path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            sock = socket.create_connection((address.host, address.port), timeout=patience)
        try:
            if address.path:
                sock.settimeout(patience)
                sock.connect(address.path)
            else:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            sock.close()
            raise
        return sock

    @property
    def hello(self) -> Hello | None:
        return self.handshake_result if isinstance(self.handshake_result, Hello) else None

    def fileno(self) -> int:
        return self._sock.fileno() if self._sock is not None else -1

    def call_many(
        self, requests: list[bytes], timeout: float | None = None, *, until: bytes | None = None, count: int = 0
    ) -> list[Any]:
        """Write all requests and read all replies. Raises OutcomeUnknown if a reply is missing. `until`: read up to
        this reply and return only the first one. `count`: the number of replies to read if the requests are already
        written.
        """
        sock = self._sock
        if sock is None:
            raise EngineUnavailable(f"the connection to {self.address} is closed")
        if timeout is None:
            timeout = self.address.timeout
        if timeout != self._timeout:
            self._set_timeout(sock, timeout)
        replies: list[Any] = []
        try:
            if requests:
                sock.sendall(b"".join(requests))
                count = len(requests)
            while True:
                data = sock.recv(CHUNK)
                if not data:
                    raise ConnectionResetError("closed by the server")
                self._reader.feed(data)
                self._parse(replies)
                if until is not None:
                    if until in replies:
                        return replies[:1]
                elif len(replies) == count:
                    return replies
                elif len(replies) > count:
                    raise ConnectionError("more replies than commands")
        except BaseException as error:
            self._close_after(sock, error)
            raise

    def begin(self, requests: list[bytes], timeout: float | None = None) -> None:
        """Write requests without reading. `finish` must follow and reads the replies."""
        sock = self._sock
        if sock is None:
            raise EngineUnavailable(f"the connection to {self.address} is closed")
        self._set_timeout(sock, timeout if timeout is not None else self.address.timeout)
        try:
            sock.sendall(b"".join(requests))
        except BaseException as error:
            self._close_after(sock, error)
            raise

    def finish(self, count: int, timeout: float | None = None) -> list[Any]:
        """Read the replies to the requests of `begin`. Raises OutcomeUnknown if a reply is missing."""
        return self.call_many([], timeout, count=count)

    def _close_after(self, sock: socket.socket, error: BaseException) -> None:
        """Close the link. Raises OutcomeUnknown; returns only for a KeyboardInterrupt and the like."""
        if isinstance(error, OSError):
            error = self._read_tls_alert(sock, error)
        self.close()
        if isinstance(error, Exception):
            why = "no reply in time" if isinstance(error, (TimeoutError, BlockingIOError)) else str(error)
            raise OutcomeUnknown(f"{self.address}: {why}") from error

    def _read_tls_alert(self, sock: socket.socket, error: OSError) -> OSError:
        """Return the server's TLS alert instead of `error`, if there is one: a write can fail before the alert is
        read.
        """
        if self._tls and not isinstance(error, TimeoutError):
            try:
                sock.settimeout(ALERT_PATIENCE)
                sock.recv(1)
            except ssl.SSLError as last:
                return last
            except OSError:
                pass
        return error

    def _set_timeout(self, sock: socket.socket, timeout: float) -> None:
        """Set the socket's time-out in the kernel: `settimeout` would cost a poll() before each send and receive."""
        self._timeout = timeout
        if self._tls:
            sock.settimeout(timeout)
            return
        sock.settimeout(None)
        value = struct.pack("@ll", int(timeout), int(timeout % 1 * 1_000_000) or 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def _parse(self, replies: list[Any]) -> None:
        """Parse all received data: messages go to `on_push`, replies to `replies`."""
        reader, on_push = self._reader, self._on_push
        reply = reader.gets()
        while reply is not False:
            if on_push is not None and is_push(reply):
                on_push(reply)
            else:
                replies.append(reply)
            reply = reader.gets()

    def subscribe(self, channel: str, on_push: Callable[[list[Any]], None]) -> None:
        """Subscribe to a channel, beside commands (RESP3 only). Returns once the server has confirmed it; raises
        EngineRefused if the ACL forbids the channel.
        """
        self._on_push = on_push
        # The confirmation is a message and a refusal is a reply: PONG proves that one of them has arrived before it.
        (reply,) = self.call_many([pack("SUBSCRIBE", channel) + pack("PING")], until=b"PONG")
        if isinstance(reply, ErrorReply):
            raise translate_error(reply, self.address)

    def take_pushes(self) -> None:
        """Deliver the messages that have arrived, without blocking. An error closes the link; the next command reports
        it.
        """
        if self._sock is None:
            return
        try:
            data = self._sock.recv(CHUNK, socket.MSG_DONTWAIT)
            replies: list[Any] = []
            self._reader.feed(data)
            self._parse(replies)
            if replies or not data:
                raise ConnectionError("closed by the server, or a reply without a command")
        except BlockingIOError:
            pass
        except (OSError, hiredis.ProtocolError):
            self.close()

    def write(self, request: bytes) -> None:
        """Send a command without a reply. Errors appear at the next `receive`."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.sendall(request)

    def receive(self, timeout: float) -> list[Any] | None:
        """Return the received messages, or None after `timeout`. Raises ConnectionError when the connection ends."""
        sock = self._sock
        if sock is None:
            raise ConnectionResetError("closed")
        if timeout != self._timeout:
            self._set_timeout(sock, timeout)
        try:
            data = sock.recv(CHUNK)
        except (TimeoutError, BlockingIOError):
            return None
        if not data:
            raise ConnectionResetError("closed by the server")
        self._reader.feed(data)
        replies: list[Any] = []
        self._parse(replies)
        return replies

    def close(self) -> None:
        self.ready = False
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def interrupt(self) -> None:
        """Shut the socket down from another thread: a blocked read returns, and the link's own thread closes it."""
        self.ready = False
        sock = self._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def shutdown(self) -> None:
        """Close from another thread: a blocked read returns."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self.close()

    def __del__(self) -> None:
        self.close()
