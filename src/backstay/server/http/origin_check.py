"""Who may come in while no token is needed: programs of this machine, and pages of this server's own.

A browser lets any page send some requests to any address. Those that change something are refused unless they come from
a page of this server; with tokens there is no need, since a browser adds none by itself.
"""

from __future__ import annotations

from collections.abc import Collection

from backstay.http.asgi import Scope
from backstay.server.http.problem import Refusal
from backstay.server.settings import is_loopback

#: Requests that change nothing. What they answer cannot be read by pages of others.
HARMLESS = ("GET", "HEAD")
#: What browsers say of a request that no other page made.
OWN = (b"same-origin", b"none")


def check(scope: Scope, host: bytes | None, hosts: Collection[str], origins: Collection[bytes]) -> None:
    """Raises Refusal: 421, 403."""
    _check_host(host, hosts)
    if scope["method"] not in HARMLESS:
        _check_page(scope, host, origins)


def _check_host(host: bytes | None, hosts: Collection[str]) -> None:
    """A page of somebody else's that has its name point here must not get in (DNS rebinding)."""
    name = (host or b"").decode("latin-1").lower()
    bare = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() and not name.endswith("]") else name
    if is_loopback(bare) or bare in hosts:
        return
    raise Refusal(421, f"this server is not {bare[:100]!r}; without tokens it answers to loopback's names only")


def _check_page(scope: Scope, host: bytes | None, origins: Collection[bytes]) -> None:
    """Nor one that sends what needs no leave: a form, or a request without a body (CSRF)."""
    origin = site = None
    for name, value in scope["headers"]:
        if name == b"origin":
            origin = value
        elif name == b"sec-fetch-site":
            site = value
    if origin in origins:
        return
    own = (
        site in OWN
        if site is not None
        else origin is None or origin.partition(b"://")[2].lower() == (host or b"").lower()
    )
    if not own:
        shown = (origin or b"another site").decode("latin-1")[:100]
        raise Refusal(403, f"a page of {shown} may not do this here; name its origin with --cors, or use tokens")
