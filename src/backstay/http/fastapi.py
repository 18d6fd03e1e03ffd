"""A rate limit as a FastAPI dependency of single routes: `Depends(RateLimit(stay.limit("login", "5/minute")))`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fastapi import HTTPException, Request, Response

from backstay.errors import Decision
from backstay.http.caller_key import CallerKeys, KeyFunction
from backstay.http.problem import MEDIA_TYPE
from backstay.http.ratelimit import check_limit, decide, denial_problem, limit_headers, resolve_key
from backstay.limit.api import Limit


class RateLimitProblem(HTTPException):
    """The exception of a 429 or 503 response. FastAPI's default handler sends only `{"detail": …}`, which is a valid
    RFC 9457 problem; with `handlers`, the app sends all fields.
    """

    def __init__(self, decision: Decision, body: dict[str, Any], fields: dict[str, str]) -> None:
        super().__init__(body["status"], body["detail"], {**fields, "content-type": MEDIA_TYPE})
        self.decision = decision
        self.body = body


class RateLimit:
    """Counts the requests of the routes that depend on it. The options are those of RateLimitMiddleware; a key function
    gets the request's ASGI scope.
    """

    def __init__(
        self,
        limit: Limit,
        *,
        key: str | KeyFunction = "ip",
        trusted_proxies: Iterable[str] = (),
        api_key_header: str = "x-api-key",
    ) -> None:
        self._limit = check_limit(limit)
        self._key = CallerKeys(trusted_proxies, api_key_header).find(key) if isinstance(key, str) else key

    async def __call__(self, request: Request, response: Response) -> Decision | None:
        key = await resolve_key(self._key, request.scope)
        if key is None:
            return None
        decision = await decide(self._limit, key)
        fields = {name.decode(): value.decode() for name, value in limit_headers(self._limit.spec, decision)}
        if not decision.allowed:
            raise RateLimitProblem(decision, denial_problem(self._limit.spec, decision), fields)
        response.headers.update(fields)
        return decision


async def respond_with_problem(_: Request, error: Exception) -> Response:
    """Send the complete problem document."""
    if not isinstance(error, RateLimitProblem):
        raise error
    return Response(json.dumps(error.body, ensure_ascii=False), error.status_code, error.headers)


#: Exception handlers for the app: `FastAPI(exception_handlers=handlers)`.
handlers: dict[int | type[Exception], Any] = {RateLimitProblem: respond_with_problem}
