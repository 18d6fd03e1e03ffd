"""Refusals are problem documents (RFC 9457)."""

from __future__ import annotations

import asyncio
import json

from backstay.http.problem import problem, send_problem


def test_a_problem_is_sent_with_its_body_and_headers():
    sent = []

    async def send(message):
        sent.append(message)

    body = problem(429, "at most 5 a second – come back", retry_after=0.2)
    asyncio.run(send_problem(send, body, [(b"retry-after", b"1")]))
    start, content = sent
    headers = dict(start["headers"])
    assert start["status"] == 429
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"retry-after"] == b"1"
    assert int(headers[b"content-length"]) == len(content["body"])
    assert json.loads(content["body"]) == {
        "title": "Too Many Requests",
        "status": 429,
        "detail": "at most 5 a second – come back",
        "retry_after": 0.2,
    }
