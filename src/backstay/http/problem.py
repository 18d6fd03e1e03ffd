"""Refusals as RFC 9457 problems: a body that programs can read, with the headers that say when to come back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from backstay.http.asgi import Header, Send

MEDIA_TYPE = "application/problem+json"


def problem(status: int, detail: str, **members: Any) -> dict[str, Any]:
    """The body of a refusal. `members` are the problem's own, as RFC 9457 calls them."""
    return {"title": HTTPStatus(status).phrase, "status": int(status), "detail": detail, **members}


async def send_problem(send: Send, body: dict[str, Any], headers: Iterable[Header] = ()) -> None:
    """Answer a request with a problem. Nothing may have been sent before."""
    content = json.dumps(body, ensure_ascii=False).encode()
    own = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": body["status"], "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": content})
