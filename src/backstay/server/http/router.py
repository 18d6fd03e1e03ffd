"""Finds the route of a request. The router splits the path before it percent-decodes each segment, so `%2F` in a name
never changes which route matches.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from backstay.server.http.problem import Refusal
from backstay.server.http.route import Route

#: The longest path in bytes; a longer one is refused. There must be space for names of 512 bytes, which
#: percent-encoding can make three times as long.
LONGEST_PATH = 4096


class _Segment:
    """A node of the tree of path segments, with the routes that end at it by method."""

    __slots__ = ("literals", "parameter", "routes")

    def __init__(self) -> None:
        self.literals: dict[str, _Segment] = {}
        self.parameter: _Segment | None = None
        self.routes: dict[str, Route] = {}


class Router:
    """A tree of path segments. A literal segment wins over a parameter."""

    def __init__(self, table: Iterable[Route]) -> None:
        self._root = _Segment()
        #: Routes without parameters, found with one dictionary lookup.
        self._plain: dict[tuple[str, bytes], Route] = {}
        for route in table:
            node = self._root
            for part in route.path.strip("/").split("/"):
                if part.startswith("{"):
                    node.parameter = node.parameter or _Segment()
                    node = node.parameter
                else:
                    node = node.literals.setdefault(part, _Segment())
            if route.method in node.routes:
                raise ValueError(f"two routes for {route.method} {route.path}")
            node.routes[route.method] = route
            if not route.parameters:
                self._plain[route.method, route.path.encode()] = route

    def find(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        """Return the route and the values of its path parameters. Raises Refusal: 400, 404, 405, 414."""
        plain = self._plain.get((method, raw_path))
        if plain is not None:
            return plain, {}
        if len(raw_path) > LONGEST_PATH:
            raise Refusal(414, f"a path may have at most {LONGEST_PATH} bytes", close=True)
        try:
            if b"%" in raw_path:
                parts = [unquote_to_bytes(part).decode() for part in raw_path[1:].split(b"/")]
            else:
                parts = raw_path[1:].decode().split("/")
        except UnicodeDecodeError:
            raise Refusal(400, "the percent-decoded path is not UTF-8") from None
        if b"%00" in raw_path:
            raise Refusal(400, "a path must not contain a NUL character")
        found = self._walk(self._root, parts, 0, method) if raw_path[:1] == b"/" else None
        if found is None:
            raise Refusal(404, "no route has this path; GET /openapi.json lists all routes")
        route = found.routes.get(method)
        if route is None:
            allowed = ", ".join(sorted(found.routes))
            raise Refusal(405, f"this path allows {allowed}, not {method[:20]}", headers={"allow": allowed})
        values = [
            part for part, name in zip(parts, route.path.strip("/").split("/"), strict=True) if name.startswith("{")
        ]
        return route, dict(zip(route.parameters, values, strict=True))

    def _walk(self, node: _Segment, parts: list[str], depth: int, method: str) -> _Segment | None:
        """Return the node of the tree that matches a path; None when there is none. If several nodes match, one with a
        route for `method` is preferred.
        """
        if depth == len(parts):
            return node if node.routes else None
        fallback: _Segment | None = None
        exact = node.literals.get(parts[depth])
        for child in (exact, node.parameter if parts[depth] else None):
            if child is None:
                continue
            found = self._walk(child, parts, depth + 1, method)
            if found is not None and method in found.routes:
                return found
            fallback = fallback or found
        return fallback
