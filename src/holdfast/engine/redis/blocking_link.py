"""A plain socket for one thread: batches out, replies in."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Any

from holdfast.engine.base import steady
from holdfast.engine.redis.address import Address
from holdfast.engine.redis.link import Hello, new_reader, sign_in
from holdfast.errors import EngineUnavailable, OutcomeUnknown

CHUNK = 65536


class BlockingLink:
    """A connection that belongs to one thread. Any trouble closes it: a half-read reply must not meet a new command."""

    hello: Hello

    def __init__(
        self, address: Address, client_name: str, tls: ssl.SSLContext | None, patience: float | None = None
    ) -> None:
        patience = patience or address.connect_timeout
        self.address = address
        self._reader = new_reader()
        self._timeout: float | None = patience
        self._sock: socket.socket | None = None
        try:
            sock = socket.create_connection((address.host, address.port), timeout=patience)
            self._sock = sock
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._sock = sock = tls.wrap_socket(sock, server_hostname=address.host)
            started = steady()
            talk = sign_in(address, client_name)
            batch = next(talk)
            while True:
                replies = self.call_many(batch, patience)
                try:
                    batch = talk.send(replies)
                except StopIteration as done:
                    self.hello = done.value
                    break
                started = steady()
            self.connected_at = (started + steady()) / 2
            self._timeout = None
            sock.settimeout(address.timeout)
        except BaseException as error:
            self.close()
            if isinstance(error, (OSError, OutcomeUnknown)):
                why = "no answer in time" if isinstance(error, TimeoutError) else str(error)
                raise EngineUnavailable(f"cannot reach {address}: {why}") from error
            raise

    @property
    def ready(self) -> bool:
        return self._sock is not None

    def fileno(self) -> int:
        return self._sock.fileno() if self._sock is not None else -1

    def call_many(self, requests: list[bytes], timeout: float | None = None) -> list[Any]:
        """One write, all replies. Raises OutcomeUnknown when they do not all come."""
        sock = self._sock
        if sock is None:
            raise EngineUnavailable(f"the connection to {self.address} is closed")
        if timeout != self._timeout:
            self._timeout = timeout
            sock.settimeout(timeout if timeout is not None else self.address.timeout)
        reader = self._reader
        replies: list[Any] = []
        try:
            sock.sendall(requests[0] if len(requests) == 1 else b"".join(requests))
            while True:
                reply = reader.gets()
                while reply is not False:
                    replies.append(reply)
                    reply = reader.gets()
                if len(replies) == len(requests):
                    return replies
                if len(replies) > len(requests):
                    raise ConnectionError("more replies than commands")
                data = sock.recv(CHUNK)
                if not data:
                    raise ConnectionResetError("closed by the server")
                reader.feed(data)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                why = "no reply in time" if isinstance(error, TimeoutError) else str(error)
                raise OutcomeUnknown(f"{self.address}: {why}") from error
            raise

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
            self._timeout = timeout
            sock.settimeout(timeout)
        try:
            data = sock.recv(CHUNK)
        except TimeoutError:
            return None
        if not data:
            raise ConnectionResetError("closed by the server")
        self._reader.feed(data)
        replies: list[Any] = []
        reply = self._reader.gets()
        while reply is not False:
            replies.append(reply)
            reply = self._reader.gets()
        return replies

    def close(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def shutdown(self) -> None:
        """Close from another thread: whoever reads here wakes up."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self.close()

    def __del__(self) -> None:
        self.close()
