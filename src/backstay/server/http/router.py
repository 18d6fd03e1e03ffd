"""Finds the route of a request. Segments are compared one by one after decoding, so no path reaches another's route."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from backstay.server.http.problem import Refusal
from backstay.server.http.route import Route

#: Longer paths are a mistake; names have at most 512 bytes, three times that when they are escaped.
LONGEST_PATH = 4096


class _Node:
    __slots__ = ("fixed", "free", "routes")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node] = {}
        self.free: _Node | None = None
        self.routes: dict[str, Route] = {}


class Router:
    """A tree of segments: what is written out goes before what is named in braces."""

    def __init__(self, table: Iterable[Route]) -> None:
        self._root = _Node()
        #: Paths without parameters: one look.
        self._plain: dict[tuple[str, bytes], Route] = {}
        for route in table:
            node = self._root
            for part in route.path.strip("/").split("/"):
                if part.startswith("{"):
                    node.free = node.free or _Node()
                    node = node.free
                else:
                    node = node.fixed.setdefault(part, _Node())
            if route.method in node.routes:
                raise ValueError(f"two routes for {route.method} {route.path}")
            node.routes[route.method] = route
            if not route.parameters:
                self._plain[route.method, route.path.encode()] = route

    def find(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        """The route and what its parameters are. Raises Refusal: 404, 405, 414, 400."""
        plain = self._plain.get((method, raw_path))
        if plain is not None:
            return plain, {}
        if len(raw_path) > LONGEST_PATH:
            raise Refusal(414, f"a path has at most {LONGEST_PATH} bytes here", close=True)
        try:
            if b"%" in raw_path:
                parts = [unquote_to_bytes(part).decode() for part in raw_path[1:].split(b"/")]
            else:
                parts = raw_path[1:].decode().split("/")
        except UnicodeDecodeError:
            raise Refusal(400, "the path is not UTF-8 once its percent signs are decoded") from None
        if b"%00" in raw_path:
            raise Refusal(400, "no name in a path has a NUL in it")
        found = self._walk(self._root, parts, 0, method) if raw_path[:1] == b"/" else None
        if found is None:
            raise Refusal(404, "there is nothing here; GET /openapi.json lists all routes")
        route = found.routes.get(method)
        if route is None:
            allowed = ", ".join(sorted(found.routes))
            raise Refusal(405, f"this path takes {allowed}, not {method[:20]}", headers={"allow": allowed})
        values = [
            part for part, name in zip(parts, route.path.strip("/").split("/"), strict=True) if name.startswith("{")
        ]
        return route, dict(zip(route.parameters, values, strict=True))

    def _walk(self, node: _Node, parts: list[str], depth: int, method: str) -> _Node | None:
        """The node of a path; one that has the method goes before one that has not."""
        if depth == len(parts):
            return node if node.routes else None
        fallback: _Node | None = None
        exact = node.fixed.get(parts[depth])
        for child in (exact, node.free if parts[depth] else None):
            if child is None:
                continue
            found = self._walk(child, parts, depth + 1, method)
            if found is not None and method in found.routes:
                return found
            fallback = fallback or found
        return fallback
