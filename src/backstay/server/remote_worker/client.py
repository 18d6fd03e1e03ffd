"""A small HTTP/1.1 client for remote workers: keep-alive connections, JSON bodies, limited response sizes.

It retries a request only when an idle connection turns out to be closed before any byte of the response arrived.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any, cast
from urllib.parse import quote, urlsplit

import msgspec

from backstay.errors import ConfigError, EngineUnavailable

#: The longest head and body of a response, in bytes.
LONGEST_HEAD, LONGEST_BODY = 64 * 1024, 64 * 1024 * 1024
#: Seconds that connecting may take.
CONNECT_TIMEOUT = 10.0
JSON = "application/json"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RequestRefused(Exception):
    """The server responded with an error status, `.status`. The message is the detail of its RFC 9457 problem."""

    def __init__(self, status: int, body: Any) -> None:
        detail = cast("dict[str, Any]", body).get("detail", "") if isinstance(body, dict) else ""
        super().__init__(f"{status}: {detail}" if detail else str(status))
        self.status = status


class ServerClient:
    """A client of one server. Concurrent requests use separate connections."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--server must be a URL, as in http://127.0.0.1:3000; got {url!r}")
        if parts.username or parts.password:
            raise ConfigError("put the token into BACKSTAY_TOKEN, not into the server's URL")
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._base = parts.path.rstrip("/")
        fields = [f"host: {parts.netloc}"]
        if token:
            fields.append(f"authorization: Bearer {token}")
        self._fields = "\r\n".join(fields)
        self._idle: list[Connection] = []

    async def post(self, path: str, body: Any, *, timeout: float = 30.0) -> Any:
        """Send JSON and return the decoded response. Raises RequestRefused for an error status, EngineUnavailable when
        the server is unreachable or does not respond in time.
        """
        return _decode_json(await self._request("POST", path, msgspec.json.encode(body), JSON, timeout))

    async def put(self, path: str, raw: bytes, *, timeout: float = 120.0) -> Any:
        """Send bytes; otherwise like `post`."""
        return _decode_json(await self._request("PUT", path, raw, "application/octet-stream", timeout))

    async def delete(self, path: str, *, timeout: float = 30.0) -> None:
        """Send a DELETE; raises like `post`."""
        await self._request("DELETE", path, b"", JSON, timeout)

    async def get(self, path: str, *, timeout: float = 120.0) -> bytes:
        """Return the response body undecoded; raises like `post`."""
        return await self._request("GET", path, b"", JSON, timeout)

    async def _request(self, method: str, path: str, raw: bytes, kind: str, timeout: float) -> bytes:
        head = f"{method} {self._base}{path} HTTP/1.1\r\n{self._fields}\r\n"
        sent = f"{head}content-type: {kind}\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw
        try:
            async with asyncio.timeout(timeout):
                status, answer = await self._round_trip(sent)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise EngineUnavailable(f"the server at {self.host}:{self.port} does not respond: {why}") from error
        if status >= 300:  # noqa: PLR2004 - not a success
            raise RequestRefused(status, _decode_json(answer))
        return answer

    async def _round_trip(self, sent: bytes) -> tuple[int, bytes]:
        while self._idle:
            connection = self._idle.pop()
            try:
                return await self._send_on(connection, sent)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                    raise
                # The server closed the idle connection, so it did not process the request.
        connection = await asyncio.wait_for(
            asyncio.open_connection(self.host, self.port, ssl=self._ssl, limit=LONGEST_HEAD), CONNECT_TIMEOUT
        )
        return await self._send_on(connection, sent)

    async def _send_on(self, connection: Connection, sent: bytes) -> tuple[int, bytes]:
        reader, writer = connection
        try:
            writer.write(sent)
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status = int(head.split(" ", 2)[1])
            fields = _parse_fields(head)
            body = await _read_body(reader, fields, status)
        except BaseException:
            writer.close()
            raise
        if fields.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._idle.append(connection)
        return status, body

    async def close(self) -> None:
        """Close the idle connections. Safe to call twice."""
        idle, self._idle = self._idle, []
        for _, writer in idle:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def _decode_json(answer: bytes) -> Any:
    """Decode a JSON body; None for a body that is empty or not JSON."""
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(answer)
    return None


def _parse_fields(head: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    return fields


async def _read_body(reader: asyncio.StreamReader, fields: dict[str, str], status: int) -> bytes:
    if status == 204:  # noqa: PLR2004 - No Content
        return b""
    if "content-length" in fields:
        length = int(fields["content-length"])
        if length > LONGEST_BODY:
            raise ValueError(f"a response of {length} bytes is too large")
        return await reader.readexactly(length)
    if fields.get("transfer-encoding", "").lower() != "chunked":
        raise ValueError("the response has neither content-length nor chunked encoding")
    pieces: list[bytes] = []
    while True:
        size = int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16)
        piece = await reader.readexactly(size + 2)
        if not size:
            return b"".join(pieces)
        pieces.append(piece[:-2])
        if sum(map(len, pieces)) > LONGEST_BODY:
            raise ValueError("the response is too large")


def encode_segment(text: str) -> str:
    """Percent-encode a name as a path segment."""
    return quote(text, safe="")
