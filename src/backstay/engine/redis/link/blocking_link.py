"""One blocking socket for a thread: it writes batches of commands and reads their replies."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import struct
import threading
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

import hiredis

from backstay.engine.base import steady
from backstay.engine.redis.address import Address
from backstay.engine.redis.link.credentials import Credentials
from backstay.engine.redis.link.protocol import (
    IDLE,
    ErrorReply,
    Handshake,
    Hello,
    describe_failure,
    is_push,
    new_reader,
    pack,
    sign_in,
    translate_error,
    watch_closing,
)
from backstay.engine.redis.link.tls import tls_refusal
from backstay.errors import EngineUnavailable, OutcomeUnknown

CHUNK = 65536
#: Seconds to read the TLS alert of a server that has closed the connection.
ALERT_PATIENCE = 0.1


class NothingSent(ConnectionError):
    """The connection was lost before anything of a request was written to it."""


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program raised the error while this thread used the socket. The TimeoutError of a
    time limit (SIGALRM) is for the program; an equal error of the socket is a lost reply, after which the command is
    sent again.
    """
    if threading.current_thread() is not threading.main_thread():
        return False  # handlers run in the main thread only
    codes = {_code_of(handler) for number in signal.valid_signals() if callable(handler := signal.getsignal(number))}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a function, method, partial or callable object; None if it is not written in Python."""
    function = getattr(handler, "func", handler)  # the function of a functools.partial
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)


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
        """Connect, then run the handshake: `handshake`, by default `sign_in`, which authenticates. `patience`: the
        time-out in seconds of the connect, and of each round trip of the handshake; default: the address's
        `connect_timeout`.
        """
        patience = patience or address.connect_timeout
        self.address = address
        self._reader = new_reader()
        self._timeout = 0.0
        self._tls = tls is not None
        self._on_push: Callable[[list[Any]], None] | None = None
        self._sock: socket.socket | None = None
        self._closed_by_server: Callable[[], bool] = lambda: False
        self._checked_at = 0.0
        self.ready = False
        #: What the handshake returned: a `Hello`, if it was `sign_in`.
        self.handshake_result: Any = None
        try:
            self._sock = sock = self._open_socket(address, patience)
            self._closed_by_server = watch_closing(sock.fileno())
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
            if raised_by_signal_handler(error):
                raise
            # Look for a TLS error. `call_many` wraps an error of the socket in an OutcomeUnknown, so look at its cause.
            # Do not look at the causes of other errors: they may come from elsewhere, such as a credential provider.
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

    def is_usable(self) -> bool:
        """Whether a command can be sent. Closes an idle connection that the server has closed."""
        now = steady()
        if now - self._checked_at > IDLE and self.ready and self._closed_by_server():
            self.close()
        self._checked_at = now
        return self.ready

    def fileno(self) -> int:
        return self._sock.fileno() if self._sock is not None else -1

    def call_many(
        self, requests: list[bytes], timeout: float | None = None, *, until: bytes | None = None, count: int = 0
    ) -> list[Any]:
        """Write all requests and read their replies. Raises OutcomeUnknown if a reply is missing.

        until: If given, read replies until one equals `until`, and return only the first of them. Default: read and
            return one reply per request.
        count: How many replies to read if `requests` is empty, because `begin` has already written the requests.
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
                self._write_all(sock, b"".join(requests))
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
            self._write_all(sock, b"".join(requests))
        except BaseException as error:
            self._close_after(sock, error)
            raise

    def _write_all(self, sock: socket.socket, data: bytes) -> None:
        """Write `data`. Raises NothingSent if the connection was lost before its first byte was written."""
        try:
            sent = sock.send(data)
        except ConnectionError as error:
            if self._tls:  # an earlier TLS record of `data` may have been written
                raise
            raise NothingSent(str(error)) from error
        if sent < len(data):
            sock.sendall(data[sent:])

    def finish(self, count: int, timeout: float | None = None) -> list[Any]:
        """Read the replies to the requests of `begin`. Raises OutcomeUnknown if a reply is missing."""
        return self.call_many([], timeout, count=count)

    def _close_after(self, sock: socket.socket, error: BaseException) -> None:
        """Close the link after `error` and raise OutcomeUnknown from it, or EngineUnavailable if nothing was sent. Only
        return if a signal handler raised the error (a KeyboardInterrupt, say): the caller then raises it unchanged.
        """
        if isinstance(error, NothingSent):
            self.close()
            raise EngineUnavailable(f"the connection to {self.address} was lost: {error}") from error
        interrupted = not isinstance(error, Exception) or raised_by_signal_handler(error)
        if isinstance(error, OSError) and not interrupted:
            error = self._read_tls_alert(sock, error)
        self.close()
        if isinstance(error, Exception) and not interrupted:
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
        """Parse all received data: Pub/Sub messages go to `on_push`, replies to commands to `replies`."""
        reader, on_push = self._reader, self._on_push
        reply = reader.gets()
        while reply is not False:
            if on_push is not None and is_push(reply):
                on_push(reply)
            else:
                replies.append(reply)
            reply = reader.gets()

    def subscribe(self, channel: str, on_push: Callable[[list[Any]], None]) -> None:
        """Subscribe to a Pub/Sub channel on this connection, which still carries commands (RESP3 only). Returns once
        the server has confirmed the subscription; raises EngineRefused if the ACL forbids the channel.
        """
        self._on_push = on_push
        # A confirmation arrives as a message and a refusal as a reply. Either one arrives before the PONG.
        (reply,) = self.call_many([pack("SUBSCRIBE", channel) + pack("PING")], until=b"PONG")
        if isinstance(reply, ErrorReply):
            raise translate_error(reply, self.address)

    def take_pushes(self) -> None:
        """Pass the Pub/Sub messages that have arrived to `on_push`, without blocking. An error closes the link; the
        next command reports it.
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
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            if raised_by_signal_handler(error):
                raise

    def write(self, request: bytes) -> None:
        """Send a command that has no reply. If sending fails, nothing is raised here, but by the next `receive`."""
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
        """Shut the socket down from another thread: a blocked read returns, and the link's own thread closes the
        socket.
        """
        self.ready = False
        sock = self._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def shutdown(self) -> None:
        """Shut the socket down and close it, from another thread: a blocked read returns."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self.close()

    def __del__(self) -> None:
        self.close()
