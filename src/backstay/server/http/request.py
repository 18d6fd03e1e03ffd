"""One HTTP request: its headers, path and principal, its body, and whether its client is still connected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from backstay.engine.base import steady
from backstay.http.asgi import Message, Receive, Scope
from backstay.server.http import auth
from backstay.server.http.auth import ANONYMOUS, Principal
from backstay.server.http.deadlines import DeadlineExceeded
from backstay.server.http.problem import Refusal

if TYPE_CHECKING:
    from backstay.server.app import Server

T = TypeVar("T")

#: How much of a too large body is read and dropped, and for how long.
DRAIN_BYTES, DRAIN_SECONDS = 16 * 1024 * 1024, 2.0


class Disconnected(Exception):
    """The client has disconnected, or is disconnected because it stopped reading."""


class Request:
    """A request as handlers get it. The server has read its body, unless the route consumes another type than JSON."""

    __slots__ = ("_watch", "path", "principal", "receive", "scope", "server")

    def __init__(self, server: Server, scope: Scope, receive: Receive, path: dict[str, str]) -> None:
        self.server = server
        self.scope = scope
        self.receive = receive
        self.path = path
        self.principal: Principal = ANONYMOUS
        self._watch: asyncio.Task[None] | None = None

    def header(self, name: bytes) -> bytes | None:
        """Return the value of a header; None when it is missing. Raises Refusal (400) when it is repeated."""
        found: bytes | None = None
        for key, value in self.scope["headers"]:
            if key == name:
                if found is not None:
                    raise Refusal(400, f"the request has more than one {name.decode()} header")
                found = value
        return found

    # ── waiting ──

    def disconnected(self) -> asyncio.Task[None]:
        """Return a task that ends when the client disconnects. Call it only after the body has been read."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._await_disconnect())
        return self._watch

    async def _await_disconnect(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def check_token(self) -> None:
        """Authenticate a long-running request again. Raises Refusal (401) once its token is revoked or has expired,
        or once a token is required and the request came without one.
        """
        keyring = self.server.keyring
        if keyring.is_stale:
            await keyring.refresh()
        if not keyring.is_valid(self.principal):
            raise auth.invalid_token()

    async def wait_for(self, awaited: Awaitable[T], timeout: float | None = None) -> T | None:
        """Return the result of `awaited`; None when the timeout passes or the server stops. Raises Disconnected when
        the client disconnects, and Refusal (401) when its token is no longer valid. `awaited` is cancelled in all
        these cases.
        """
        task = asyncio.ensure_future(awaited)
        until = None if timeout is None else steady() + timeout
        try:
            waited: list[asyncio.Future[Any]] = [task, self.disconnected(), self.server.closing]
            while True:
                await self.check_token()
                left = auth.REFRESH_SECONDS if until is None else min(until - steady(), auth.REFRESH_SECONDS)
                await asyncio.wait(waited, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                if self.disconnected().done():
                    raise Disconnected
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

    # ── body ──

    async def drain_body(self) -> None:
        """Read and drop the rest of a too large body, up to a limit. A client whose connection closes while it still
        sends sees a reset connection instead of the response.
        """
        size, until = 0, steady() + DRAIN_SECONDS
        with suppress(DeadlineExceeded):
            while size < DRAIN_BYTES and (left := until - steady()) > 0:
                message = await self.server.deadlines.run_within(left, self.receive)
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return

    async def receive_within(self, seconds: float) -> Message:
        """Receive the next ASGI message. Raises Refusal (408) when it does not arrive in time."""
        try:
            return await self.server.deadlines.run_within(seconds, self.receive)
        except DeadlineExceeded:
            raise Refusal(408, "the request body did not arrive in time", close=True) from None

    async def chunks(self, most: int) -> AsyncIterator[bytes]:
        """Yield the body chunk by chunk. Raises Refusal when it is too large (413) or too slow (408), Disconnected
        when the client disconnects.
        """
        size, until = 0, steady() + self.server.settings.body_timeout
        while True:
            message = await self.receive_within(until - steady())
            if message["type"] == "http.disconnect":
                raise Disconnected
            piece: bytes = message.get("body", b"")
            size += len(piece)
            if size > most:
                raise too_large(most)
            if piece:
                until = steady() + self.server.settings.body_timeout
                yield piece
            if not message.get("more_body", False):
                return


def too_large(most: int) -> Refusal:
    return Refusal(413, f"the body of this route may have at most {most} bytes", close=True, limit=most)
