"""A line for each request, as JSON: when, who, what, how it went, how long it took. Never a header, a query or a body:
they may hold secrets.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from backstay.http.asgi import Scope

if TYPE_CHECKING:
    from backstay.server.http.request import Call
    from backstay.server.http.route import Route

log = logging.getLogger("backstay.access")

#: More of a path than this is nobody's name.
LONGEST_PATH = 300


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    at: str
    client: str
    method: str
    path: str
    #: As in the table; "" where no route was found.
    route: str
    status: int
    ms: float
    #: The id of the token, which is no secret.
    token: str = ""


class Access:
    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode

    def write(self, scope: Scope, route: Route | None, call: Call | None, status: int, seconds: float) -> None:
        if not log.isEnabledFor(logging.INFO):
            return
        client = scope.get("client")
        line = Line(
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            client=str(client[0]) if client else "",
            method=scope["method"][:20],
            path=scope["path"][:LONGEST_PATH],
            route=route.path if route else "",
            status=status,
            ms=round(seconds * 1000, 3),
            token=call.principal.id if call is not None else "",
        )
        log.info("%s", self._encode(line).decode())
