"""Responses: what a handler may return besides JSON, and the writer that sends them over ASGI."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from backstay.http.asgi import Header, Message, Send
from backstay.http.problem import MEDIA_TYPE
from backstay.server.http.problem import Refusal

#: Headers of every response: browsers must neither guess its media type nor cache it.
SAFE: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)

encode_json = msgspec.json.Encoder(decimal_format="number").encode


class Stream:
    """A response body that is sent chunk by chunk."""

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], *, media_type: bytes, headers: dict[bytes, bytes] | None = None
    ) -> None:
        self.pieces = pieces
        self.media_type = media_type
        self.headers = headers or {}


class EventStream(Stream):
    """A stream of server-sent events."""

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        # `x-accel-buffering: no` stops nginx and other proxies from buffering the stream.
        super().__init__(
            pieces,
            media_type=b"text/event-stream",
            headers={b"cache-control": b"no-store", b"x-accel-buffering": b"no"},
        )


class Text(str):
    """A response body that is not JSON; the route names its media type."""

    __slots__ = ()


class Response:
    """A response whose status differs from the route's default."""

    __slots__ = ("status", "value")

    def __init__(self, status: int, value: object) -> None:
        self.status = status
        self.value = value


class ResponseWriter:
    """Sends the response of one request. `own`: headers that only this response gets (CORS). `head`: the request is a
    HEAD request, so the body is omitted.
    """

    __slots__ = ("_own", "_send", "head", "status")

    def __init__(self, send: Send, own: tuple[Header, ...], *, head: bool) -> None:
        self._send = send
        self._own = own
        self.head = head
        #: 0 until the response starts.
        self.status = 0

    async def send(self, status: int, media_type: bytes | None, body: bytes, *headers: Header) -> None:
        """Send a complete response."""
        fields = [*SAFE, *self._own, *headers, (b"content-length", b"%d" % len(body))]
        if media_type is not None:
            fields.append((b"content-type", media_type))
        elif status == 204:  # noqa: PLR2004 - a 204 has no content-length
            fields.pop()
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": fields})
        await self._send({"type": "http.response.body", "body": b"" if self.head else body})

    async def start(self, status: int, media_type: bytes, headers: dict[bytes, bytes]) -> None:
        """Start a streamed response; `send_chunk` and `finish` follow."""
        self.status = status
        safe = [field for field in SAFE if field[0] not in headers]
        fields = [*safe, *self._own, *headers.items(), (b"content-type", media_type)]
        await self._send({"type": "http.response.start", "status": status, "headers": fields})

    async def send_chunk(self, body: bytes) -> None:
        message: Message = {"type": "http.response.body", "body": body, "more_body": True}
        await self._send(message)

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def refuse(self, refusal: Refusal) -> None:
        """Send a refusal. Does nothing once a response has started: the client then sees a truncated body."""
        if self.status:
            return
        headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in refusal.headers.items()]
        await self.send(refusal.status, MEDIA_TYPE.encode(), encode_json(refusal.body), *headers)
