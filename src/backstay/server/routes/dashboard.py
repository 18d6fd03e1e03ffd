"""The page for people. Its files are a fixed list, read once and looked up by name: no request names a path."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING

from backstay.server.http.problem import Refusal
from backstay.server.http.request import Call, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable

HTML = "text/html; charset=utf-8"
#: What the page is made of; a file of another kind is not served.
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
#: The page's own files and this server's answers, nothing else: no inline script or style, no other host, no frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
GUARDS = {
    b"content-security-policy": POLICY.encode(),
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}
#: An asset's name changes with what is in it; the page's does not.
KEPT, ASKED = b"public, max-age=31536000, immutable", b"no-cache"
NOT_BUILT = b"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Backstay</title></head>
<body>
<h1>Backstay</h1>
<p>The server runs. Its dashboard has not been built: run <code>make web</code> in a checkout and start the server
again, or install a released wheel, which has it.</p>
<p>The API is described in <a href="openapi.json">openapi.json</a>.</p>
</body>
</html>
"""


@dataclass(frozen=True)
class File:
    body: bytes
    kind: str

    @cached_property
    def pressed(self) -> bytes:
        """For those who read gzip. Made at first use, and kept."""
        return gzip.compress(self.body, 6, mtime=0)


@cache
def load() -> Mapping[str, File]:
    """All files of the built page by name, "" for the page itself; none where it was not built."""
    return read(files("backstay.server") / "dashboard")


def read(folder: Traversable) -> Mapping[str, File]:
    found: dict[str, File] = {}
    index = folder / "index.html"
    if index.is_file():
        found[""] = File(index.read_bytes(), HTML)
        for one in (folder / "assets").iterdir():
            kind = KINDS.get("." + one.name.rpartition(".")[2])
            if kind is not None and one.is_file():
                found[one.name] = File(one.read_bytes(), kind)
    return MappingProxyType(found)


async def page(call: Call) -> Stream:
    """The dashboard. It asks for a token itself where the server wants one."""
    return await _answer(call, load().get("", File(NOT_BUILT, HTML)), ASKED)


async def asset(call: Call) -> Stream:
    """A file of the dashboard."""
    found = load().get(call.path["file"])
    if found is None:
        raise Refusal(404, "the dashboard has no such file; GET / is its page")
    return await _answer(call, found, KEPT)


async def _answer(call: Call, file: File, keeping: bytes) -> Stream:
    headers = {**GUARDS, b"cache-control": keeping, b"vary": b"accept-encoding"}
    body = file.body
    if b"gzip" in (call.header(b"accept-encoding") or b""):
        headers[b"content-encoding"] = b"gzip"
        body = await asyncio.to_thread(lambda: file.pressed)
    headers[b"content-length"] = b"%d" % len(body)

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield body

    return Stream(pieces(), media_type=file.kind.encode(), headers=headers)
