"""uvicorn's HTTP protocols with a timeout and a size limit for the request head (slowloris), and RFC 9457 errors."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from typing import TYPE_CHECKING, Any, cast

from backstay.http.problem import MEDIA_TYPE, problem

if TYPE_CHECKING:
    from backstay.server.settings import ServerSettings


def _refusal(status: int, phrase: str, detail: str) -> bytes:
    body = json.dumps(problem(status, detail)).encode()
    return (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    ).encode() + body


BAD = _refusal(400, "Bad Request", "the request is not valid HTTP/1.1")
SLOW = _refusal(408, "Request Timeout", "the head of the request did not arrive in time")
LONG = _refusal(431, "Request Header Fields Too Large", "the head of the request is too long")


class HeadLimits:
    """A mixin for uvicorn's protocol classes: closes a connection whose request head is too slow or too long."""

    head_timeout = 10.0
    max_head = 32 * 1024

    # Attributes that uvicorn's protocol classes define.
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    cycle: Any

    _timer: asyncio.TimerHandle | None = None
    _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType] - of uvicorn's protocol
        self._timer = self.loop.call_later(self.head_timeout, self._on_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType] - of uvicorn's protocol

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType] - of uvicorn's protocol
        if self.cycle is not None and not self.cycle.response_complete:
            if self._timer is not None:
                self._stop_timer()
            self._head = 0
            return
        # The request's head (request line and headers) is still incomplete.
        self._head += len(data)
        if self._head > self.max_head:
            self._close_with(LONG)
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self.head_timeout, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        self._close_with(SLOW if self._head else b"")

    def _close_with(self, response: bytes) -> None:
        if not self.transport.is_closing():
            if response:
                self.transport.write(response)
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._close_with(BAD)


def make_protocol(settings: ServerSettings) -> type[asyncio.Protocol]:
    """Make the protocol class over uvicorn's `httptools` parser where that is installed, else over pure-Python h11."""
    if importlib.util.find_spec("httptools") is not None:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Base
    else:
        from uvicorn.protocols.http.h11_impl import H11Protocol as Base  # type: ignore[assignment]
    limits = {"head_timeout": settings.head_timeout, "max_head": settings.max_headers}
    return cast("type[asyncio.Protocol]", type("LimitedProtocol", (HeadLimits, Base), limits))
