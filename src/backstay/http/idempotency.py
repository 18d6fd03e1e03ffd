"""`Idempotency-Key` for any ASGI application: a request that is sent again is answered again, not carried out again.

Pure ASGI: streams are passed on as they come. The end of an answer is sent once the answer is kept, so a client that
got it all can rely on the same bytes the next time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from typing import Any, cast

from backstay.app import Backstay
from backstay.errors import ConfigError, EngineError, FingerprintMismatch, InProgress, LeaseLost
from backstay.http.asgi import App, Header, Receive, Scope, Send
from backstay.http.exchange import NOT_KEPT, Exchange, NotFinal, Raw, read
from backstay.http.problem import problem, send_problem
from backstay.idempotency.codec import LARGEST
from backstay.idempotency.options import OnUnavailable
from backstay.runtime import validation
from backstay.runtime.maybe_await import settled
from backstay.runtime.validation import Duration

#: Longer keys are a mistake more often than a wish.
LONGEST_KEY = 255
HEADER = b"idempotency-key"
REPLAYED: Header = (b"idempotent-replayed", b"true")
#: Who a caller is, if nobody says it better: the first of these that the request has.
CREDENTIALS = (b"authorization", b"x-api-key", b"cookie")
MEGABYTE = 1024 * 1024
#: Room for the headers of an answer beside its body.
HEADERS = MEGABYTE


def by_credentials(scope: Scope) -> str:
    """The caller as the request's own credentials tell it, hashed later. Cookies that change make a new caller."""
    headers = dict(reversed(scope["headers"]))
    return next((f"{name!r} {headers[name]!r}" for name in CREDENTIALS if name in headers), "")


class IdempotencyMiddleware:
    """Requests with an `Idempotency-Key` are carried out once for each caller and route.

    backstay: an async Backstay. methods: those that change something. required: whether a key must be there (a
    function of the scope, too). principal: who calls, as text; else by Authorization, X-API-Key or Cookie.
    wait: seconds to wait for a request in flight; else 409. ttl, lease, on_unavailable: as of `stay.idempotency.run`.
    max_body: the largest request that is read; else 413. max_response: the largest answer that is kept, up to
    7 MiB. retry_after: the seconds in the Retry-After of a 409 or a 503.
    """

    def __init__(
        self,
        app: App,
        *,
        backstay: Backstay,
        methods: Collection[str] = ("POST", "PATCH"),
        required: bool | Callable[[Scope], bool] = False,
        principal: Callable[[Scope], Any] = by_credentials,
        wait: Duration | None = 0,
        ttl: Duration | None = None,
        lease: Duration | None = None,
        on_unavailable: OnUnavailable | None = None,
        max_body: int = MEGABYTE,
        max_response: int = MEGABYTE,
        retry_after: int = 1,
    ) -> None:
        if isinstance(cast("object", methods), str):
            raise ConfigError(f"methods is a list, as in methods=['POST']; got {methods!r}")
        if not isinstance(cast("object", backstay), Backstay):
            raise ConfigError("backstay is an async Backstay: IdempotencyMiddleware(app, backstay=stay)")
        # What cannot work is said here, not to the first request.
        backstay.idempotent(wait=wait, ttl=ttl, lease=lease, on_unavailable=on_unavailable)
        self._app = app
        self._backstay = backstay
        self._methods = {method.upper() for method in methods}
        self._required = required
        self._principal = principal
        self._options: dict[str, Any] = {"wait": wait, "ttl": ttl, "lease": lease, "on_unavailable": on_unavailable}
        self._max_body = validation.count(max_body, "max_body", least=0)
        self._max_response = validation.count(max_response, "max_response", least=0)
        if max_response > LARGEST - HEADERS:
            raise ConfigError(f"max_response is at most {LARGEST - HEADERS}: larger outcomes cannot be kept")
        self._later: tuple[Header, ...] = ((b"retry-after", b"%d" % validation.count(retry_after, "retry_after")),)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in self._methods:
            await self._app(scope, receive, send)
            return
        keys = [value for name, value in scope["headers"] if name.lower() == HEADER]
        if not keys and not (self._required(scope) if callable(self._required) else self._required):
            await self._app(scope, receive, send)
            return
        if trouble := _trouble(keys):
            await send_problem(send, problem(400, trouble))
            return
        try:
            body = await self._read(receive)
        except ConnectionResetError:
            return  # nobody is there to be answered
        if body is None:
            detail = f"a request with an Idempotency-Key has at most {self._max_body} bytes here"
            await send_problem(send, problem(413, detail, limit=self._max_body), [(b"connection", b"close")])
            return
        route = f"{scope['method']}\0{scope.get('root_path', '')}\0{scope['path']}\0"
        caller = str(await settled(self._principal(scope)))
        name = f"http:{_digest((route + caller).encode())}:{keys[0].strip().decode()}"
        about = _digest(route.encode() + scope.get("query_string", b"") + b"\0" + body)
        await self._answer(name, about, Exchange(self._app, scope, body, receive, send, self._max_response), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole request; None: it is larger than it may be."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client went away before its request was complete")
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._max_body:
                return None
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def _answer(self, name: str, about: str, exchange: Exchange, send: Send) -> None:
        run = self._backstay.idempotency.run
        try:
            raw = await run(name, exchange.perform, fingerprint=about, codec=Raw(), **self._options)
            if not exchange.ran:
                await self._replay(name, raw, send)
                return
        except NotFinal:
            pass
        except InProgress as error:
            detail = "a request with this Idempotency-Key is in flight; send it again later for its answer"
            await send_problem(send, problem(409, detail, since=error.since), self._later)
            return
        except FingerprintMismatch as error:
            detail = "this Idempotency-Key was used for another request; use a new key for a new request"
            await send_problem(send, problem(422, detail, since=error.since))
            return
        except (EngineError, LeaseLost) as error:
            await self._refuse(exchange, error, send)
            return
        except BaseException:  # cancelled, say: the application must not be left waiting for the end of its answer
            await exchange.stop()
            raise
        await exchange.finish()

    async def _replay(self, name: str, raw: bytes, send: Send) -> None:
        answer = read(name, raw)
        if answer.status == NOT_KEPT:
            detail = "this request was carried out; its answer was too large to be kept, so it cannot be sent again"
            await send_problem(send, problem(409, detail), [REPLAYED])
            return
        start = {"type": "http.response.start", "status": answer.status, "headers": [*answer.headers, REPLAYED]}
        await send(start)
        await send({"type": "http.response.body", "body": answer.body})

    async def _refuse(self, exchange: Exchange, error: Exception, send: Send) -> None:
        """Whether it was carried out cannot be said, or another's answer counts: the next attempt will tell."""
        if exchange.seen:  # too late for another answer: the client sees that this one has no end
            await exchange.let_go()
            raise error
        why = "taken over by another attempt" if isinstance(error, LeaseLost) else "not to be checked right now"
        await send_problem(send, problem(503, f"this Idempotency-Key is {why}; send the request again"), self._later)
        await exchange.let_go()


def _trouble(keys: list[bytes]) -> str:
    """Why these headers name no key; empty: they do."""
    if not keys:
        return "this request needs an Idempotency-Key header: a new random value for each new request"
    if len(keys) > 1:
        return "there is more than one Idempotency-Key header"
    key = keys[0].strip()
    if not 1 <= len(key) <= LONGEST_KEY or not all(0x20 <= byte <= 0x7E for byte in key):  # noqa: PLR2004 - ASCII
        return f"an Idempotency-Key has 1 to {LONGEST_KEY} printable ASCII characters"
    return ""


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
