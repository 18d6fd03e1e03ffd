"""Routes of the dashboard. Its files are a fixed list that is loaded once and looked up by name, so no request can
reach another path (path traversal).
"""

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
from backstay.server.http.request import Request
from backstay.server.http.response import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable

HTML = "text/html; charset=utf-8"
#: Media types of assets; files with another suffix are not served.
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
#: Allows only the page's own files and this server's API: no inline script or style, no other host, no frame.
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
#: An asset's name contains a hash of its content, so browsers may cache it forever; the page must be revalidated.
IMMUTABLE, REVALIDATE = b"public, max-age=31536000, immutable", b"no-cache"
NOT_BUILT = b"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Backstay</title></head>
<body>
<h1>Backstay</h1>
<p>The server is running, but its dashboard has not been built: run <code>make web</code> in a checkout and restart the
server, or install a released wheel, which contains it.</p>
<p>The API is described in <a href="openapi.json">openapi.json</a>.</p>
</body>
</html>
"""


@dataclass(frozen=True)
class File:
    body: bytes
    kind: str

    @cached_property
    def gzipped(self) -> bytes:
        """The compressed body, for clients that accept gzip. Computed at first use."""
        return gzip.compress(self.body, 6, mtime=0)


@cache
def load() -> Mapping[str, File]:
    """Load all files of the built dashboard by name, "" for the page itself; empty when it has not been built."""
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


async def page(request: Request) -> Stream:
    """The dashboard page. The page itself needs no token; it asks the user for one when the API requires it."""
    return await _respond(request, load().get("", File(NOT_BUILT, HTML)), REVALIDATE)


async def asset(request: Request) -> Stream:
    """A file of the dashboard."""
    found = load().get(request.path["file"])
    if found is None:
        raise Refusal(404, "the dashboard has no such file; GET / is its page")
    return await _respond(request, found, IMMUTABLE)


async def _respond(request: Request, file: File, cache_control: bytes) -> Stream:
    headers = {**GUARDS, b"cache-control": cache_control, b"vary": b"accept-encoding"}
    body = file.body
    if b"gzip" in (request.header(b"accept-encoding") or b""):
        headers[b"content-encoding"] = b"gzip"
        body = await asyncio.to_thread(lambda: file.gzipped)
    headers[b"content-length"] = b"%d" % len(body)

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield body

    return Stream(pieces(), media_type=file.kind.encode(), headers=headers)
