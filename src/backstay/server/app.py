"""The ASGI application: routes a request, admits it, decodes its body, calls the handler and sends the response.

It is written in plain ASGI with msgspec, without a web framework, to keep the overhead per request small.
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
from backstay.engine.base import DECODE_ERRORS, steady
from backstay.errors import BackstayError
from backstay.http.asgi import Receive, Scope, Send
from backstay.idempotency.api import Idempotency
from backstay.idempotency.machine import SERVER_CALLS
from backstay.runtime.serialization import printable
from backstay.server.coordination.held_locks import HeldLocks
from backstay.server.coordination.lock_waits import LockWaits
from backstay.server.coordination.n8n_held_locks import N8nHeldLocks
from backstay.server.coordination.n8n_lock_waits import N8nLockWaits
from backstay.server.events.notifications import Notifier
from backstay.server.events.sources import EventRenderer
from backstay.server.http import openapi
from backstay.server.http.access_log import AccessLog
from backstay.server.http.admission import Admission
from backstay.server.http.auth import Keyring
from backstay.server.http.cors import Cors
from backstay.server.http.deadlines import Deadlines
from backstay.server.http.problem import Refusal, corrupt_record, refusal_for
from backstay.server.http.request import Disconnected, Request, too_large
from backstay.server.http.response import EventStream, Response, ResponseWriter, Stream, Text, encode_json
from backstay.server.http.route import Route
from backstay.server.http.router import Router
from backstay.server.http.waiting import WaitingSlots
from backstay.server.metrics import Metrics
from backstay.server.quotas import ArtifactQuota, QueueQuota
from backstay.server.routes import dashboard
from backstay.server.routes.operations import Readiness
from backstay.server.routes.table import TABLE
from backstay.server.settings import ServerSettings
from backstay.server.views.run_lookup import RunLookup
from backstay.server.workers.claims import Claims
from backstay.server.workers.heartbeats import WorkerHeartbeats
from backstay.server.workers.logs import JobLogs
from backstay.server.workflow_thread import WorkflowThread

log = logging.getLogger("backstay.server")

JSON = b"application/json"
#: The longest query string, in bytes.
MAX_QUERY = 8192


class Server:
    """The ASGI application over one Backstay. Call `open()` before the first request and `close()` after the last.

    `close()` leaves the Backstay open: the caller that made it closes it.
    """

    def __init__(self, stay: Backstay, settings: ServerSettings | None = None, *, extra: Iterable[Route] = ()) -> None:
        self.stay = stay
        self.core = stay.internals.core
        self.store = stay.internals.job_store
        self.settings = settings or ServerSettings()
        self.table = (*TABLE, *extra)
        self.router = Router(self.table)
        self.keyring = Keyring(self.core, required=self.settings.require_tokens)
        self.metrics = Metrics(self.core)
        self.deadlines = Deadlines()
        self.notifier = Notifier(self.core)
        self.claims = Claims(self)
        self.heartbeats = WorkerHeartbeats(self.core, self.store)
        self.lock_waits = LockWaits(self.core)
        self.n8n_lock_waits = N8nLockWaits(self.core, self.lock_waits)
        self.held_locks = HeldLocks(self.core)
        self.n8n_held_locks = N8nHeldLocks(self.core)
        self.run_lookup = RunLookup(self.core, self.store)
        #: The server's own idempotent calls. Their records are out of reach for clients.
        self.calls = Idempotency(self.core, SERVER_CALLS)
        self.job_logs = JobLogs(self.core, self.store, self.calls, self.settings.max_job_log)
        self.event_renderer = EventRenderer(self)
        self._cors = Cors(self.settings.cors)
        self._admission = Admission(self.settings, self.keyring, self._cors)
        self._access_log = AccessLog() if self.settings.access_log else None
        self.queue_quota = QueueQuota(self.core, self.store, self.settings.max_queue)
        self.artifact_quota = ArtifactQuota(self.core, self.store, self.settings)
        self.readiness = Readiness(self.core)
        self.waiting_slots = WaitingSlots(self.settings.max_waiting)
        self.workflow_thread = WorkflowThread()
        self._closing: asyncio.Future[None] | None = None
        self._is_open = False

    @cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI document, built from the route table at first use."""
        return openapi.build_document(self.table)

    @property
    def closing(self) -> asyncio.Future[None]:
        """A future that resolves when the server begins to stop. Streams and long polls wait on it and then end."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_future()
        return self._closing

    @property
    def waiting(self) -> int:
        """The number of open streams and long polls."""
        return self.waiting_slots.count

    @property
    def is_closing(self) -> bool:
        return self._closing is not None and self._closing.done()

    async def open(self) -> None:
        """Open the Backstay, load the tokens and start listening for notifications. Safe to call twice."""
        if self._is_open:
            return
        await self.stay.open()
        await self.keyring.refresh()
        self.notifier.open()
        dashboard.load()
        self._is_open = True

    def begin_close(self) -> None:
        """Make streams and long polls end; other requests finish normally. Safe to call twice."""
        if not self.closing.done():
            self.closing.set_result(None)

    async def close(self) -> None:
        """Stop background tasks and subscriptions. Safe to call twice. The Backstay stays open."""
        self.begin_close()
        await self.claims.close()
        await self.heartbeats.close()
        self.deadlines.close()
        self.notifier.close()
        self.workflow_thread.close()

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
        writer = ResponseWriter(send, self._cors.headers(scope), head=scope["method"] == "HEAD")
        route: Route | None = None
        request: Request | None = None
        try:
            if self._cors.is_preflight(scope):
                await writer.send(204, None, b"")
                return
            method = "GET" if writer.head else scope["method"]
            route, path = self.router.find(method, scope.get("raw_path") or scope["path"].encode())
            request = Request(self, scope, receive, path)
            await self._admission.admit(request, route)
            value = await self._handle(request, route)
            await self._respond(writer, request, route, value)
        except Disconnected:
            writer.status = writer.status or 499
        except Refusal as refusal:
            # 413 means that the body is too large. The client may still be sending the body, and may read the response
            # only after that. So read the rest of the body before the response is sent.
            if refusal.status == 413 and request is not None:  # noqa: PLR2004 - explained above
                await request.drain_body()
            await writer.refuse(refusal)
        except BackstayError as error:
            mapped = refusal_for(error)
            if mapped.status == 503:  # noqa: PLR2004 - the response hides the engine's error, so the log has it
                log.warning("%s %s: %s: %s", scope["method"], route.path if route else "?", type(error).__name__, error)
            await writer.refuse(mapped)
        except asyncio.CancelledError:
            raise
        except DECODE_ERRORS as error:
            # Bodies and queries are decoded above, so this is a record of the store. The path names it.
            name = printable(scope["path"][:200])
            log.error("%s %s: CorruptRecord: %s", scope["method"], name, error)  # noqa: TRY400 - damaged data, not a bug
            await writer.refuse(corrupt_record(f"of {name}: {error}"))
        except Exception:
            log.exception("%s %s failed", scope["method"], route.path if route else "?")
            self.metrics.bugs += 1
            await writer.refuse(Refusal(500, "internal error; see the server's log", close=True))
        finally:
            if request is not None:
                request.close()
            seconds = steady() - began
            self.metrics.record_request(route, writer.status, seconds)
            if self._access_log is not None:
                self._access_log.write(scope, route, request, writer.status, seconds)

    # ── requests ──

    async def _handle(self, request: Request, route: Route) -> Any:
        """Decode query and body, call the handler and return its result."""
        arguments: dict[str, Any] = {}
        query: bytes = request.scope.get("query_string", b"")
        if route.query is not None:
            arguments["query"] = _decode_query(query, route.query)
        elif query:
            raise Refusal(422, "this route takes no query parameters")
        if route.body is not None:
            arguments["body"] = await self._decode_body(request, route)
        return await route.handler(request, **arguments)

    async def _decode_body(self, request: Request, route: Route) -> Any:
        if route.consumes != "application/json":
            return None  # the handler reads the body chunk by chunk
        most = route.max_body or self.settings.max_body
        length = request.header(b"content-length")
        if length is not None and (not length.isdigit() or int(length) > most):
            raise too_large(most)
        raw = await self._read_body(request, most)
        if not raw and not route.body_required:
            raw = b"{}"
        elif (kind := _media_type(request.header(b"content-type"))) != JSON:
            shown = kind.decode("latin-1")[:100]
            raise Refusal(415, f"send JSON with content-type: application/json; got {shown or 'none'}")
        try:
            return route.decode(raw)
        except msgspec.ValidationError as error:
            raise Refusal(422, f"the body is invalid: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refusal(400, f"the body is not JSON: {error}") from None

    async def _read_body(self, request: Request, most: int) -> bytes:
        message = await request.receive_within(self.settings.body_timeout)
        if message["type"] == "http.disconnect":
            raise Disconnected
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            request.is_body_read = True
            if len(body) > most:
                raise too_large(most)
            return body
        pieces, size = [body], len(body)
        until = steady() + self.settings.body_timeout
        while True:
            message = await request.receive_within(until - steady())
            if message["type"] == "http.disconnect":
                raise Disconnected
            pieces.append(message.get("body", b""))
            request.is_body_read = not message.get("more_body", False)
            size += len(pieces[-1])
            if size > most:
                raise too_large(most)
            if request.is_body_read:
                return b"".join(pieces)

    # ── responses ──

    async def _respond(self, writer: ResponseWriter, request: Request, route: Route, value: Any) -> None:
        status = route.status
        if type(value) is Response:
            status, value = value.status, value.value
        if isinstance(value, Stream):
            if isinstance(value, EventStream) and not writer.head:
                request.take_waiting_slot()  # before the response starts, so that it can still be a refusal
            await self._stream(writer, status, value)
        elif value is None and route.reply is None:
            await writer.send(204 if status == 200 else status, None, b"")  # noqa: PLR2004 - no body: 204, not 200
        elif isinstance(value, Text):
            await writer.send(status, route.produces.encode(), value.encode())
        else:
            await writer.send(status, JSON, encode_json(value))

    async def _stream(self, writer: ResponseWriter, status: int, stream: Stream) -> None:
        """Send a stream chunk by chunk. Raises Disconnected when the client stops reading for `stream_timeout`."""
        timeout = self.settings.stream_timeout
        await writer.start(status, stream.media_type, stream.headers)
        if writer.head:
            await writer.finish()
            return
        try:
            async with aclosing(stream.pieces) as pieces:
                async for piece in pieces:
                    async with asyncio.timeout(timeout):
                        await writer.send_chunk(piece)
            async with asyncio.timeout(timeout):
                await writer.finish()
        except TimeoutError:
            raise Disconnected from None


def _decode_query(raw: bytes, kind: type[msgspec.Struct]) -> Any:
    if len(raw) > MAX_QUERY:
        raise Refusal(414, f"a query string may have at most {MAX_QUERY} bytes")
    if not raw:
        pairs: list[tuple[str, str]] = []
    else:
        try:
            pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
        except (ValueError, UnicodeDecodeError) as error:
            raise Refusal(400, f"the query string is malformed: {error}") from None
    values = dict(pairs)
    if len(values) < len(pairs):
        raise Refusal(422, "a query parameter is repeated")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal(422, f"the query is invalid: {error}") from None


def _media_type(value: bytes | None) -> bytes:
    return (value or b"").partition(b";")[0].strip().lower()
