"""The access log: one JSON line per request. It never holds a header, a query or a body, since they may hold
secrets.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from backstay.http.asgi import Scope

if TYPE_CHECKING:
    from backstay.server.http.request import Request
    from backstay.server.http.route import Route

log = logging.getLogger("backstay.access")

#: Longer paths are cut.
LONGEST_PATH = 300


class AccessLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the log; the field names are its JSON keys."""

    at: str
    client: str
    method: str
    path: str
    #: The path of the route table, as in `/api/jobs/{job}`; "" when no route matches.
    route: str
    status: int
    ms: float
    #: The id of the token, which is not secret.
    token: str = ""


class AccessLog:
    """Writes to the logger `backstay.access` at level INFO."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode

    def write(self, scope: Scope, route: Route | None, request: Request | None, status: int, seconds: float) -> None:
        if not log.isEnabledFor(logging.INFO):
            return
        client = scope.get("client")
        line = AccessLine(
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            client=str(client[0]) if client else "",
            method=scope["method"][:20],
            path=scope["path"][:LONGEST_PATH],
            route=route.path if route else "",
            status=status,
            ms=round(seconds * 1000, 3),
            token=request.principal.id if request is not None else "",
        )
        log.info("%s", self._encode(line).decode())
