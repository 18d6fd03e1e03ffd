"""A plain socket for one thread: batches out, replies in."""

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
    Hello,
    Refusal,
    SignIn,
    is_push,
    new_reader,
    pack,
    refused,
    sign_in,
    why_not,
)
from backstay.engine.redis.link.tls import refusal as tls_refusal
from backstay.errors import EngineUnavailable, OutcomeUnknown

CHUNK = 65536
#: How long a server that has hung up is listened to.
LAST_WORDS = 0.1


class BlockingLink:
    """A connection that belongs to one thread. Any trouble closes it: a half-read reply must not meet a new command."""

    def __init__(
        self,
        address: Address,
        client_name: str,
        tls: ssl.SSLContext | None,
        patience: float | None = None,
        talk: SignIn | None = None,
    ) -> None:
        """`talk` is what to say instead of signing in."""
        patience = patience or address.connect_timeout
        self.address = address
        self._reader = new_reader()
        self._timeout = 0.0
        self._tls = tls is not None
        self._on_push: Callable[[list[Any]], None] | None = None
        self._sock: socket.socket | None = None
        self.ready = False
        #: What the sign-in, or what was said instead of it, came to.
        self.told: Any = None
        try:
            self._sock = sock = self._reach(address, patience)
            if tls is not None:
                self._sock = sock = tls.wrap_socket(sock, server_hostname=address.host)
            started = steady()
            talk = talk or sign_in(address, client_name)
            batch = next(talk)
            while True:
                replies: Any = batch.fetch() if isinstance(batch, Credentials) else self.call_many(batch, patience)
                try:
                    batch = talk.send(replies)
                except StopIteration as done:
                    self.told = done.value
                    break
                started = steady()
            self.connected_at = (started + steady()) / 2
            self.ready = True
        except BaseException as error:
            self.close()
            # What a credential provider stumbled over is not the server's.
            if refusal := tls_refusal(error.__cause__ if isinstance(error, OutcomeUnknown) else error, address):
                raise refusal from error
            if isinstance(error, (OSError, OutcomeUnknown)):
                raise EngineUnavailable(f"cannot reach {address}: {why_not(error, address)}") from error
            raise

    @staticmethod
    def _reach(address: Address, patience: float) -> socket.socket:
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
        return self.told if isinstance(self.told, Hello) else None

    def fileno(self) -> int:
        return self._sock.fileno() if self._sock is not None else -1

    def call_many(
        self, requests: list[bytes], timeout: float | None = None, *, until: bytes | None = None, count: int = 0
    ) -> list[Any]:
        """One write, all replies. Raises OutcomeUnknown when they do not all come. `until`: the reply that ends it,
        of which only the first is answered. `count`: how many to read, where all is written already.
        """
        sock = self._sock
        if sock is None:
            raise EngineUnavailable(f"the connection to {self.address} is closed")
        if timeout is None:
            timeout = self.address.timeout
        if timeout != self._timeout:
            self._within(sock, timeout)
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
                self._gather(replies)
                if until is not None:
                    if until in replies:
                        return replies[:1]
                elif len(replies) == count:
                    return replies
                elif len(replies) > count:
                    raise ConnectionError("more replies than commands")
        except BaseException as error:
            self._give_up(sock, error)
            raise

    def begin(self, requests: list[bytes], timeout: float | None = None) -> None:
        """Write only. The replies are for the `finish` that must come next."""
        sock = self._sock
        if sock is None:
            raise EngineUnavailable(f"the connection to {self.address} is closed")
        self._within(sock, timeout if timeout is not None else self.address.timeout)
        try:
            sock.sendall(b"".join(requests))
        except BaseException as error:
            self._give_up(sock, error)
            raise

    def finish(self, count: int, timeout: float | None = None) -> list[Any]:
        """The replies to what `begin` wrote. Raises OutcomeUnknown when they do not all come."""
        return self.call_many([], timeout, count=count)

    def _give_up(self, sock: socket.socket, error: BaseException) -> None:
        """Close. Raises OutcomeUnknown, or returns when somebody interrupts us."""
        if isinstance(error, OSError):
            error = self._last_words(sock, error)
        self.close()
        if isinstance(error, Exception):
            why = "no reply in time" if isinstance(error, (TimeoutError, BlockingIOError)) else str(error)
            raise OutcomeUnknown(f"{self.address}: {why}") from error

    def _last_words(self, sock: socket.socket, error: OSError) -> OSError:
        """With TLS a server says why it hangs up, and we may find the line closed before we have read that."""
        if self._tls and not isinstance(error, TimeoutError):
            try:
                sock.settimeout(LAST_WORDS)
                sock.recv(1)
            except ssl.SSLError as last:
                return last
            except OSError:
                pass
        return error

    def _within(self, sock: socket.socket, timeout: float) -> None:
        """How long the socket waits. The kernel's own time-out spares the poll that Python's needs before each call."""
        self._timeout = timeout
        if self._tls:
            sock.settimeout(timeout)
            return
        sock.settimeout(None)
        value = struct.pack("@ll", int(timeout), int(timeout % 1 * 1_000_000) or 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def _gather(self, replies: list[Any]) -> None:
        """Everything that has come: messages to whoever listens here, the rest to `replies`."""
        reader, on_push = self._reader, self._on_push
        reply = reader.gets()
        while reply is not False:
            if on_push is not None and is_push(reply):
                on_push(reply)
            else:
                replies.append(reply)
            reply = reader.gets()

    def subscribe(self, channel: str, on_push: Callable[[list[Any]], None]) -> None:
        """Hear a channel between commands (RESP3 only). Returns when the server has confirmed it; raises
        EngineRefused when it may not be heard.
        """
        self._on_push = on_push
        # The confirmation is a message, a refusal is a reply: PONG tells that one of the two has come.
        (answer,) = self.call_many([pack("SUBSCRIBE", channel) + pack("PING")], until=b"PONG")
        if isinstance(answer, Refusal):
            raise refused(answer, self.address)

    def take_pushes(self) -> None:
        """Hand over the messages that are here. Trouble closes the link; the next command tells."""
        if self._sock is None:
            return
        try:
            data = self._sock.recv(CHUNK, socket.MSG_DONTWAIT)
            replies: list[Any] = []
            self._reader.feed(data)
            self._gather(replies)
            if replies or not data:
                raise ConnectionError("closed by the server, or a reply that nobody asked for")
        except BlockingIOError:
            pass
        except (OSError, hiredis.ProtocolError):
            self.close()

    def write(self, request: bytes) -> None:
        """Send what has no reply of its own. Trouble shows at the next receive."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.sendall(request)

    def receive(self, timeout: float) -> list[Any] | None:
        """What came, or None when nothing did within `timeout`. Raises ConnectionError at the end."""
        sock = self._sock
        if sock is None:
            raise ConnectionResetError("closed")
        if timeout != self._timeout:
            self._within(sock, timeout)
        try:
            data = sock.recv(CHUNK)
        except (TimeoutError, BlockingIOError):
            return None
        if not data:
            raise ConnectionResetError("closed by the server")
        self._reader.feed(data)
        replies: list[Any] = []
        self._gather(replies)
        return replies

    def close(self) -> None:
        self.ready = False
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def interrupt(self) -> None:
        """Give it up from another thread: whoever reads here wakes up, and its own thread closes it."""
        self.ready = False
        sock = self._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def shutdown(self) -> None:
        """Close from another thread: whoever reads here wakes up."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self.close()

    def __del__(self) -> None:
        self.close()
