"""Server-sent events: what is durable is read, hints only wake the reader. Each event bears an id from which a client
that comes back goes on: no gap, no double.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple, Protocol

from backstay.engine.base import steady
from backstay.errors import EngineError
from backstay.server.http.problem import Refusal

if TYPE_CHECKING:
    from backstay.server.http.request import Call

#: What a browser waits before it comes back, in milliseconds.
OPENING = b"retry: 1000\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
REVOKED = b": this token does not count any more\n\n"
STOPPING = b": the server stops; come back\n\n"
#: While the engine is away, in seconds.
AGAIN = 1.0
#: Bytes that are sent at once.
SLICE = 64 * 1024
#: Of a sequence number: more, and engines cannot count so far.
MOST_DIGITS = 18


class Page(NamedTuple):
    """What a look found. `more`: look again at once. `ended`: there will never be more."""

    events: list[bytes]
    more: bool = False
    ended: bool = False


class Source(Protocol):
    """Something to be followed: each look answers what came since the one before."""

    topic: str
    #: How long to wait for a hint before looking all the same, in seconds: at first, and at most.
    first_look: float
    last_look: float

    async def look(self) -> Page: ...


def event(kind: str, data: bytes, id_: str = "") -> bytes:
    """One event. `data` is JSON, which has no line breaks."""
    head = f"id: {id_}\nevent: {kind}\ndata: " if id_ else f"event: {kind}\ndata: "
    return head.encode() + data + b"\n\n"


async def follow(call: Call, source: Source) -> AsyncGenerator[bytes, None]:
    """Everything from the source, with a sign of life now and then, until it ends, the server stops, the client goes
    (Gone) or its token is revoked. At most one page is held for a client that reads slowly.
    """
    try:
        async with aclosing(_told(call, source)) as pieces:
            async for piece in pieces:
                yield piece
                await call.check_token()
    except Refusal:
        yield REVOKED


async def _told(call: Call, source: Source) -> AsyncGenerator[bytes, None]:
    server = call.server
    beat = server.settings.stream_beat
    with server.ears.bell(source.topic) as bell:
        yield OPENING
        said = steady()
        nap = source.first_look
        while True:
            bell.clear()
            try:
                page = await source.look()
            except EngineError:
                page = Page([])
                nap = max(nap, AGAIN)
            if page.events:
                for slice_ in _slices(page.events):
                    yield slice_
                said = steady()
                nap = source.first_look
            if page.ended:
                yield event("end", b"{}")
                return
            if server.is_closing:
                yield STOPPING
                return
            if page.more:
                continue
            left = beat - (steady() - said)
            await call.wait_for(bell.wait(), max(0.0, min(nap, left)))
            nap = min(nap * 1.5, source.last_look)
            if steady() - said >= beat:
                yield KEEP_ALIVE
                said = steady()


def _slices(events: list[bytes]) -> Iterator[bytes]:
    """Events together, up to a size: so that a reader that stands still is noticed soon."""
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


def last_number(call: Call, after: int) -> int:
    """Where the client was, in a stream whose ids are numbers; else `after`. Raises Refusal (400)."""
    given = last_event_id(call)
    if not given:
        return after
    if not given.isascii() or not given.isdigit() or len(given) > MOST_DIGITS:
        raise Refusal(400, "Last-Event-ID is the id of an event of this stream: its sequence number")
    return int(given)


def last_event_id(call: Call) -> str:
    """Where the client was, as its browser says; "" for a new one."""
    given = call.header(b"last-event-id")
    return given.decode("latin-1")[:4096].strip() if given is not None else ""
