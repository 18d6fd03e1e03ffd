"""One request on its way: what it says, who sent it, and whether anybody still waits for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from backstay.engine.base import steady
from backstay.http.asgi import Message, Receive, Scope
from backstay.server.http import auth
from backstay.server.http.auth import NOBODY, Principal
from backstay.server.http.deadlines import Late
from backstay.server.http.problem import Refusal

if TYPE_CHECKING:
    from backstay.server.app import Server

T = TypeVar("T")

#: How much of a body that is too large is read all the same, and for how long.
POUR_BYTES, POUR_SECONDS = 16 * 1024 * 1024, 2.0


class Gone(Exception):
    """Nobody waits for the answer any more."""


class Stream:
    """An answer in pieces."""

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], *, media_type: bytes, headers: dict[bytes, bytes] | None = None
    ) -> None:
        self.pieces = pieces
        self.media_type = media_type
        self.headers = headers or {}


class EventStream(Stream):
    """Server-sent events."""

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        # `x-accel-buffering`: what proxies listen to.
        super().__init__(
            pieces,
            media_type=b"text/event-stream",
            headers={b"cache-control": b"no-store", b"x-accel-buffering": b"no"},
        )


class Text(str):
    """An answer that is not JSON."""

    __slots__ = ()


class Answer:
    """An answer with a status of its own."""

    __slots__ = ("status", "value")

    def __init__(self, status: int, value: object) -> None:
        self.status = status
        self.value = value


class Call:
    """A request. Its body has been read, unless the route takes it in pieces."""

    __slots__ = ("_watch", "path", "principal", "receive", "scope", "server")

    def __init__(self, server: Server, scope: Scope, receive: Receive, path: dict[str, str]) -> None:
        self.server = server
        self.scope = scope
        self.receive = receive
        self.path = path
        self.principal: Principal = NOBODY
        self._watch: asyncio.Task[None] | None = None

    def header(self, name: bytes) -> bytes | None:
        """The value of a header; None where it is missing. Raises Refusal for one that is there twice."""
        found: bytes | None = None
        for key, value in self.scope["headers"]:
            if key == name:
                if found is not None:
                    raise Refusal(400, f"there is more than one {name.decode()} header")
                found = value
        return found

    # ── waiting ──

    def departure(self) -> asyncio.Task[None]:
        """Done once the client has gone away. Only after the body has been read."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._listen())
        return self._watch

    async def _listen(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def check_token(self) -> None:
        """For whoever stays for longer. Raises Refusal (401) once the token it came with has been revoked or is past;
        a caller without one, once tokens are needed.
        """
        keyring = self.server.keyring
        if keyring.is_stale:
            await keyring.refresh()
        if not keyring.counts(self.principal):
            raise auth.unknown()

    async def wait_for(self, awaited: Awaitable[T], timeout: float | None = None) -> T | None:
        """What was awaited; None when its time is over or the server stops. Raises Gone when the client has gone, and
        Refusal when its token does not count any more. What was awaited is cancelled in all these cases.
        """
        task = asyncio.ensure_future(awaited)
        until = None if timeout is None else steady() + timeout
        try:
            waited: list[asyncio.Future[Any]] = [task, self.departure(), self.server.closing]
            while True:
                await self.check_token()
                left = auth.FRESH if until is None else min(until - steady(), auth.FRESH)
                await asyncio.wait(waited, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                if self.departure().done():
                    raise Gone
                if self.server.is_closing or (until is not None and steady() >= until):
                    return None
        finally:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    # ── the body in pieces ──

    async def pour_away(self) -> None:
        """Read what is left of a body that is too large, up to a point: a client that is hung up on while it sends
        does not see the answer.
        """
        size, until = 0, steady() + POUR_SECONDS
        with suppress(Late):
            while size < POUR_BYTES and (left := until - steady()) > 0:
                message = await self.server.deadlines.within(left, self.receive)
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return

    async def within(self, seconds: float) -> Message:
        """The next piece. Raises Refusal when it does not come in time."""
        try:
            return await self.server.deadlines.within(seconds, self.receive)
        except Late:
            raise Refusal(408, "the request did not come in time; send it faster", close=True) from None

    async def chunks(self, most: int) -> AsyncIterator[bytes]:
        """The body as it comes. Raises Refusal when it is too large or too slow, Gone when the client goes."""
        size, until = 0, steady() + self.server.settings.body_patience
        while True:
            message = await self.within(until - steady())
            if message["type"] == "http.disconnect":
                raise Gone
            piece: bytes = message.get("body", b"")
            size += len(piece)
            if size > most:
                raise too_large(most)
            if piece:
                until = steady() + self.server.settings.body_patience
                yield piece
            if not message.get("more_body", False):
                return


def too_large(most: int) -> Refusal:
    return Refusal(413, f"a body has at most {most} bytes here", close=True, limit=most)
