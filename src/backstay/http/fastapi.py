"""A rate limit as a FastAPI dependency of single routes: `Depends(RateLimit(stay.limit("login", "5/minute")))`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fastapi import HTTPException, Request, Response

from backstay.errors import Decision
from backstay.http.caller_key import CallerKeys, KeyFunction
from backstay.http.problem import MEDIA_TYPE
from backstay.http.ratelimit import RequestLimits, denial_problem, limit_headers
from backstay.limit.api import Limit


class RateLimitProblem(HTTPException):
    """The exception that becomes a 429 or 503 response. FastAPI's default exception handler sends only `{"detail": …}`,
    which is a valid RFC 9457 problem document. To send all fields, create the app with `exception_handlers=handlers`,
    where `handlers` is the dict in this module.
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
        address_limit: Limit | None = None,
    ) -> None:
        self._checks = RequestLimits(limit, key, CallerKeys(trusted_proxies, api_key_header), address_limit)

    async def __call__(self, request: Request, response: Response) -> Decision | None:
        decided = await self._checks.decide(request.scope)
        if decided is None:
            return None
        spec, decision = decided
        fields = {name.decode(): value.decode() for name, value in limit_headers(spec, decision)}
        if not decision.allowed:
            raise RateLimitProblem(decision, denial_problem(spec, decision), fields)
        response.headers.update(fields)
        return decision


async def respond_with_problem(_: Request, error: Exception) -> Response:
    """The exception handler of RateLimitProblem: send all fields of the problem document, not only `detail`."""
    if not isinstance(error, RateLimitProblem):
        raise error
    return Response(json.dumps(error.body, ensure_ascii=False), error.status_code, error.headers)


#: Exception handlers for the app: `FastAPI(exception_handlers=handlers)`.
handlers: dict[int | type[Exception], Any] = {RateLimitProblem: respond_with_problem}
