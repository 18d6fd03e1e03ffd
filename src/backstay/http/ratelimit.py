"""A limit before an ASGI application: 429 when a caller comes too often, 503 when nobody can say."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any, cast

from backstay.errors import ConfigError, Decision, EngineError
from backstay.http.asgi import App, Header, Message, Receive, Scope, Send
from backstay.http.callers import Callers, KeyFunction
from backstay.http.problem import problem, send_problem
from backstay.limit.api import Limit
from backstay.limit.spec import Spec

TOO_MANY, UNAVAILABLE = 429, 503
#: Seconds after which to come back when the engine failed in a way that no policy covers.
LATER = 1.0


class RateLimitMiddleware:
    """Counts every HTTP request; a limit made with `stay.limit`. Other scopes (WebSockets, lifespan) pass.

    key: "ip" (the default), "user", "api-key", or a function of the ASGI scope, async or not, that answers a key, or
    None for a request that is not counted. trusted_proxies: addresses and networks whose `X-Forwarded-For` is believed;
    without them every request that comes through a proxy is the proxy's. api_key_header: where "api-key" looks.
    """

    def __init__(
        self,
        app: App,
        limit: Limit,
        *,
        key: str | KeyFunction = "ip",
        trusted_proxies: Iterable[str] = (),
        api_key_header: str = "x-api-key",
    ) -> None:
        self.app = app
        self._limit = checked(limit)
        self._key = Callers(trusted_proxies, api_key_header).of(key) if isinstance(key, str) else key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        key = await key_of(self._key, scope)
        if key is None:
            await self.app(scope, receive, send)
            return
        decision = await decide(self._limit, key)
        fields = headers(self._limit.spec, decision)
        if not decision.allowed:
            await send_problem(send, refusal(self._limit.spec, decision), fields)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                known = {name.lower() for name, _ in given}
                message["headers"] = [*given, *(field for field in fields if field[0] not in known)]
            await send(message)

        await self.app(scope, receive, send_with_headers)


def checked(limit: Limit) -> Limit:
    """What callers without a type checker pass."""
    if not isinstance(cast("object", limit), Limit):
        raise ConfigError("limit is made by an async Backstay, as in stay.limit('api', '100/minute')")
    return limit


async def key_of(function: KeyFunction, scope: Scope) -> str | None:
    key = function(scope)
    return await key if inspect.isawaitable(key) else key


async def decide(limit: Limit, key: str) -> Decision:
    """A hit. What even the policy cannot judge (a damaged record, say) is a refusal for now."""
    try:
        return await limit.hit(key)
    except EngineError as error:
        rate = limit.spec.rates[0]
        return Decision(False, key, 0, rate.limit, 0, LATER, LATER, rate.window / 1000, 0.0, "deny", str(error))


def refusal(spec: Spec, decision: Decision) -> dict[str, Any]:
    """The body of a 429 or 503. Says nothing about the engine's troubles."""
    wait = f"try again in {_whole(decision.retry_after)} s"
    if decision.by == "deny":
        return problem(UNAVAILABLE, f"Whether this request is within its limit cannot be told now; {wait}.")
    rates = " and ".join(map(str, spec.rates))
    return problem(
        TOO_MANY,
        f"At most {rates}; {wait}.",
        limit=decision.limit,
        remaining=decision.remaining,
        retry_after=round(decision.retry_after, 3),
    )


def headers(spec: Spec, decision: Decision) -> list[Header]:
    """`RateLimit`, `RateLimit-Policy`, `X-RateLimit-*`, and `Retry-After` on a refusal."""
    fields: list[Header] = []
    if not decision.allowed:
        fields.append((b"retry-after", b"%d" % _whole(decision.retry_after)))
    if decision.trouble and decision.by != "local":
        return fields  # nothing was counted, so there is nothing to tell
    names = {rate.window / 1000: _name(spec, rate.window / 1000) for rate in spec.rates}
    policy = ", ".join(
        f"{names[rate.window / 1000]};q={rate.limit};w={_whole(rate.window / 1000)}" for rate in spec.rates
    )
    reset = decision.reset_after if decision.allowed else decision.retry_after
    state = f"{names[decision.window]};r={decision.remaining};t={_whole(reset)}"
    return [
        *fields,
        (b"ratelimit-policy", policy.encode("ascii")),
        (b"ratelimit", state.encode("ascii")),
        (b"x-ratelimit-limit", b"%d" % decision.limit),
        (b"x-ratelimit-remaining", b"%d" % decision.remaining),
        (b"x-ratelimit-reset", b"%d" % _whole(decision.at + reset)),
    ]


def _name(spec: Spec, window: float) -> str:
    """A structured-field string: the limit's name, and the window where there are several."""
    name = spec.name if len(spec.rates) == 1 else f"{spec.name}-{window:g}s"
    plain = "".join(c if " " <= c <= "~" and c not in '"\\' else "_" for c in name)
    return f'"{plain}"'


def _whole(seconds: float) -> int:
    """Never too early, never at once."""
    return max(1, math.ceil(seconds))
