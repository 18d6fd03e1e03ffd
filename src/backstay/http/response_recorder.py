"""Run an ASGI application for one request, record its response, and hold back the last message until the response is
stored.

Body chunks are recorded, and forwarded as the application sends them. Only the last message waits, so a client that has
received a complete response can rely on the response being stored. If the client disconnects, the application
still runs to its end, so that the client gets the whole response when it retries.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from backstay.errors import CorruptRecord
from backstay.http.asgi import App, Header, Message, Receive, Scope, Send

#: The version of the stored format.
VERSION = 1
#: The status of a stored response without content: the original was too large to store.
TOO_LARGE = 0
#: ASGI extensions whose messages cannot be recorded. They are hidden from the application, which then sends ordinary
#: body messages.
UNRECORDABLE = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers", "http.response.push")


#: Headers that are sent once and not stored. A replayed session cookie would undo a later login or logout, and the
#: store would hold a credential.
NEVER_STORED = (b"set-cookie",)


class StoredResponse(msgspec.Struct, frozen=True, array_like=True):
    """A response as it is stored, byte for byte, except the headers `NEVER_STORED`."""

    version: int
    status: int
    headers: tuple[Header, ...] = ()
    body: bytes = b""


_DECODER = msgspec.msgpack.Decoder(StoredResponse)


def decode_response(name: str, raw: bytes) -> StoredResponse:
    """Decode a stored response. Raises CorruptRecord if it is damaged or of another version."""
    try:
        response = _DECODER.decode(raw)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"the response stored for {name!r} cannot be decoded: {error}") from error
    if response.version != VERSION:
        raise CorruptRecord(
            f"the response stored for {name!r} has version {response.version}, this process supports {VERSION}"
        )
    return response


class ResponseNotStorable(Exception):
    """The response must not be stored: a retryable status, a failed application, or no complete response."""


class ResponseRecorder:
    """Calls the application for one request and records its response. Used by one task."""

    def __init__(self, app: App, scope: Scope, body: bytes, receive: Receive, send: Send, max_size: int) -> None:
        offered: dict[str, Any] = scope.get("extensions") or {}
        extensions = {name: value for name, value in offered.items() if name not in UNRECORDABLE}
        self._app = app
        self._scope: Scope = {**scope, "extensions": extensions}
        self._body: bytes | None = body
        self._client_receive = receive
        self._client_send = send
        #: The largest body in bytes that is recorded.
        self._max_size = max_size
        self._start: Message | None = None
        self._status = TOO_LARGE
        self._headers: tuple[Header, ...] = ()
        self._chunks: list[bytes] = []
        self._size = 0
        self._last: Message | None = None
        loop = asyncio.get_running_loop()
        self._complete: asyncio.Future[None] = loop.create_future()
        self._released: asyncio.Future[None] = loop.create_future()
        self._task: asyncio.Task[None] | None = None
        #: Whether the application was called.
        self.was_called = False
        #: Whether a part of the response was sent to the client.
        self.has_sent = False
        self._is_disconnected = False

    async def run_app(self) -> bytes:
        """Call the application and wait until its response is complete. Returns the encoded response; its last message
        is not sent yet. Raises ResponseNotStorable.
        """
        self.was_called = True
        task = self._task = asyncio.create_task(self._call())
        task.add_done_callback(lambda _: self._mark_complete())
        try:
            await asyncio.shield(self._complete)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if self._last is None or _is_retryable(self._status):
            raise ResponseNotStorable
        stored = StoredResponse(VERSION, self._status, self._headers, b"".join(self._chunks))
        return msgspec.msgpack.encode(stored if self._size <= self._max_size else StoredResponse(VERSION, TOO_LARGE))

    async def _call(self) -> None:
        await self._app(self._scope, self._receive, self._send)

    def _mark_complete(self) -> None:
        if not self._complete.done():
            self._complete.set_result(None)

    async def _receive(self) -> Message:
        """The application's `receive`. The first call returns the request's body. Later calls wait until `release`
        is called (by `finish` or `stop`, for example); then they return the client's next message.
        """
        if self._body is None:
            await asyncio.wait([self._released])
            return await self._client_receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: Message) -> None:
        if self._last is not None:
            await self._client_send(message)  # a bug of the application: nothing may follow the last message
        elif message["type"] == "http.response.start":
            self._start = message
            self._status = int(message["status"])
            self._headers = tuple(
                (bytes(name), bytes(value))
                for name, value in message.get("headers", ())
                if bytes(name).lower() not in NEVER_STORED
            )
        elif message["type"] == "http.response.body":
            self._record(bytes(message.get("body", b"")))
            if message.get("more_body", False):
                await self._forward(message)
            else:
                self._last = message
                self._mark_complete()
                await self._released
        else:
            await self._client_send(message)

    def _record(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size <= self._max_size:
            self._chunks.append(chunk)
        else:
            self._chunks.clear()

    async def _forward(self, message: Message) -> None:
        if self._is_disconnected:
            return
        self.has_sent = True
        start, self._start = self._start, None
        try:
            if start is not None:
                await self._client_send(start)
            await self._client_send(message)
        except OSError:  # servers raise it after the client has disconnected
            self._is_disconnected = True

    async def finish(self) -> None:
        """Send the message that was held back and wait until the application returns. Raises the application's
        exception.
        """
        try:
            if self._last is not None:
                await self._forward(self._last)
        finally:
            await self.release()
        if self._task is not None:
            self._task.result()

    async def stop(self) -> None:
        """Cancel the application and wait until it has ended."""
        if self._task is not None:
            self._task.cancel()
        await self.release()

    async def release(self) -> None:
        """End the waiting inside the application's last `send`, so that it returns. Its message is not sent here:
        `finish` sends it. Then wait until the application has ended. If this wait is cancelled, the application is
        cancelled, too.
        """
        if not self._released.done():
            self._released.set_result(None)
        if self._task is None:
            return
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait([self._task])
            raise
        if not self._task.cancelled():
            self._task.exception()  # retrieve it, or asyncio logs it as never retrieved; `finish` raises it


def _is_retryable(status: int) -> bool:
    """Whether the same request may succeed later: server errors, and 408, 425, 429."""
    return status >= 500 or status in (408, 425, 429)  # noqa: PLR2004 - HTTP status codes


class BytesCodec:
    """The codec of recorded responses, which are bytes already."""

    @staticmethod
    def encode(value: Any, /) -> bytes:
        return bytes(value)

    @staticmethod
    def decode(raw: bytes, /) -> bytes:
        return raw
