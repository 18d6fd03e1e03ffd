"""The access log: one JSON line per request. It contains no headers, queries or bodies, since those may hold
secrets.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from backstay.http.asgi import Scope

if TYPE_CHECKING:
    from backstay.server.http.request import Request
    from backstay.server.http.route import Route

log = logging.getLogger("backstay.access")

#: Characters of a path in the log; longer paths are truncated.
LONGEST_PATH = 300
#: Characters that may be unprintable: DEL, and what is not ASCII. A terminal obeys some of them (CSI is U+009B), and
#: some programs take others for the end of a line (U+0085, U+2028).
_SUSPECT = re.compile(r"[^\x20-\x7e]")


class AccessLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the access log; the field names are its JSON keys."""

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
        text = self._encode(line).decode()
        log.info("%s", text if text.isprintable() else _SUSPECT.sub(_escape, text))


def _escape(found: re.Match[str]) -> str:
    """Escape an unprintable character for JSON. JSON itself escapes only the control characters below U+0020."""
    if found[0].isprintable():
        return found[0]
    raw = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{raw[place : place + 4]}" for place in range(0, len(raw), 4))
