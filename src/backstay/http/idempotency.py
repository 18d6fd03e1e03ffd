"""`Idempotency-Key` middleware for any ASGI application: a repeated request gets the stored response and is not run.

Pure ASGI: response chunks are forwarded as the application sends them. The last chunk is sent only after the whole
response is stored, so a client that has received a complete response gets the same bytes when it repeats the request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from typing import Any, cast

from backstay.app import Backstay
from backstay.errors import ConfigError, EngineError, FingerprintMismatch, InProgress, LeaseLost
from backstay.http.asgi import App, Header, Receive, Scope, Send, read_body
from backstay.http.problem import problem, send_problem
from backstay.http.response_recorder import (
    TOO_LARGE,
    BytesCodec,
    ResponseNotStorable,
    ResponseRecorder,
    decode_response,
)
from backstay.idempotency.codec import LARGEST
from backstay.idempotency.options import OnUnavailable
from backstay.runtime import validation
from backstay.runtime.flows import maybe_await
from backstay.runtime.validation import Duration

#: The longest Idempotency-Key that is accepted. A longer one is probably a client error.
LONGEST_KEY = 255
HEADER = b"idempotency-key"
#: The start of the keys under which the middleware stores responses. The server's routes refuse such keys.
KEY_PREFIX = "http:"
REPLAYED: Header = (b"idempotent-replayed", b"true")
#: Headers that identify a caller by default, all of them together: an API key may be shared by many users.
CREDENTIALS = (b"authorization", b"x-api-key")
COOKIE = b"cookie"
MEGABYTE = 1024 * 1024
#: The error of a request whose caller is unknown: it must not get, nor block, the response of another anonymous caller.
NO_CALLER = (
    "a request with an Idempotency-Key needs credentials (Authorization, X-API-Key or a session cookie), because its"
    " response is replayed only to the same caller; an application with anonymous callers passes principal= to"
    " IdempotencyMiddleware"
)
#: A stored response has at most `LARGEST` bytes. This many of them are reserved for its headers; the rest is for its
#: body.
HEADERS = MEGABYTE


def by_credentials(scope: Scope, cookies: Collection[str] = ()) -> str:
    """Return the request's credentials, which together identify the caller: Authorization, X-API-Key and the cookies
    with these names; "" if it has none. The middleware hashes them.
    """
    found: list[tuple[bytes, bytes]] = []
    for header, value in scope["headers"]:
        name = header.lower()
        if name in CREDENTIALS:
            found.append((name, value))
        elif name == COOKIE:
            found += [(COOKIE, pair) for pair in _pairs(value) if pair.partition(b"=")[0].decode("latin-1") in cookies]
    return repr(sorted(found)) if found else ""


def _pairs(value: bytes) -> list[bytes]:
    return [pair.strip() for pair in value.split(b";")]


class IdempotencyMiddleware:
    """Runs each request with an `Idempotency-Key` once per caller and route; a repeat gets the stored response.

    stay: An async Backstay.
    methods: The HTTP methods that the middleware handles.
    required: Whether a request without a key is rejected with 400: a bool, or a function of the ASGI scope.
    cookies: The names of the cookies that identify the caller, such as the session's; () for none. Without it, the
        middleware refuses requests with cookies, because a cookie that changes with each response (of an analytics
        tool, for example) would turn a retry into a second execution, and an ignored session would give one user's
        response to another.
    principal: A function of the scope, async or not, that identifies the caller; it replaces the default, which is
        Authorization, X-API-Key and the named cookies together. A caller with none of these is refused (400): an
        application with anonymous callers needs `principal`.
    wait: Seconds to wait for a running request with the same key, then 409. None: no limit.
    ttl, lease, on_unavailable: As in `stay.idempotency.run`.
    max_body: The largest request body in bytes; a larger one is rejected with 413.
    max_response: The largest response body in bytes that is stored, up to 7 MiB.
    retry_after: Seconds in the Retry-After header of a 409 or 503.
    """

    def __init__(
        self,
        app: App,
        *,
        stay: Backstay,
        methods: Collection[str] = ("POST", "PATCH"),
        required: bool | Callable[[Scope], bool] = False,
        cookies: Collection[str] | None = None,
        principal: Callable[[Scope], Any] | None = None,
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
        if not isinstance(cast("object", stay), Backstay):
            raise ConfigError("stay must be an async Backstay: IdempotencyMiddleware(app, stay=stay)")
        # Validate the options now, not at the first request.
        stay.idempotent(wait=wait, ttl=ttl, lease=lease, on_unavailable=on_unavailable)
        self._app = app
        self._stay = stay
        self._methods = {method.upper() for method in methods}
        self._required = required
        if isinstance(cast("object", cookies), str):
            raise ConfigError(f"cookies is a list of names, as in cookies=['session']; got {cookies!r}")
        if cookies is not None and principal is not None:
            raise ConfigError("cookies= is part of the default identity, which principal= replaces: pass one of them")
        self._cookies = None if cookies is None else frozenset(cookies)
        self._principal = principal
        self._options: dict[str, Any] = {"wait": wait, "ttl": ttl, "lease": lease, "on_unavailable": on_unavailable}
        self._max_body = validation.check_count(max_body, "max_body", least=0)
        self._max_response = validation.check_count(max_response, "max_response", least=0)
        if max_response > LARGEST - HEADERS:
            raise ConfigError(f"max_response is at most {LARGEST - HEADERS}: larger outcomes cannot be stored")
        self._retry_after: tuple[Header, ...] = (
            (b"retry-after", b"%d" % validation.check_count(retry_after, "retry_after")),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in self._methods:
            await self._app(scope, receive, send)
            return
        keys = [value for name, value in scope["headers"] if name.lower() == HEADER]
        if not keys and not (self._required(scope) if callable(self._required) else self._required):
            await self._app(scope, receive, send)
            return
        if invalid := _explain_invalid(keys):
            await send_problem(send, problem(400, invalid))
            return
        caller = await self._identify(scope)
        if not caller:
            await send_problem(send, problem(400, NO_CALLER))
            return
        try:
            body = await read_body(receive, self._max_body)
        except ConnectionResetError:
            return  # the client is gone, so no response is needed
        if body is None:
            detail = f"the body of a request with an Idempotency-Key has at most {self._max_body} bytes"
            await send_problem(send, problem(413, detail, limit=self._max_body), [(b"connection", b"close")])
            return
        route = f"{scope['method']}\0{scope.get('root_path', '')}\0{scope['path']}\0"
        name = f"{KEY_PREFIX}{_digest((route + caller).encode())}:{keys[0].strip().decode()}"
        fingerprint = _digest(route.encode() + scope.get("query_string", b"") + b"\0" + body)
        recorder = ResponseRecorder(self._app, scope, body, receive, send, self._max_response)
        await self._respond(name, fingerprint, recorder, send)

    async def _identify(self, scope: Scope) -> str:
        """Return a text that identifies the caller; "": the request has no credentials. Raises ConfigError if it has
        cookies and the application did not say which of them identify a caller.
        """
        if self._principal is not None:
            found = await maybe_await(self._principal(scope))
            return "" if found is None else str(found)
        if self._cookies is None and any(name.lower() == COOKIE for name, _ in scope["headers"]):
            raise ConfigError(
                "this request has cookies, and IdempotencyMiddleware does not know which of them identify the caller:"
                " pass cookies=['session'] (the names of those that do), cookies=() if none does, or principal="
            )
        return by_credentials(scope, self._cookies or ())

    async def _respond(self, name: str, fingerprint: str, recorder: ResponseRecorder, send: Send) -> None:
        run = self._stay.idempotency.run
        try:
            raw = await run(name, recorder.run_app, fingerprint=fingerprint, codec=BytesCodec(), **self._options)
            if not recorder.was_called:
                await self._replay(name, raw, send)
                return
        except ResponseNotStorable:
            pass
        except InProgress as error:
            detail = "a request with this Idempotency-Key is still running; repeat it later to get its response"
            await send_problem(send, problem(409, detail, since=error.since), self._retry_after)
            return
        except FingerprintMismatch as error:
            detail = "this Idempotency-Key was used for another request; use a new key for a new request"
            await send_problem(send, problem(422, detail, since=error.since))
            return
        except (EngineError, LeaseLost) as error:
            await self._refuse(recorder, error, send)
            return
        except BaseException:  # e.g. a cancellation: stop the application, which may wait in its last `send`
            await recorder.stop()
            raise
        await recorder.finish()

    async def _replay(self, name: str, raw: bytes, send: Send) -> None:
        response = decode_response(name, raw)
        if response.status == TOO_LARGE:
            detail = "this request was completed; its response was too large to store, so it cannot be sent again"
            await send_problem(send, problem(409, detail), [REPLAYED])
            return
        start = {"type": "http.response.start", "status": response.status, "headers": [*response.headers, REPLAYED]}
        await send(start)
        await send({"type": "http.response.body", "body": response.body})

    async def _refuse(self, recorder: ResponseRecorder, error: Exception, send: Send) -> None:
        """Respond with 503. `error` says why: the engine failed when the key was checked or the response stored, or
        this request lost its lease on the key, and another request with the key may run. The client should repeat the
        request: it then gets the stored response or, if there is none, the request runs.
        """
        if recorder.has_sent:  # a part of the response is sent already: raise, so that the client sees it as incomplete
            await recorder.release()
            raise error
        if isinstance(error, LeaseLost):
            detail = "this Idempotency-Key was taken over by another attempt; send the request again"
        else:
            detail = "this Idempotency-Key cannot be checked right now; send the request again"
        await send_problem(send, problem(503, detail), self._retry_after)
        await recorder.release()


def _explain_invalid(keys: list[bytes]) -> str:
    """Return why the Idempotency-Key headers are invalid; "" if they are valid."""
    if not keys:
        return "this request needs an Idempotency-Key header: a new random value for each new request"
    if len(keys) > 1:
        return "the request has more than one Idempotency-Key header"
    key = keys[0].strip()
    if not 1 <= len(key) <= LONGEST_KEY or not all(0x20 <= byte <= 0x7E for byte in key):  # noqa: PLR2004 - ASCII
        return f"an Idempotency-Key has 1 to {LONGEST_KEY} printable ASCII characters"
    return ""


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
