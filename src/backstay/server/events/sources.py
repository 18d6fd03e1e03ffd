"""Sources of run events for server-sent streams: of one run by sequence number, or of all runs by cursor.

A store never inserts an event before a cursor that it has returned. So the id of an event in the stream of all runs
contains the cursor at which its page begins, and the event's key (`<run>.<sequence number>`). When a client
reconnects with that id, the server reads the same page again and sends the events after that one.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from backstay.errors import BackstayError, EngineError
from backstay.job.flows import fetch_job, send
from backstay.job.reserved import is_internal
from backstay.job.run_model import FINISHED, RunEvent
from backstay.server.http.problem import Refusal
from backstay.server.http.sse import Page, encode_event
from backstay.server.schemas.workflows import Event, StreamEventKind

if TYPE_CHECKING:
    from backstay.server.app import Server

PAGE = 500
#: The largest number of jobs whose names are cached.
MAX_NAMES = 20_000
#: A decision job is an internal job in the chain of a planned job: it evaluates the `if`, or creates the jobs of a map.
#: After an event of these kinds, the decision is still open.
UNDECIDED = ("ready", "started", "scheduled", "lease_expired")

_encode = msgspec.json.Encoder().encode


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A position in the stream of all runs: for each shard, the cursor of a page, and the key of the last event of that
    page that was sent ("": none).
    """

    cursors: tuple[str, ...]
    seen: tuple[str, ...]

    def text(self) -> str:
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).rstrip(b"=").decode()


def parse_position(text: str, shards: int) -> Position:
    """Parse an event id. "" means the end of the stream, "0" the oldest stored event. Raises Refusal (400)."""
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
        raise bad_position()
    return found


def bad_position() -> Refusal:
    return Refusal(400, 'a position must be the id of an event of this stream, or "0" for the oldest stored event')


class EventRenderer:
    """Renders stored run events as API events, with workflow and job names. Caches the names by job id."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._known: OrderedDict[str, tuple[str, bool]] = OrderedDict()

    async def _resolve(self, event: RunEvent) -> tuple[str, str, bool]:
        """Return the workflow of the event, the name of the event's job in the workflow, and whether that job is a
        decision job (see `UNDECIDED`). Raises EngineError.
        """
        try:
            plan = await self._server.run_lookup.load_plan(event.run)
        except EngineError:
            raise  # the engine is unavailable: the stream retries this event later
        except (Refusal, BackstayError):
            return "", event.job, False  # the run has been pruned
        if not event.job:
            return plan.workflow, "", False
        if event.job in plan.names:
            return plan.workflow, plan.names[event.job], event.job in plan.decided
        known = self._known.get(event.job)
        if known is None:
            try:
                job = await fetch_job(self._server.core, event.job)
                known = await self._server.run_lookup.key_of(job), is_internal(job.type)
            except EngineError:
                raise
            except BackstayError:
                known = event.job, False
            self._known[event.job] = known
            if len(self._known) > MAX_NAMES:
                self._known.popitem(last=False)
        name, is_decision = known
        return plan.workflow, name, is_decision

    async def _decision_kind(self, event: RunEvent) -> StreamEventKind:
        """Return the kind that the API shows for an event of a decision job (see `UNDECIDED`): `deciding` while the
        decision is open, `decided` when the planned job follows. Otherwise the planned job never starts. Then the
        stored kind of the event, for example `skipped`, is returned: it is also the outcome of the planned job.
        """
        if event.kind in UNDECIDED:
            return "deciding"
        if event.kind == "completed":
            try:
                if (await fetch_job(self._server.core, event.job)).followed_by:
                    return "decided"
            except EngineError:
                raise
            except BackstayError:
                return "decided"  # the decision job has been pruned
        return event.kind

    async def render(self, event: RunEvent) -> Event:
        workflow, name, is_decision = await self._resolve(event)
        return Event(
            event=await self._decision_kind(event) if is_decision else event.kind,
            workflow_id=workflow,
            run_id=event.run,
            job_id=name,
            uid=event.job,
            sequence=event.seq,
            timestamp_ms=event.at // 1000,
            attempt=event.attempt,
            worker_id=event.worker,
            why=event.why,
        )


class RunSource:
    """One run's events. Ends when the run has finished and all its events were read."""

    first_poll = 1.0
    max_poll = 2.0

    def __init__(self, server: Server, renderer: EventRenderer, run: str, after: int) -> None:
        self.topic = f"run:{run}"
        self._server = server
        self._renderer = renderer
        self._run = run
        self._after = after

    async def poll(self) -> Page:
        server = self._server
        stored = await send(server.core, server.store.run_events(self._run, self._after, PAGE))
        if stored:
            shown = [await self._renderer.render(one) for one in stored]
            self._after = stored[-1].seq  # advance after rendering: if that fails, the next poll rereads the events
            return Page([encode_event(one.event, _encode(one), str(one.sequence)) for one in shown], more=True)
        run = await send(server.core, server.store.get_run(self._run, doc=False))
        return Page([], ended=run is None or (run.status in FINISHED and run.events <= self._after))


class AllRunsSource:
    """The events of all runs from a position on. Never ends."""

    topic = "events"
    first_poll = 1.0
    max_poll = 2.0

    def __init__(self, server: Server, renderer: EventRenderer, start: Position) -> None:
        self._server = server
        self._renderer = renderer
        self._cursors = list(start.cursors)
        self._seen = list(start.seen)

    async def poll(self) -> Page:
        server = self._server
        events: list[bytes] = []
        more = False
        cursors, seen = list(self._cursors), list(self._seen)
        for shard, cursor in enumerate(self._cursors):
            page = await send(server.core, server.store.events(shard, cursor, PAGE))
            if cursor == "$":  # replace "$" (the end) by a fixed cursor, else events between two polls are lost
                cursors[shard] = self._cursors[shard] = page.cursor
            for one in _unseen(page.events, seen[shard]):
                seen[shard] = _event_key(one)
                place = Position(tuple(cursors), tuple(seen))
                shown = await self._renderer.render(one)
                events.append(encode_event(shown.event, _encode(shown), place.text()))
            cursors[shard], seen[shard] = page.cursor, ""
            more = more or len(page.events) == PAGE
        # Advance only after all shards were read: if reading one fails, the next poll reads all of them again.
        self._cursors, self._seen = cursors, seen
        return Page(events, more=more)


def _event_key(event: RunEvent) -> str:
    return f"{event.run}.{event.seq}"


def _unseen(events: tuple[RunEvent, ...], seen: str) -> tuple[RunEvent, ...]:
    """Return the events of a page that follow the one whose key is `seen`; all events if none has this key."""
    if seen:
        for index, one in enumerate(events):
            if _event_key(one) == seen:
                return events[index + 1 :]
    return events
