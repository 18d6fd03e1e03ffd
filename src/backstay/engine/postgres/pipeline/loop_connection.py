"""Run store operations on the event loop's own thread, which saves two thread switches per round trip.

The event loop runs only round trips that are whole transactions and are sent in one write. So no transaction stays open
on the server if a task then blocks the loop. Each connection also has a thread of its own (a CommitThread). It
connects, runs transactions of several round trips and handles all errors. If one of these comes up in a batch that the
loop has started, the thread takes over the batch.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from psycopg import errors as pg
from psycopg.waiting import Ready

from backstay.engine.base import Wake, steady
from backstay.engine.commit_thread import CommitThread, QueuedOp, deliver_results
from backstay.engine.postgres.pipeline.pipeline import (
    LoopHandoff,
    PipelineConnection,
    RunningProcedure,
    SentRoundTrip,
    batches,
)

if TYPE_CHECKING:
    from backstay.engine.postgres.engine import PostgresEngine


class LoopConnection:
    """One connection for store operations. At any time, either its own thread uses it or one event loop does, for one
    batch of operations. Any thread may queue operations.
    """

    def __init__(self, engine: PostgresEngine, name: str) -> None:
        self._engine = engine
        self.connection = PipelineConnection(engine)
        self._commit_thread = CommitThread(name, commit=self._commit, end=self.connection.end)
        #: Guards the fields below.
        self._lock = threading.RLock()
        #: How many operations are queued for the connection's thread or run on it.
        self._at_thread = 0
        self._in_flight: InFlight | None = None
        #: Operations that arrived while a batch is in flight: the loop's next batch.
        self._queued: list[QueuedOp] = []
        self._stopped = False

    def put_items(self, items: list[QueuedOp], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Run operations on the running `loop` if the connection is free, otherwise on the connection's thread."""
        with self._lock:
            flight = self._in_flight
            if flight is not None and loop is flight.loop and not self._stopped:
                self._queued += items
                return
            if flight is not None:
                self._move_to_thread(flight)
            if loop is None or self._at_thread or self._stopped or not self._start(items, loop):
                self._to_thread(items)

    def stop(self) -> None:
        """Finish the queued operations, then end the thread. Safe to call twice."""
        with self._lock:
            self._stopped = True
            if self._in_flight is not None:
                self._move_to_thread(self._in_flight)
        self._commit_thread.stop()

    # ── under the lock ──

    def _to_thread(self, items: list[QueuedOp]) -> None:
        if items:
            self._at_thread += len(items)
            self._commit_thread.put_items(items)

    def _move_to_thread(self, flight: InFlight) -> None:
        """Hand a batch that was started on the event loop to the connection's thread, which completes it."""
        self._in_flight = None
        flight.detach()
        queued, self._queued = self._queued, []
        self._hand_off(flight.handoff())
        self._to_thread(queued)

    def _hand_off(self, handoff: LoopHandoff) -> None:
        def on_results(results: Sequence[tuple[int, Any]]) -> None:
            ((_, found),) = results
            # If the connection is closed, `found` is one exception for the whole batch instead of a list of results.
            deliver_results(handoff.items, [found] * len(handoff.items) if isinstance(found, BaseException) else found)

        self._to_thread([QueuedOp(handoff, 0, on_results)])

    def _start(self, items: list[QueuedOp], loop: asyncio.AbstractEventLoop) -> bool:
        """Start a batch on the loop. Returns False, without side effects, if the connection is not open."""
        pipeline = self.connection.open_pipeline(steady() + self._engine.address.timeout)
        if pipeline is None:
            return False
        (reads, some), *rest = batches(items)
        wakes: list[Wake] = []
        procedures = self.connection.start(some, wakes)
        for one in procedures:
            one.advance(None)
        started = [one for one in procedures if one.next_trip is not None]
        more = [item for _, others in rest for item in others]
        if not started or not all(one.next_trip.commit for one in started if one.next_trip is not None):
            self._hand_off(LoopHandoff(some, reads, procedures, wakes))  # nothing of this batch was sent yet
            self._to_thread(more)
            return True
        self._queued = more + self._queued
        flight = InFlight(self, loop, some, reads, procedures, wakes)
        try:
            flight.sent = self.connection.compose(pipeline.session, pipeline, started, begin=True, reads=reads)
            if (results := flight.sent.trip.advance()) is not None:
                raise results[1] or pg.OperationalError("no answer")
            if flight.sent.trip.is_sent:
                flight.attach(pipeline.session.pgconn.socket, self._engine.address.timeout)
                self._in_flight = flight
                return True
        except Exception as error:  # noqa: BLE001 - the thread handles all errors
            flight.error = error
        self._move_to_thread(flight)
        return True

    # ── on the loop ──

    def on_ready(self, flight: InFlight, ready: Ready | None) -> None:
        """Continue a batch in flight: its socket is readable or, if `ready` is None, the batch has timed out."""
        with self._lock:
            sent = flight.sent
            if flight is not self._in_flight or sent is None:
                flight.detach()
                return
            try:
                if not self._receive(sent, ready):
                    return
            except Exception as error:  # noqa: BLE001 - the thread handles all errors
                flight.error = error
            flight.sent = None
            if flight.error is not None or any(one.next_trip is not None for one in flight.procedures):
                self._move_to_thread(flight)
                return
            flight.detach()
            self._in_flight = None
            queued, self._queued = self._queued, []
            if queued and not self._start(queued, flight.loop):
                self._to_thread(queued)
        self._engine.deliver_wakes(flight.wakes)
        deliver_results(flight.items, [one.result for one in flight.procedures])

    def _receive(self, sent: SentRoundTrip, ready: Ready | None) -> bool:
        """Read what has arrived on the socket. Once all results are there, pass them to the procedures (generators that
        run the batch's operations) and return True. If `ready` is None, the batch has timed out: close the connection
        and raise.
        """
        pipeline = self.connection.open_pipeline(steady() + self._engine.address.timeout)
        if pipeline is None:
            raise pg.OperationalError("the connection is gone")
        if ready is None:
            pipeline.session.pgconn.finish()  # a late reply would be taken for the reply to the next request
            raise pg.OperationalError("no answer in time")
        results = sent.trip.advance(ready)
        if results is not None:
            self.connection.receive_results(sent, *pipeline.read(sent.trip, *results))
        return results is not None

    # ── on the thread ──

    def _commit(self, items: list[QueuedOp]) -> list[Any]:
        try:
            return self.connection.commit(items)
        finally:
            with self._lock:
                self._at_thread -= len(items)


