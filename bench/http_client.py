"""A server process and a minimal HTTP client for the benchmarks over HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from backstay.testing.servers.ports import reserve_port


class Serving(NamedTuple):
    port: int
    pid: int


class HttpConnection:
    """A minimal HTTP/1.1 connection with keep-alive: one request at a time, responses with a content-length."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, path: str, body: object) -> Any:
        raw = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}"
        )
        self._writer.write(head.encode() + b"\r\n\r\n" + raw)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        reply = json.loads(await self._reader.readexactly(length))
        assert status < 300, reply
        return reply

    def close(self) -> None:
        self._writer.close()


async def connect(port: int) -> HttpConnection:
    return HttpConnection(*await asyncio.open_connection("127.0.0.1", port))


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Serving]:
    """Run `backstay serve --api-only` in a process of its own."""
    port = reserve_port()
    code = [sys.executable, "-m", "backstay", "--url", url, "serve", "--port", str(port)]
    code += ["--api-only", "--no-access-log", "--log-level", "error"]
    with subprocess.Popen(code, stdout=subprocess.PIPE) as server:  # noqa: ASYNC220 - it is what is measured
        try:
            assert server.stdout is not None
            line = await asyncio.to_thread(server.stdout.readline)
            assert line.startswith(b"listening"), line
            yield Serving(port, server.pid)
        finally:
            server.terminate()


@contextmanager
def database() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="bench-http-") as folder:
        yield f"sqlite:///{folder}/bench.db"
