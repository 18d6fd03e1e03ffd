"""A limit as a FastAPI dependency, for some routes: `Depends(RateLimit(stay.limit("login", "5/minute")))`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fastapi import HTTPException, Request, Response

from backstay.errors import Decision
from backstay.http.callers import Callers, KeyFunction
from backstay.http.problem import MEDIA_TYPE
from backstay.http.ratelimit import checked, decide, headers, key_of, refusal
from backstay.limit.api import Limit


class RateLimitProblem(HTTPException):
    """429 or 503. FastAPI answers `{"detail": …}`, which is a problem by RFC 9457; with `handlers` the whole one."""

    def __init__(self, decision: Decision, body: dict[str, Any], fields: dict[str, str]) -> None:
        super().__init__(body["status"], body["detail"], {**fields, "content-type": MEDIA_TYPE})
        self.decision = decision
        self.body = body


class RateLimit:
    """Counts the requests of the routes that depend on it. The options are those of RateLimitMiddleware; a key function
    gets FastAPI's scope.
    """

    def __init__(
        self,
        limit: Limit,
        *,
        key: str | KeyFunction = "ip",
        trusted_proxies: Iterable[str] = (),
        api_key_header: str = "x-api-key",
    ) -> None:
        self._limit = checked(limit)
        self._key = Callers(trusted_proxies, api_key_header).of(key) if isinstance(key, str) else key

    async def __call__(self, request: Request, response: Response) -> Decision | None:
        key = await key_of(self._key, request.scope)
        if key is None:
            return None
        decision = await decide(self._limit, key)
        fields = {name.decode(): value.decode() for name, value in headers(self._limit.spec, decision)}
        if not decision.allowed:
            raise RateLimitProblem(decision, refusal(self._limit.spec, decision), fields)
        response.headers.update(fields)
        return decision


async def answer(_: Request, error: Exception) -> Response:
    """The whole problem."""
    if not isinstance(error, RateLimitProblem):
        raise error
    return Response(json.dumps(error.body, ensure_ascii=False), error.status_code, error.headers)


#: `FastAPI(exception_handlers=handlers)`
handlers: dict[int | type[Exception], Any] = {RateLimitProblem: answer}
