"""What happened in runs, as it is sent: one run's events by their numbers, or those of all runs behind a cursor.

Stores promise that nothing appears behind a cursor that was given out. So an event's id is the cursor of the page it
was on and the event itself: whoever comes back reads that page again and goes on behind the event.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from backstay.errors import BackstayError, EngineError
from backstay.job.flows import look, send
from backstay.job.reserved import is_internal
from backstay.job.run_model import FINISHED, RunEvent
from backstay.server.http.problem import Refusal
from backstay.server.http.sse import Page, event
from backstay.server.schemas.workflows import Event, Happening

if TYPE_CHECKING:
    from backstay.server.app import Server

PAGE = 500
#: Jobs whose names are remembered.
MOST = 20_000
#: Of a decision: the job has not begun.
BEFORE = ("ready", "started", "scheduled", "lease_expired")

_encode = msgspec.json.Encoder().encode


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Behind an event: the cursor of each shard, and, where a page of it was begun, the last event that was sent of it
    ("": none).
    """

    cursors: tuple[str, ...]
    seen: tuple[str, ...]

    def text(self) -> str:
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).rstrip(b"=").decode()


def position(text: str, shards: int) -> Position:
    """From an event's id; "": from now on. Raises Refusal (400) for what is none."""
    if not text:
        return Position(("$",) * shards, ("",) * shards)
    if text == "0":
        return Position(("",) * shards, ("",) * shards)
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        found = msgspec.msgpack.decode(raw, type=Position)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        found = None
    if found is None or not len(found.cursors) == len(found.seen) == shards:
        raise no_position()
    return found


def no_position() -> Refusal:
    return Refusal(400, 'a position is the id of an event of this stream, or "0" for the oldest that is kept')


class Names:
    """What jobs of runs are called, by their ids."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._known: OrderedDict[str, tuple[str, bool]] = OrderedDict()

    async def of(self, happened: RunEvent) -> tuple[str, str, bool]:
        """The workflow, the job's name in it, and whether it is one of Backstay's own that stands in its place. Raises
        EngineError.
        """
        try:
            play = await self._server.runbook.play(happened.run)
        except EngineError:
            raise  # it will be told when the engine is back, by its name
        except (Refusal, BackstayError):
            return "", happened.job, False  # its record has gone meanwhile
        if not happened.job:
            return play.workflow, "", False
        if happened.job in play.names:
            return play.workflow, play.names[happened.job], happened.job in play.decided
        known = self._known.get(happened.job)
        if known is None:
            try:
                job = await look(self._server.core, happened.job)
                known = await self._server.runbook.key_of(job), is_internal(job.type)
            except EngineError:
                raise
            except BackstayError:
                known = happened.job, False
            self._known[happened.job] = known
            if len(self._known) > MOST:
                self._known.popitem(last=False)
        name, deciding = known
        return play.workflow, name, deciding

    async def _kind(self, happened: RunEvent) -> Happening:
        """Of a decision: that it goes on, that the job's turn comes, or the job's own end."""
        if happened.kind in BEFORE:
            return "deciding"
        if happened.kind == "completed":
            try:
                if (await look(self._server.core, happened.job)).followed_by:
                    return "decided"
            except EngineError:
                raise
            except BackstayError:
                return "decided"  # its record has gone meanwhile
        return happened.kind

    async def view(self, happened: RunEvent) -> Event:
        workflow, name, deciding = await self.of(happened)
        return Event(
            event=await self._kind(happened) if deciding else happened.kind,
            workflow_id=workflow,
            run_id=happened.run,
            job_id=name,
            uid=happened.job,
            sequence=happened.seq,
            timestamp_ms=happened.at // 1000,
            attempt=happened.attempt,
            worker_id=happened.worker,
            why=happened.why,
        )


class RunSource:
    """One run's events. Ends with the run, once all was read."""

    first_look = 1.0
    last_look = 2.0

    def __init__(self, server: Server, names: Names, run: str, after: int) -> None:
        self.topic = f"run:{run}"
        self._server = server
        self._names = names
        self._run = run
        self._after = after

    async def look(self) -> Page:
        server = self._server
        happened = await send(server.core, server.store.run_events(self._run, self._after, PAGE))
        if happened:
            shown = [await self._names.view(one) for one in happened]
            self._after = happened[-1].seq  # last: what could not be told is looked at again
            return Page([event(one.event, _encode(one), str(one.sequence)) for one in shown], more=True)
        run = await send(server.core, server.store.get_run(self._run, doc=False))
        return Page([], ended=run is None or (run.status in FINISHED and run.events <= self._after))


class AllSource:
    """Events of all runs, from a position on. Never ends."""

    topic = "events"
    first_look = 1.0
    last_look = 2.0

    def __init__(self, server: Server, names: Names, start: Position) -> None:
        self._server = server
        self._names = names
        self._cursors = list(start.cursors)
        self._seen = list(start.seen)

    async def look(self) -> Page:
        server = self._server
        events: list[bytes] = []
        more = False
        cursors, seen = list(self._cursors), list(self._seen)
        for shard, cursor in enumerate(self._cursors):
            page = await send(server.core, server.store.events(shard, cursor, PAGE))
            if cursor == "$":  # from now on begins here, not at each look
                cursors[shard] = self._cursors[shard] = page.cursor
            for one in _unseen(page.events, seen[shard]):
                seen[shard] = _mark(one)
                place = Position(tuple(cursors), tuple(seen))
                shown = await self._names.view(one)
                events.append(event(shown.event, _encode(shown), place.text()))
            cursors[shard], seen[shard] = page.cursor, ""
            more = more or len(page.events) == PAGE
        # Only now: what one shard told is looked at again when the engine goes away before the next one could.
        self._cursors, self._seen = cursors, seen
        return Page(events, more=more)


def _mark(happened: RunEvent) -> str:
    return f"{happened.run}.{happened.seq}"


def _unseen(happened: tuple[RunEvent, ...], seen: str) -> tuple[RunEvent, ...]:
    """Without what the client had of this page before it left; all of it where the page has moved on."""
    if seen:
        for place, one in enumerate(happened):
            if _mark(one) == seen:
                return happened[place + 1 :]
    return happened
