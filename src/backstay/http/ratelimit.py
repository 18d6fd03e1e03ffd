"""Rate limit middleware for any ASGI application: 429 above the limit, 503 while the limit cannot be checked."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any, cast

from backstay.errors import ConfigError, Decision, EngineError
from backstay.http.asgi import App, Header, Message, Receive, Scope, Send
from backstay.http.caller_key import CallerKeys, KeyFunction
from backstay.http.problem import problem, send_problem
from backstay.limit.api import Limit
from backstay.limit.spec import LimitSpec

TOO_MANY, UNAVAILABLE = 429, 503
#: Seconds in the Retry-After header after an engine error that `on_unavailable` of the limit does not handle.
RETRY_AFTER = 1.0


class RateLimitMiddleware:
    """Counts every HTTP request against a limit of `stay.limit`. Other scopes (WebSocket, lifespan) are not counted.

    limit: A limit of an async Backstay, as in `stay.limit("api", "100/minute")`.
    key: The caller's key: "ip" (the default), "user", "api-key", or a function of the ASGI scope, async or not, that
        returns a key, or None for a request that is not counted.
    trusted_proxies: Addresses and networks whose `X-Forwarded-For` is trusted. Without them, all requests through a
        proxy count as the proxy's.
    api_key_header: The header that "api-key" reads.
    address_limit: A second, higher limit that counts every request by address, whatever its key is. Without it, a
        client that makes up API keys or users gets a new budget with each of them.
    """

    def __init__(
        self,
        app: App,
        limit: Limit,
        *,
        key: str | KeyFunction = "ip",
        trusted_proxies: Iterable[str] = (),
        api_key_header: str = "x-api-key",
        address_limit: Limit | None = None,
    ) -> None:
        self.app = app
        self._checks = RequestLimits(limit, key, CallerKeys(trusted_proxies, api_key_header), address_limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        decided = await self._checks.decide(scope)
        if decided is None:
            await self.app(scope, receive, send)
            return
        spec, decision = decided
        fields = limit_headers(spec, decision)
        if not decision.allowed:
            await send_problem(send, denial_problem(spec, decision), fields)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                known = {name.lower() for name, _ in given}
                message["headers"] = [*given, *(field for field in fields if field[0] not in known)]
            await send(message)

        await self.app(scope, receive, send_with_headers)


class RequestLimits:
    """The limits of one middleware or dependency: one by the caller's key and, optionally, one by its address."""

    def __init__(
        self, limit: Limit, key: str | KeyFunction, callers: CallerKeys, address_limit: Limit | None = None
    ) -> None:
        self._limit = check_limit(limit)
        self._key = callers.find(key) if isinstance(key, str) else key
        self._by_ip = callers.by_ip
        self._address_limit = check_limit(address_limit) if address_limit is not None else None

    async def decide(self, scope: Scope) -> tuple[LimitSpec, Decision] | None:
        """Charge a request: first by address, so that a denied one does not touch the key's budget. Returns the denial
        or, if there is none, the decision by key; None for a request that is not counted.
        """
        key = await resolve_key(self._key, scope)
        if key is None:
            return None
        if self._address_limit is not None:
            decision = await decide(self._address_limit, self._by_ip(scope))
            if not decision.allowed:
                return self._address_limit.spec, decision
        return self._limit.spec, await decide(self._limit, key)


def check_limit(limit: Limit) -> Limit:
    """Return the limit. Raises ConfigError if it is not a limit of an async Backstay."""
    if not isinstance(cast("object", limit), Limit):
        raise ConfigError("limit comes from an async Backstay, as in stay.limit('api', '100/minute')")
    return limit


async def resolve_key(function: KeyFunction, scope: Scope) -> str | None:
    key = function(scope)
    return await key if inspect.isawaitable(key) else key


async def decide(limit: Limit, key: str) -> Decision:
    """Charge one hit. `on_unavailable` of the limit decides while the engine is unavailable. Any other engine error,
    such as a damaged record, counts as a denial.
    """
    try:
        return await limit.hit(key)
    except EngineError as error:
        rate = limit.spec.rates[0]
        return Decision(
            False, key, 0, rate.limit, 0, RETRY_AFTER, RETRY_AFTER, rate.window / 1000, 0.0, "deny", str(error)
        )


def denial_problem(spec: LimitSpec, decision: Decision) -> dict[str, Any]:
    """Build the body of a 429 or 503. It does not disclose the engine's error."""
    wait = f"try again in {_round_up(decision.retry_after)} s"
    if decision.by == "deny":
        return problem(UNAVAILABLE, f"The rate limit cannot be checked now; {wait}.")
    rates = " and ".join(map(str, spec.rates))
    return problem(
        TOO_MANY,
        f"At most {rates}; {wait}.",
        limit=decision.limit,
        remaining=decision.remaining,
        retry_after=round(decision.retry_after, 3),
    )


def limit_headers(spec: LimitSpec, decision: Decision) -> list[Header]:
    """Build `RateLimit`, `RateLimit-Policy` and `X-RateLimit-*`, and `Retry-After` for a denial."""
    fields: list[Header] = []
    if not decision.allowed:
        fields.append((b"retry-after", b"%d" % _round_up(decision.retry_after)))
    if decision.trouble and decision.by != "local":
        return fields  # nothing was counted, so there are no figures
    names = {rate.window / 1000: _policy_name(spec, rate.window / 1000) for rate in spec.rates}
    policy = ", ".join(
        f"{names[rate.window / 1000]};q={rate.limit};w={_round_up(rate.window / 1000)}" for rate in spec.rates
    )
    reset = decision.reset_after if decision.allowed else decision.retry_after
    state = f"{names[decision.window]};r={decision.remaining};t={_round_up(reset)}"
    return [
        *fields,
        (b"ratelimit-policy", policy.encode("ascii")),
        (b"ratelimit", state.encode("ascii")),
        (b"x-ratelimit-limit", b"%d" % decision.limit),
        (b"x-ratelimit-remaining", b"%d" % decision.remaining),
        (b"x-ratelimit-reset", b"%d" % _round_up(decision.at + reset)),
    ]


def _policy_name(spec: LimitSpec, window: float) -> str:
    """Return the limit's name for the `RateLimit` headers, quoted as a string of RFC 9651 (structured fields). If the
    limit has several rates, the window is appended, so that each rate has its own name.
    """
    name = spec.name if len(spec.rates) == 1 else f"{spec.name}-{window:g}s"
    plain = "".join(c if " " <= c <= "~" and c not in '"\\' else "_" for c in name)
    return f'"{plain}"'


def _round_up(seconds: float) -> int:
    """Round up to whole seconds, at least 1: a client must not retry too early."""
    return max(1, math.ceil(seconds))
