"""Admission of a request before its body is read: header size, token, role, Host and Origin checks, rate limits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from time import time_ns

from backstay.http.asgi import Scope
from backstay.http.caller_key import CallerKeys
from backstay.limit.machine import Denied, Hit, LimitState, step
from backstay.limit.spec import spec
from backstay.server.http import origin_check
from backstay.server.http.auth import Keyring
from backstay.server.http.cors import Cors
from backstay.server.http.problem import Refusal
from backstay.server.http.request import Request
from backstay.server.http.route import Route
from backstay.server.settings import ServerSettings

#: Client addresses whose rate-limit key is cached; the cache is cleared when it is full.
MAX_ADDRESSES = 10_000
#: The beginnings of headers that a reverse proxy adds: X-Forwarded-For, -Host, -Proto, …, and Forwarded (RFC 7239).
FORWARDED = (b"x-forwarded-", b"forwarded")
#: Callers whose requests are counted; the least recently seen is evicted first.
MAX_CALLERS = 10_000


class Admission:
    """Decides whether a request may reach its handler. Its rate limits count per server process. Use it on the event
    loop only.
    """

    def __init__(self, settings: ServerSettings, keyring: Keyring, cors: Cors) -> None:
        self._settings = settings
        self._keyring = keyring
        self._cors = cors
        self._throttle = Throttle(settings.rate) if settings.rate else None
        self._wrong_tokens = Throttle(settings.auth_failure_rate)
        self._callers = CallerKeys(settings.trusted_proxies)
        self._addresses: dict[str, str] = {}

    async def admit(self, request: Request, route: Route) -> None:
        """Check a request and set `request.principal`. Raises Refusal: 400, 401, 403, 421, 429, 431."""
        scope = request.scope
        size = 0
        host = token = None
        forwarded = False
        for name, value in scope["headers"]:
            size += len(name) + len(value) + 4
            if name == b"authorization":
                if token is not None:
                    raise Refusal(400, "the request has more than one authorization header")
                token = value
            elif name == b"host":
                host = value
            elif name.startswith(FORWARDED):
                forwarded = True
        limit = self._settings.max_headers
        if size > limit:
            raise Refusal(431, f"the headers of a request may have at most {limit} bytes together", close=True)
        if not route.roles:
            return
        keyring = self._keyring
        if keyring.is_stale:
            await keyring.refresh()
        try:
            principal = request.principal = keyring.identify(token)
        except Refusal:
            if token is not None and (pause := self._wrong_tokens.hit(self._address(scope))):
                raise _too_many_requests(self._wrong_tokens, pause) from None
            raise
        if not keyring.requires_token:
            if forwarded and not self._settings.trusted_proxies:
                raise Refusal(
                    403,
                    "a proxy forwarded this request, and this server has no tokens: each client of the proxy would have"
                    " full access. Create a token, or name the proxy with --trusted-proxies",
                )
            origin_check.check(scope, host, self._settings.hosts, self._cors.origins)
        if self._throttle is not None:
            key = principal.id or self._address(scope)
            if pause := self._throttle.hit(key):
                raise _too_many_requests(self._throttle, pause)
        if not route.roles & principal.roles:
            needed = " or ".join(sorted(route.roles))
            raise Refusal(403, f"this route needs a token with the role {needed}")

    def _address(self, scope: Scope) -> str:
        """Return the key under which requests from this client's address are counted. Keys are cached by address, since
        one client sends many requests.
        """
        if self._settings.trusted_proxies:
            return self._callers.by_ip(scope)  # depends on a header, too
        client = scope.get("client")
        host = client[0] if client else ""
        found = self._addresses.get(host)
        if found is None:
            if len(self._addresses) > MAX_ADDRESSES:
                self._addresses.clear()
            found = self._addresses[host] = self._callers.by_ip(scope)
        return found


def _too_many_requests(throttle: Throttle, pause: float) -> Refusal:
    seconds = max(1, round(pause + 0.5))
    detail = f"the limit is {throttle.rate}; try again in {seconds} s"
    return Refusal(429, detail, headers={"retry-after": str(seconds)}, retry_after=round(pause, 3))


def _micros() -> int:
    return time_ns() // 1000


class Throttle:
    """A rate limit per key in this process's memory. It runs the machine of `backstay.limit` without an engine, so that
    a hit costs microseconds and works while the engine is unavailable. Each server process counts for itself.
    """

    def __init__(self, rate: str, clock: Callable[[], int] = _micros) -> None:
        made = spec("http", (rate,), "gcra", None, "deny")
        self.rate = rate
        self.limit = made.rates[0].limit
        #: The machine grants a hundredth of the limit at once; the next hits use that up without running it.
        self._portion = max(1, self.limit // 100)
        self._hit = Hit(2**62, made.algorithm_id, made.rules, self._portion)
        self._clock = clock
        self._taken: OrderedDict[str, LimitState] = OrderedDict()
        self._left: dict[str, int] = {}

    def hit(self, key: str) -> float:
        """Count one request. Returns 0.0 when it is allowed, else the seconds until it would be."""
        if left := self._left.get(key):
            self._left[key] = left - 1
            return 0.0
        done = step(self._taken.get(key), self._hit, self._clock())
        if isinstance(done.reply, Denied):
            return done.reply.retry / 1_000_000
        if done.state is not None:
            self._taken[key] = done.state
            self._taken.move_to_end(key)
            if len(self._taken) > MAX_CALLERS:
                gone, _ = self._taken.popitem(last=False)
                self._left.pop(gone, None)
        self._left[key] = self._portion - 1
        return 0.0
