"""Host and Origin checks for a server without tokens: it accepts local programs and its own dashboard.

A browser lets any web page send simple requests to any address (CSRF). So a request that changes state is refused
unless it comes from this server's own page. A server with tokens does not need these checks: a browser never adds a
bearer token by itself.
"""

from __future__ import annotations

from collections.abc import Collection

from backstay.http.asgi import Scope
from backstay.server.http.problem import Refusal
from backstay.server.settings import is_loopback

#: Methods that change nothing, so cross-site requests may use them: the browser hides the responses (no CORS header).
SAFE_METHODS = ("GET", "HEAD")
#: Values of Sec-Fetch-Site for a request that no other site initiated.
OWN_SITE = (b"same-origin", b"none")


def check(scope: Scope, host: bytes | None, hosts: Collection[str], origins: Collection[bytes]) -> None:
    """Check Host and Origin of a request to a server without tokens. Raises Refusal: 421, 403."""
    _check_host(host, hosts)
    if scope["method"] not in SAFE_METHODS:
        _check_origin(scope, host, origins)


def _check_host(host: bytes | None, hosts: Collection[str]) -> None:
    """Reject unknown Host headers (DNS rebinding)."""
    name = (host or b"").decode("latin-1").lower()
    bare = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() and not name.endswith("]") else name
    if is_loopback(bare) or bare in hosts:
        return
    raise Refusal(421, f"this server is not {bare[:100]!r}; without tokens it accepts loopback host names only")


def _check_origin(scope: Scope, host: bytes | None, origins: Collection[bytes]) -> None:
    """Reject cross-site requests that browsers send without a preflight: forms and requests without a body (CSRF)."""
    origin = site = None
    for name, value in scope["headers"]:
        if name == b"origin":
            origin = value
        elif name == b"sec-fetch-site":
            site = value
    if origin in origins:
        return
    own = (
        site in OWN_SITE
        if site is not None
        else origin is None or origin.partition(b"://")[2].lower() == (host or b"").lower()
    )
    if not own:
        shown = (origin or b"another site").decode("latin-1")[:100]
        raise Refusal(403, f"cross-site request from {shown} refused; allow its origin with --cors, or use tokens")
