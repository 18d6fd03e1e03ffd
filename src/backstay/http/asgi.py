"""The types of ASGI, and reading a request's body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: A header's name and value as in ASGI: the name is in lower case.
Header = tuple[bytes, bytes]


async def read_body(receive: Receive, limit: int) -> bytes | None:
    """Read a whole request body; None if it exceeds `limit` bytes. Raises ConnectionResetError if the client
    disconnects first.
    """
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the client disconnected before its request was complete")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            return None
        if not message.get("more_body", False):
            return b"".join(chunks)