class InFlight:
    """A batch that an event loop has sent and whose results have not all arrived."""

    def __init__(
        self,
        connection: LoopConnection,
        loop: asyncio.AbstractEventLoop,
        items: list[QueuedOp],
        reads: bool,
        procedures: list[RunningProcedure],
        wakes: list[Wake],
    ) -> None:
        self.loop = loop
        self.items = items
        self.procedures = procedures
        self.wakes = wakes
        #: The round trip whose results are awaited.
        self.sent: SentRoundTrip | None = None
        #: The error that ended the batch on the event loop. The connection's thread handles it and completes the batch.
        self.error: Exception | None = None
        self._connection = connection
        self._reads = reads
        self._fd = -1
        self._timer: asyncio.TimerHandle | None = None

    def handoff(self) -> LoopHandoff:
        return LoopHandoff(self.items, self._reads, self.procedures, self.wakes, self.sent, self.error)

    def attach(self, socket: int, timeout: float) -> None:
        """Let the loop watch the socket and the time-out."""
        # Watch a duplicate of the socket's descriptor. Otherwise the connection's thread could close the socket while
        # the loop still watches its descriptor, and the kernel could reuse that descriptor for another file.
        self._fd = os.dup(socket)
        self.loop.add_reader(self._fd, self._connection.on_ready, self, Ready.R)
        self._timer = self.loop.call_later(timeout, self._connection.on_ready, self, None)

    def detach(self) -> None:
        """Stop watching the socket and the time-out. May be called from any thread."""
        if self._fd < 0:
            return
        try:
            on_loop = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            on_loop = False
        if on_loop:
            self._stop_watching()
        else:
            with suppress(RuntimeError):  # the loop is closed, and watches no descriptors any more
                self.loop.call_soon_threadsafe(self._stop_watching)

    def _stop_watching(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.loop.remove_reader(fd)
            os.close(fd)
        if self._timer is not None:
            self._timer.cancel()
