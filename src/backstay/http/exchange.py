"""One request on its way through an application, with the end of its answer held back until somebody says so.

What is streamed is passed on as it comes and noted down. The last message waits: whoever reads the end of an answer may
rely on it being kept. The application does not hear that a client has gone away meanwhile: it carries the request out,
so that there is a whole answer when the client comes again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from backstay.errors import CorruptRecord
from backstay.http.asgi import App, Header, Message, Receive, Scope, Send

#: Bumped when the kept shape changes.
VERSION = 1
#: The status of an answer that was too large to be kept.
NOT_KEPT = 0
#: Ways of sending that cannot be noted down; without them applications send plain messages.
UNSEEN = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers", "http.response.push")


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """An answer as it is kept: byte for byte."""

    version: int
    status: int
    headers: tuple[Header, ...] = ()
    body: bytes = b""


_DECODER = msgspec.msgpack.Decoder(Answer)


def read(name: str, raw: bytes) -> Answer:
    """A kept answer. Raises CorruptRecord for one of another version, or damaged."""
    try:
        answer = _DECODER.decode(raw)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"the answer kept for {name!r} cannot be read: {error}") from error
    if answer.version != VERSION:
        raise CorruptRecord(
            f"the answer kept for {name!r} is of version {answer.version}, this process reads {VERSION}"
        )
    return answer


class NotFinal(Exception):
    """The application asks to be tried again, failed, or ended without an answer: nothing is to be kept."""


class Exchange:
    """The application's side of one request."""

    def __init__(self, app: App, scope: Scope, body: bytes, receive: Receive, send: Send, most: int) -> None:
        offered: dict[str, Any] = scope.get("extensions") or {}
        extensions = {name: value for name, value in offered.items() if name not in UNSEEN}
        self._app = app
        self._scope: Scope = {**scope, "extensions": extensions}
        self._body: bytes | None = body
        self._client = receive
        self._send = send
        #: The largest answer that is noted down.
        self._most = most
        self._start: Message | None = None
        self._status = NOT_KEPT
        self._headers: tuple[Header, ...] = ()
        self._chunks: list[bytes] = []
        self._size = 0
        self._last: Message | None = None
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._released: asyncio.Future[None] = loop.create_future()
        self._task: asyncio.Task[None] | None = None
        #: Whether the application was called, and whether the client has seen anything of its answer.
        self.ran = False
        self.seen = False
        #: Nobody reads what is sent any more.
        self._gone = False

    async def perform(self) -> bytes:
        """Call the application until its answer is complete; the end is not sent yet."""
        self.ran = True
        task = self._task = asyncio.create_task(self._call())
        task.add_done_callback(lambda _: self._end())
        try:
            await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if self._last is None or _asks_again(self._status):
            raise NotFinal
        kept = Answer(VERSION, self._status, self._headers, b"".join(self._chunks))
        return msgspec.msgpack.encode(kept if self._size <= self._most else Answer(VERSION, NOT_KEPT))

    async def _call(self) -> None:
        await self._app(self._scope, self._receive, self._note)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def _receive(self) -> Message:
        if self._body is None:
            await asyncio.wait([self._released])
            return await self._client()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _note(self, message: Message) -> None:
        if self._last is not None:
            await self._send(message)  # out of order: the server knows what to say
        elif message["type"] == "http.response.start":
            self._start = message
            self._status = int(message["status"])
            self._headers = tuple((bytes(name), bytes(value)) for name, value in message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self._keep(bytes(message.get("body", b"")))
            if message.get("more_body", False):
                await self._pass_on(message)
            else:
                self._last = message
                self._end()
                await self._released
        else:
            await self._send(message)

    def _keep(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size <= self._most:
            self._chunks.append(chunk)
        else:
            self._chunks.clear()

    async def _pass_on(self, message: Message) -> None:
        if self._gone:
            return
        self.seen = True
        start, self._start = self._start, None
        try:
            if start is not None:
                await self._send(start)
            await self._send(message)
        except OSError:  # how a server says that the client has gone
            self._gone = True

    async def finish(self) -> None:
        """Send what was held back, and let the application end: it may have more to do. Raises what it raises."""
        try:
            if self._last is not None:
                await self._pass_on(self._last)
        finally:
            await self.let_go()
        if self._task is not None:
            self._task.result()

    async def stop(self) -> None:
        """End the application, wherever it is."""
        if self._task is not None:
            self._task.cancel()
        await self.let_go()

    async def let_go(self) -> None:
        """Let the application end, whatever becomes of its answer. A cancelled caller takes it along."""
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
            self._task.exception()  # looked at: whoever wants it asks for the result


def _asks_again(status: int) -> bool:
    """Server errors, and 408, 425, 429: the same request may well succeed later."""
    return status >= 500 or status in (408, 425, 429)  # noqa: PLR2004 - as HTTP numbers them


class Raw:
    """Answers are bytes already."""

    @staticmethod
    def encode(value: Any, /) -> bytes:
        return bytes(value)

    @staticmethod
    def decode(raw: bytes, /) -> bytes:
        return raw
