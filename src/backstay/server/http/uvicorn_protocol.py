"""Connections: uvicorn's own protocols, with patience for the head of a request and bounds for it, and refusals that
are problems like all others.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from typing import TYPE_CHECKING, Any, cast

from backstay.http.problem import MEDIA_TYPE, problem

if TYPE_CHECKING:
    from backstay.server.settings import Settings


def _refusal(status: int, phrase: str, detail: str) -> bytes:
    body = json.dumps(problem(status, detail)).encode()
    return (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    ).encode() + body


BAD = _refusal(400, "Bad Request", "this is not HTTP as this server speaks it")
SLOW = _refusal(408, "Request Timeout", "the head of the request did not come in time")
LONG = _refusal(431, "Request Header Fields Too Large", "the head of the request is too long")


class Patience:
    """What both of uvicorn's protocols get in front. A client that says nothing, or too much, is hung up on."""

    patience = 10.0
    most = 32 * 1024

    # Of the protocol behind.
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    cycle: Any

    _timer: asyncio.TimerHandle | None = None
    _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType] - the protocol's
        self._timer = self.loop.call_later(self.patience, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType] - the same

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType] - the same
        if self.cycle is not None and not self.cycle.response_complete:
            if self._timer is not None:
                self._stop()
            self._head = 0
            return
        # A head that has not ended yet.
        self._head += len(data)
        if self._head > self.most:
            self._hang_up(LONG)
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self.patience, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self._hang_up(SLOW if self._head else b"")

    def _hang_up(self, words: bytes) -> None:
        if not self.transport.is_closing():
            if words:
                self.transport.write(words)
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._hang_up(BAD)


def protocol(settings: Settings) -> type[asyncio.Protocol]:
    """The quick parser where it is installed (`httptools`), else the one in pure Python."""
    if importlib.util.find_spec("httptools") is not None:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Base
    else:
        from uvicorn.protocols.http.h11_impl import H11Protocol as Base  # type: ignore[assignment]
    bounds = {"patience": settings.head_patience, "most": settings.max_headers}
    return cast("type[asyncio.Protocol]", type("PatientProtocol", (Patience, Base), bounds))
