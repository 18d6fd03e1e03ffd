"""One HTTP request: its headers, its path, its principal (who sent it), its body, and whether its client is still
connected.
"""

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
from backstay.server.http.waiting import WaitingSlot, slot_revoked

if TYPE_CHECKING:
    from backstay.server.app import Server

T = TypeVar("T")

#: The server reads and drops at most this many bytes of a body that is too large, for at most this many seconds.
DRAIN_BYTES, DRAIN_SECONDS = 16 * 1024 * 1024, 2.0


class Disconnected(Exception):
    """The client has disconnected, or it stopped reading and the server disconnects it."""


class Request:
    """A request as handlers get it. If the route consumes JSON, the body has already been read; else the handler reads
    it with `chunks`.
    """

    __slots__ = ("_slot", "_watch", "is_body_read", "path", "principal", "receive", "scope", "server")

    def __init__(self, server: Server, scope: Scope, receive: Receive, path: dict[str, str]) -> None:
        self.server = server
        self.scope = scope
        self.receive = receive
        self.path = path
        self.principal: Principal = ANONYMOUS
        #: Whether the whole body was received.
        self.is_body_read = False
        self._watch: asyncio.Task[None] | None = None
        self._slot: WaitingSlot | None = None

    @property
    def caller(self) -> str:
        """The key under which the server counts what this request's sender uses: the owner of its token. Without
        tokens, all senders are one caller.
        """
        return self.principal.owner

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

    def check_slot(self) -> None:
        """Raise Refusal (503) when other callers need this request's waiting slot."""
        if self._slot is not None and self._slot.revoked.done():
            raise slot_revoked()

    def take_waiting_slot(self) -> WaitingSlot:
        """Return this request's slot among the streams and long polls. The request keeps it until its end. Raises
        Refusal (503) when there is none for its caller.
        """
        if self._slot is None:
            self._slot = self.server.waiting_slots.take(self.caller)
        return self._slot

    def watch_disconnect(self) -> asyncio.Task[None]:
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
        the client disconnects, and Refusal when its token is no longer valid (401) or when other callers need its
        waiting slot (503). `awaited` is cancelled in all these cases. The first wait of a request takes the slot.
        """
        task = asyncio.ensure_future(awaited)
        until = None if timeout is None else steady() + timeout
        try:
            slot = self.take_waiting_slot()
            waited: list[asyncio.Future[Any]] = [task, self.watch_disconnect(), self.server.closing, slot.revoked]
            while True:
                await self.check_token()
                left = auth.REFRESH_SECONDS if until is None else min(until - steady(), auth.REFRESH_SECONDS)
                await asyncio.wait(waited, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                if self.watch_disconnect().done():
                    raise Disconnected
                self.check_slot()
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
        if self._slot is not None:
            self.server.waiting_slots.free(self._slot)

    # ── body ──

    async def drain_body(self) -> None:
        """Read and drop the rest of a body that is too large, up to a limit. If the server closed the connection while
        the client is sending, the client would see a connection reset instead of the response.
        """
        size, until = 0, steady() + DRAIN_SECONDS
        if self.is_body_read:
            return
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
        """Yield the body chunk by chunk. Raises Refusal when the body is larger than `most` bytes (413) or too slow
        (408), and Disconnected when the client disconnects. The whole body has `body_timeout` seconds, and one more
        second for each `min_body_rate` bytes that have arrived: a client that sends a byte now and then times out.
        """
        settings = self.server.settings
        size, began = 0, steady()
        while True:
            until = began + settings.body_timeout + size / settings.min_body_rate
            message = await self.receive_within(min(until - steady(), settings.body_timeout))
            if message["type"] == "http.disconnect":
                raise Disconnected
            piece: bytes = message.get("body", b"")
            self.is_body_read = not message.get("more_body", False)
            size += len(piece)
            if size > most:
                raise too_large(most)
            if piece:
                yield piece
            if self.is_body_read:
                return


def too_large(most: int) -> Refusal:
    return Refusal(413, f"the body of this route may have at most {most} bytes", close=True, limit=most)
