"""Error responses as RFC 9457 problem documents (`application/problem+json`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from backstay.http.asgi import Header, Send

MEDIA_TYPE = "application/problem+json"


def problem(status: int, detail: str, **members: Any) -> dict[str, Any]:
    """Build the body of a problem response. `members` are its extension members (RFC 9457)."""
    return {"title": HTTPStatus(status).phrase, "status": int(status), "detail": detail, **members}


async def send_problem(send: Send, body: dict[str, Any], headers: Iterable[Header] = ()) -> None:
    """Send a problem as the whole response. Nothing may have been sent before."""
    content = json.dumps(body, ensure_ascii=False).encode()
    own = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": body["status"], "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": content})
