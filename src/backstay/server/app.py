"""The ASGI application: finds the route, checks who asks and what, calls it, and answers. Plain ASGI with msgspec: a
request costs a fraction of what a framework adds, and every line that it passes is here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import aclosing
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from backstay import Backstay
from backstay.engine.base import steady
from backstay.errors import BackstayError
from backstay.http.asgi import Header, Message, Receive, Scope, Send
from backstay.http.callers import Callers
from backstay.http.problem import MEDIA_TYPE
from backstay.job.api.registry import store_of
from backstay.runtime.core import Core
from backstay.server.coordination.lock_waits import Places
from backstay.server.coordination.n8n_lock_waits import N8nPlaces
from backstay.server.events.notifications import Ears
from backstay.server.events.sources import Names
from backstay.server.http import openapi, origin_check
from backstay.server.http.access_log import Access
from backstay.server.http.auth import Keyring
from backstay.server.http.cors import Cors
from backstay.server.http.deadlines import Deadlines
from backstay.server.http.problem import Refusal, refusal_of
from backstay.server.http.request import Answer, Call, EventStream, Gone, Stream, Text, too_large
from backstay.server.http.route import Route
from backstay.server.http.router import Router
from backstay.server.http.throttle import Throttle
from backstay.server.metrics import Metrics
from backstay.server.routes import dashboard
from backstay.server.routes.table import TABLE
from backstay.server.settings import Settings
from backstay.server.views.run_lookup import Runbook
from backstay.server.workers.claims import Claims
from backstay.server.workers.heartbeats import Presences
from backstay.server.workers.logs import Logbook

log = logging.getLogger("backstay.server")

JSON = b"application/json"
#: What every answer carries: it is data, and belongs into no frame and no cache.
SAFE: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)
MOST_QUERY = 8192
MOST_ADDRESSES = 10_000

_encode = msgspec.json.Encoder(decimal_format="number").encode


class Server:
    """The application over one Backstay, which stays its maker's. `await server.open()` before, `close()` after."""

    def __init__(self, stay: Backstay, settings: Settings | None = None, *, extra: Iterable[Route] = ()) -> None:
        self.stay = stay
        self.core: Core = stay._core  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the server is the house's own
        self.store = store_of(self.core)
        self.settings = settings or Settings()
        self.table = (*TABLE, *extra)
        self.router = Router(self.table)
        self.keyring = Keyring(self.core, required=self.settings.require_tokens)
        self.metrics = Metrics(self.core)
        self.deadlines = Deadlines()
        self.ears = Ears(self.core)
        self.claims = Claims(self)
        self.presences = Presences(self.core, self.store)
        self.places = Places(self.core)
        self.n8n_places = N8nPlaces(self.core, self.places)
        self.runbook = Runbook(self.core, self.store)
        self.logbook = Logbook(self.core, self.store, stay.idempotency)
        self.names = Names(self)
        self._throttle = Throttle(self.settings.rate) if self.settings.rate else None
        self._guesses = Throttle(self.settings.guesses)
        self._callers = Callers()
        self._addresses: dict[str, str] = {}
        self._cors = Cors(self.settings.cors)
        self._access = Access() if self.settings.access_log else None
        #: Requests that wait: streams and long polls.
        self.waiting = 0
        self._closing: asyncio.Future[None] | None = None
        self._is_open = False

    @cached_property
    def document(self) -> dict[str, Any]:
        """OpenAPI, made from the table at first use."""
        return openapi.document(self.table)

    @property
    def closing(self) -> asyncio.Future[None]:
        """Done once the server stops: whoever waits answers now."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_future()
        return self._closing

    @property
    def is_closing(self) -> bool:
        return self._closing is not None and self._closing.done()

    async def open(self) -> None:
        """Safe twice."""
        if self._is_open:
            return
        await self.stay.open()
        await self.keyring.refresh()
        self.ears.open()
        dashboard.load()
        self._is_open = True

    def begin_close(self) -> None:
        """Streams and long polls end; requests that run may end. Safe twice."""
        if not self.closing.done():
            self.closing.set_result(None)

    async def close(self) -> None:
        """Safe twice. The Backstay stays open."""
        self.begin_close()
        await self.claims.close()
        await self.presences.close()
        self.deadlines.close()
        self.ears.close()

    # ── ASGI ──

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.open()
                except BackstayError as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = steady()
        exchange = _Exchange(send, self._cors.headers(scope), head=scope["method"] == "HEAD")
        route: Route | None = None
        call: Call | None = None
        try:
            if self._cors.is_question(scope):
                await exchange.answer(204, None, b"")
                return
            method = "GET" if exchange.head else scope["method"]
            route, path = self.router.find(method, scope.get("raw_path") or scope["path"].encode())
            call = Call(self, scope, receive, path)
            await self._admit(call, route)
            value = await self._perform(call, route)
            await self._answer(exchange, route, value)
        except Gone:
            exchange.status = exchange.status or 499
        except Refusal as refusal:
            if refusal.status == 413 and call is not None:  # noqa: PLR2004 - who still sends does not hear
                await call.pour_away()
            await exchange.refuse(refusal)
        except BackstayError as error:
            answer = refusal_of(error)
            if answer.status == 503:  # noqa: PLR2004 - the engine's trouble, which the caller does not see
                log.warning("%s %s: %s: %s", scope["method"], route.path if route else "?", type(error).__name__, error)
            await exchange.refuse(answer)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("%s %s went wrong", scope["method"], route.path if route else "?")
            self.metrics.bugs += 1
            await exchange.refuse(Refusal(500, "something went wrong here; the server's log says what", close=True))
        finally:
            if call is not None:
                call.close()
            seconds = steady() - began
            self.metrics.answered(route, exchange.status, seconds)
            if self._access is not None:
                self._access.write(scope, route, call, exchange.status, seconds)

    # ── who, and how often ──

    async def _admit(self, call: Call, route: Route) -> None:
        """Raises Refusal: 401, 403, 421, 429, 431."""
        scope = call.scope
        size = 0
        host = token = None
        for name, value in scope["headers"]:
            size += len(name) + len(value) + 4
            if name == b"authorization":
                if token is not None:
                    raise Refusal(400, "there is more than one authorization header")
                token = value
            elif name == b"host":
                host = value
        if size > self.settings.max_headers:
            most = self.settings.max_headers
            raise Refusal(431, f"the headers of a request have at most {most} bytes together", close=True)
        if not route.roles:
            return
        keyring = self.keyring
        if keyring.is_stale:
            await keyring.refresh()
        try:
            principal = call.principal = keyring.identify(token)
        except Refusal:
            if token is not None and (pause := self._guesses.hit(self._address(scope))):
                raise _too_often(self._guesses, pause) from None
            raise
        if not keyring.on:
            origin_check.check(scope, host, self.settings.hosts, self._cors.origins)
        if self._throttle is not None:
            key = principal.id or self._address(scope)
            if pause := self._throttle.hit(key):
                raise _too_often(self._throttle, pause)
        if not route.roles & principal.roles:
            needed = " or ".join(sorted(route.roles))
            raise Refusal(403, f"this route is for tokens with the role {needed}")

    def _address(self, scope: Scope) -> str:
        """Whom a request without a token is counted for. A connection has many requests, and one address."""
        client = scope.get("client")
        host = client[0] if client else ""
        found = self._addresses.get(host)
        if found is None:
            if len(self._addresses) > MOST_ADDRESSES:
                self._addresses.clear()
            found = self._addresses[host] = self._callers.by_ip(scope)
        return found

    # ── what is asked ──

    async def _perform(self, call: Call, route: Route) -> Any:
        arguments: dict[str, Any] = {}
        question: bytes = call.scope.get("query_string", b"")
        if route.query is not None:
            arguments["query"] = _query(question, route.query)
        elif question:
            raise Refusal(422, "this route takes no query parameters")
        if route.body is not None:
            arguments["body"] = await self._body(call, route)
        return await route.handler(call, **arguments)

    async def _body(self, call: Call, route: Route) -> Any:
        if route.takes != "application/json":
            return None  # the handler reads it as it comes
        most = route.max_body or self.settings.max_body
        length = call.header(b"content-length")
        if length is not None and (not length.isdigit() or int(length) > most):
            raise too_large(most)
        raw = await self._read(call, most)
        if not raw and not route.body_needed:
            raw = b"{}"
        elif (kind := _media_type(call.header(b"content-type"))) != JSON:
            said = kind.decode("latin-1")[:100]
            raise Refusal(415, f"send JSON with content-type: application/json; got {said or 'none'}")
        try:
            return route.read(raw)
        except msgspec.ValidationError as error:
            raise Refusal(422, f"the body does not fit: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refusal(400, f"the body is not JSON: {error}") from None

    async def _read(self, call: Call, most: int) -> bytes:
        message = await call.within(self.settings.body_patience)
        if message["type"] == "http.disconnect":
            raise Gone
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            if len(body) > most:
                raise too_large(most)
            return body
        pieces, size = [body], len(body)
        until = steady() + self.settings.body_patience
        while True:
            message = await call.within(until - steady())
            if message["type"] == "http.disconnect":
                raise Gone
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > most:
                raise too_large(most)
            if not message.get("more_body", False):
                return b"".join(pieces)

    # ── what is answered ──

    async def _answer(self, exchange: _Exchange, route: Route, value: Any) -> None:
        status = route.status
        if type(value) is Answer:
            status, value = value.status, value.value
        if isinstance(value, Stream):
            await self._stream(exchange, status, value)
        elif value is None and route.reply is None:
            await exchange.answer(204 if status == 200 else status, None, b"")  # noqa: PLR2004 - nothing to say
        elif isinstance(value, Text):
            await exchange.answer(status, route.gives.encode(), value.encode())
        else:
            await exchange.answer(status, JSON, _encode(value))

    async def _stream(self, exchange: _Exchange, status: int, stream: Stream) -> None:
        """Piece by piece. A reader that stands still is hung up on: what it missed is read again when it comes back."""
        patience = self.settings.stream_patience
        await exchange.begin(status, stream.media_type, stream.headers)
        if exchange.head:
            await exchange.end()
            return
        counts = isinstance(stream, EventStream)
        self.waiting += counts
        try:
            async with aclosing(stream.pieces) as pieces:
                async for piece in pieces:
                    async with asyncio.timeout(patience):
                        await exchange.piece(piece)
            async with asyncio.timeout(patience):
                await exchange.end()
        except TimeoutError:
            raise Gone from None
        finally:
            self.waiting -= counts

    def make_room(self) -> None:
        """Before a stream or a long poll. Raises Refusal when there are too many."""
        if self.waiting >= self.settings.max_waiting:
            raise Refusal(503, "too many wait here already; come back later", headers={"retry-after": "5"})


class _Exchange:
    """The answer's side of a request."""

    __slots__ = ("_own", "_send", "head", "status")

    def __init__(self, send: Send, own: tuple[Header, ...], *, head: bool) -> None:
        self._send = send
        self._own = own
        self.head = head
        #: 0: nothing was sent.
        self.status = 0

    async def answer(self, status: int, media_type: bytes | None, body: bytes, *headers: Header) -> None:
        fields = [*SAFE, *self._own, *headers, (b"content-length", b"%d" % len(body))]
        if media_type is not None:
            fields.append((b"content-type", media_type))
        elif status == 204:  # noqa: PLR2004 - which has no length either
            fields.pop()
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": fields})
        await self._send({"type": "http.response.body", "body": b"" if self.head else body})

    async def begin(self, status: int, media_type: bytes, headers: dict[bytes, bytes]) -> None:
        self.status = status
        safe = [field for field in SAFE if field[0] not in headers]
        fields = [*safe, *self._own, *headers.items(), (b"content-type", media_type)]
        await self._send({"type": "http.response.start", "status": status, "headers": fields})

    async def piece(self, body: bytes) -> None:
        message: Message = {"type": "http.response.body", "body": body, "more_body": True}
        await self._send(message)

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def refuse(self, refusal: Refusal) -> None:
        if self.status:  # an answer has begun: the client sees that it has no end
            return
        headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in refusal.headers.items()]
        body = _encode(refusal.body)
        await self.answer(refusal.status, MEDIA_TYPE.encode(), body, *headers)


def _too_often(throttle: Throttle, pause: float) -> Refusal:
    seconds = max(1, round(pause + 0.5))
    detail = f"at most {throttle.rate} here; try again in {seconds} s"
    return Refusal(429, detail, headers={"retry-after": str(seconds)}, retry_after=round(pause, 3))


def _query(raw: bytes, kind: type[msgspec.Struct]) -> Any:
    if len(raw) > MOST_QUERY:
        raise Refusal(414, f"a query has at most {MOST_QUERY} bytes")
    if not raw:
        pairs: list[tuple[str, str]] = []
    else:
        try:
            pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
        except (ValueError, UnicodeDecodeError) as error:
            raise Refusal(400, f"the query cannot be read: {error}") from None
    values = dict(pairs)
    if len(values) < len(pairs):
        raise Refusal(422, "a query parameter is there twice")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal(422, f"the query does not fit: {error}") from None


def _media_type(value: bytes | None) -> bytes:
    return (value or b"").partition(b";")[0].strip().lower()
