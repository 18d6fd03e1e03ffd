"""A small HTTP client for workers: keep-alive connections, JSON both ways, bounded answers. Nothing is sent again by
itself, except on a connection that turns out to have been closed before anything was answered.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any, cast
from urllib.parse import quote, urlsplit

import msgspec

from backstay.errors import ConfigError, EngineUnavailable

#: The longest head and body of an answer, in bytes.
LONGEST_HEAD, LONGEST_BODY = 64 * 1024, 64 * 1024 * 1024
CONNECT = 10.0
JSON = "application/json"

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Answered(Exception):
    """The server refused: `.status`, and what its problem says as the message."""

    def __init__(self, status: int, body: Any) -> None:
        detail = cast("dict[str, Any]", body).get("detail", "") if isinstance(body, dict) else ""
        super().__init__(f"{status}: {detail}" if detail else str(status))
        self.status = status


class Client:
    """Speaks to one server. Any number of requests at once, each on a connection of its own."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--server is a URL, as in http://127.0.0.1:3000; got {url!r}")
        if parts.username or parts.password:
            raise ConfigError("a token goes into BACKSTAY_TOKEN, not into the server's URL")
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._base = parts.path.rstrip("/")
        fields = [f"host: {parts.netloc}"]
        if token:
            fields.append(f"authorization: Bearer {token}")
        self._fields = "\r\n".join(fields)
        self._idle: list[Link] = []

    async def post(self, path: str, body: Any, *, timeout: float = 30.0) -> Any:
        """The answer. Raises Answered for a refusal, EngineUnavailable when the server cannot be reached or is slow."""
        return _value(await self._request("POST", path, msgspec.json.encode(body), JSON, timeout))

    async def put(self, path: str, raw: bytes, *, timeout: float = 120.0) -> Any:
        """The same for bytes."""
        return _value(await self._request("PUT", path, raw, "application/octet-stream", timeout))

    async def delete(self, path: str, *, timeout: float = 30.0) -> None:
        """The same, without an answer."""
        await self._request("DELETE", path, b"", JSON, timeout)

    async def get(self, path: str, *, timeout: float = 120.0) -> bytes:
        """The same: what is there, as it is."""
        return await self._request("GET", path, b"", JSON, timeout)

    async def _request(self, method: str, path: str, raw: bytes, kind: str, timeout: float) -> bytes:
        head = f"{method} {self._base}{path} HTTP/1.1\r\n{self._fields}\r\n"
        sent = f"{head}content-type: {kind}\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw
        try:
            async with asyncio.timeout(timeout):
                status, answer = await self._exchange(sent)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise EngineUnavailable(f"the server at {self.host}:{self.port} does not answer: {why}") from error
        if status >= 300:  # noqa: PLR2004 - not a success
            raise Answered(status, _value(answer))
        return answer

    async def _exchange(self, sent: bytes) -> tuple[int, bytes]:
        while self._idle:
            link = self._idle.pop()
            try:
                return await self._ask(link, sent)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                    raise
                # It was closed while it was idle: nothing was carried out.
        link = await asyncio.wait_for(
            asyncio.open_connection(self.host, self.port, ssl=self._ssl, limit=LONGEST_HEAD), CONNECT
        )
        return await self._ask(link, sent)

    async def _ask(self, link: Link, sent: bytes) -> tuple[int, bytes]:
        reader, writer = link
        try:
            writer.write(sent)
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status = int(head.split(" ", 2)[1])
            fields = _fields(head)
            body = await _body(reader, fields, status)
        except BaseException:
            writer.close()
            raise
        if fields.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._idle.append(link)
        return status, body

    async def close(self) -> None:
        """Safe twice."""
        idle, self._idle = self._idle, []
        for _, writer in idle:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def _value(answer: bytes) -> Any:
    """What JSON says; None for nothing, and for what is none."""
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(answer)
    return None


def _fields(head: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    return fields


async def _body(reader: asyncio.StreamReader, fields: dict[str, str], status: int) -> bytes:
    if status == 204:  # noqa: PLR2004 - which has none
        return b""
    if "content-length" in fields:
        length = int(fields["content-length"])
        if length > LONGEST_BODY:
            raise ValueError(f"an answer of {length} bytes is too large")
        return await reader.readexactly(length)
    if fields.get("transfer-encoding", "").lower() != "chunked":
        raise ValueError("an answer without a length")
    pieces: list[bytes] = []
    while True:
        size = int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16)
        piece = await reader.readexactly(size + 2)
        if not size:
            return b"".join(pieces)
        pieces.append(piece[:-2])
        if sum(map(len, pieces)) > LONGEST_BODY:
            raise ValueError("an answer is too large")


def segment(text: str) -> str:
    """A name as part of a path."""
    return quote(text, safe="")
