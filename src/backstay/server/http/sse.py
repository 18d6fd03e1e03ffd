"""Server-sent events over durable data. The stream reads from the store; notifications only shorten the polling delay.

Each event has an id. A client that reconnects with Last-Event-ID continues after that event, without gaps or
duplicates.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple, Protocol

from backstay.engine.base import steady
from backstay.errors import EngineError
from backstay.server.http.problem import Refusal

if TYPE_CHECKING:
    from backstay.server.http.request import Request

#: Sets the browser's reconnection delay, in milliseconds.
OPENING = b"retry: 1000\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
REVOKED = b": the token is no longer valid\n\n"
CROWDED = b": other callers needed this stream's place; reconnect later\n\n"
STOPPING = b": the server is stopping; reconnect\n\n"
#: Seconds between polls while the engine is unavailable.
ENGINE_RETRY = 1.0
#: Events are joined into one write until it has this many bytes.
SLICE = 64 * 1024
#: Digits of the longest sequence number that is accepted; it fits into 64 bits.
MAX_DIGITS = 18


class Page(NamedTuple):
    """The result of one poll of a source.

    events: the new events, encoded for the stream.
    more: whether further events are ready, so that the stream polls again at once.
    ended: whether the source will never have further events.
    """

    events: list[bytes]
    more: bool = False
    ended: bool = False


class Source(Protocol):
    """A source of events. Each poll returns the events since the previous poll. One stream polls it, never
    concurrently.
    """

    topic: str
    #: Seconds to wait for a notification before the next poll: the first wait, and the longest that it grows to.
    first_poll: float
    max_poll: float

    async def poll(self) -> Page: ...


def encode_event(kind: str, data: bytes, id_: str = "") -> bytes:
    """Encode one server-sent event. `data` is JSON without line breaks."""
    head = f"id: {id_}\nevent: {kind}\ndata: " if id_ else f"event: {kind}\ndata: "
    return head.encode() + data + b"\n\n"


async def follow(request: Request, source: Source) -> AsyncGenerator[bytes, None]:
    """Yield the source's events and keep-alives until the source ends, the server stops, the client disconnects
    (raises Disconnected) or its token is revoked. For a slow client the server buffers at most one page.
    """
    try:
        async with aclosing(_poll_source(request, source)) as pieces:
            async for piece in pieces:
                yield piece
                request.check_slot()
                await request.check_token()
    except Refusal as refusal:
        yield REVOKED if refusal.status == 401 else CROWDED  # noqa: PLR2004 - 503: its waiting slot was revoked


async def _poll_source(request: Request, source: Source) -> AsyncGenerator[bytes, None]:
    server = request.server
    keepalive = server.settings.stream_keepalive
    with server.notifier.subscribe(source.topic) as wakeup:
        yield OPENING
        sent_at = steady()
        delay = source.first_poll
        while True:
            wakeup.clear()
            try:
                page = await source.poll()
            except EngineError:
                page = Page([])
                delay = max(delay, ENGINE_RETRY)
            if page.events:
                for slice_ in _slices(page.events):
                    yield slice_
                sent_at = steady()
                delay = source.first_poll
            if page.ended:
                yield encode_event("end", b"{}")
                return
            if server.is_closing:
                yield STOPPING
                return
            if page.more:
                continue
            left = keepalive - (steady() - sent_at)
            await request.wait_for(wakeup.wait(), max(0.0, min(delay, left)))
            delay = min(delay * 1.5, source.max_poll)
            if steady() - sent_at >= keepalive:
                yield KEEP_ALIVE
                sent_at = steady()


def _slices(events: list[bytes]) -> Iterator[bytes]:
    """Join events into writes of limited size. The stream's timeout applies to each write: with small writes, the
    server notices earlier that a client has stopped reading.
    """
    gathered: list[bytes] = []
    size = 0
    for one in events:
        gathered.append(one)
        size += len(one)
        if size >= SLICE:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


def last_event_number(request: Request) -> int | None:
    """Return the Last-Event-ID header of a stream whose ids are numbers; None without the header. Raises Refusal
    (400).
    """
    given = last_event_id(request)
    if not given:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > MAX_DIGITS:
        raise Refusal(400, "Last-Event-ID must be the id of an event of this stream: its sequence number")
    return int(given)


def last_event_id(request: Request) -> str:
    """Return the Last-Event-ID header; "" for a client that connects for the first time."""
    given = request.header(b"last-event-id")
    return given.decode("latin-1")[:4096].strip() if given is not None else ""
