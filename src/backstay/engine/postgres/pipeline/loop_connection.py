"""A lane of talks that a loop carries out on its own thread: no other has to wake up, twice, for one round trip.

Only rounds that are whole transactions, and leave in one write: should the loop stand still from then on, nobody at the
server waits for it. Everything else (a connection to be made, a transaction of several rounds, any trouble) is handed
to the lane's thread, which goes on where the loop has stopped.
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
from backstay.engine.commit_thread import Group, Item, settle
from backstay.engine.postgres.pipeline.pipeline import Handed, Sending, Talking, WithinLane, batches

if TYPE_CHECKING:
    from backstay.engine.postgres.engine import PostgresEngine


class Brisk:
    """One connection for talks, held by its thread or by one conversation of a loop, never by both. Any thread may put
    something in.
    """

    def __init__(self, engine: PostgresEngine, name: str) -> None:
        self._engine = engine
        self.lane = WithinLane(engine)
        self._group = Group(name, commit=self._commit, end=self.lane.end)
        #: Guards what follows.
        self._lock = threading.RLock()
        #: Operations that the thread has, or is about to have.
        self._at_thread = 0
        self._under_way: Conversation | None = None
        #: What came meanwhile, for the loop to go on with.
        self._later: list[Item] = []
        self._stopped = False

    def put_items(self, items: list[Item], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """`loop`: the running one, if there is one."""
        with self._lock:
            talking = self._under_way
            if talking is not None and loop is talking.loop and not self._stopped:
                self._later += items
                return
            if talking is not None:
                self._take_over(talking)
            if loop is None or self._at_thread or self._stopped or not self._go(items, loop):
                self._to_thread(items)

    def stop(self) -> None:
        """Finish what was put in, then end. Safe twice."""
        with self._lock:
            self._stopped = True
            if self._under_way is not None:
                self._take_over(self._under_way)
        self._group.stop()

    # ── under the lock ──

    def _to_thread(self, items: list[Item]) -> None:
        if items:
            self._at_thread += len(items)
            self._group.put_items(items)

    def _take_over(self, talking: Conversation) -> None:
        """The thread goes on with what a loop has begun."""
        self._under_way = None
        talking.leave()
        later, self._later = self._later, []
        self._hand(talking.handed())
        self._to_thread(later)

    def _hand(self, handed: Handed) -> None:
        def answer(results: Sequence[tuple[int, Any]]) -> None:
            ((_, found),) = results
            # Of a lane that is closed there is one answer for all.
            settle(handed.items, [found] * len(handed.items) if isinstance(found, BaseException) else found)

        self._to_thread([Item(handed, 0, answer)])

    def _go(self, items: list[Item], loop: asyncio.AbstractEventLoop) -> bool:
        """Begin on the loop. Returns whether it could be: else nothing has happened."""
        wire = self.lane.ready(steady() + self._engine.address.timeout)
        if wire is None:
            return False
        (reads, some), *rest = batches(items)
        wakes: list[Wake] = []
        talks = self.lane.talks(some, wakes)
        for one in talks:
            one.go_on(None)
        begun = [one for one in talks if one.round is not None]
        more = [item for _, others in rest for item in others]
        if not begun or not all(one.round.commit for one in begun if one.round is not None):
            self._hand(Handed(some, reads, talks, wakes))  # with what they have put together by now
            self._to_thread(more)
            return True
        self._later = more + self._later
        talking = Conversation(self, loop, some, reads, talks, wakes)
        try:
            talking.sending = self.lane.compose(wire.session, wire, begun, begin=True, reads=reads)
            if (came := talking.sending.exchange.go_on()) is not None:
                raise came[1] or pg.OperationalError("no answer")
            if talking.sending.exchange.is_sent:
                talking.listen(wire.session.pgconn.socket, self._engine.address.timeout)
                self._under_way = talking
                return True
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread knows what to do about it
            talking.trouble = error
        self._take_over(talking)
        return True

    # ── on the loop ──

    def go_on(self, talking: Conversation, ready: Ready | None) -> None:
        """Something has come for a conversation, or (None) nothing in time."""
        with self._lock:
            sending = talking.sending
            if talking is not self._under_way or sending is None:
                talking.leave()
                return
            try:
                if not self._receive(sending, ready):
                    return
            except Exception as error:  # noqa: BLE001 - whatever it is, the thread knows what to do about it
                talking.trouble = error
            talking.sending = None
            if talking.trouble is not None or any(one.round is not None for one in talking.talks):
                self._take_over(talking)
                return
            talking.leave()
            self._under_way = None
            later, self._later = self._later, []
            if later and not self._go(later, talking.loop):
                self._to_thread(later)
        self._engine.tell(talking.wakes)
        settle(talking.items, [one.result for one in talking.talks])

    def _receive(self, sending: Sending, ready: Ready | None) -> bool:
        """Whether all is there, and the talks have gone on."""
        wire = self.lane.ready(steady() + self._engine.address.timeout)
        if wire is None:
            raise pg.OperationalError("the connection is gone")
        if ready is None:
            wire.session.pgconn.finish()  # whatever comes now answers something else
            raise pg.OperationalError("no answer in time")
        came = sending.exchange.go_on(ready)
        if came is not None:
            self.lane.heard(sending, *wire.read(sending.exchange, *came))
        return came is not None

    # ── on the thread ──

    def _commit(self, items: list[Item]) -> list[Any]:
        try:
            return self.lane.commit(items)
        finally:
            with self._lock:
                self._at_thread -= len(items)


class Conversation:
    """Operations of a loop that travel together, from their one write to their answer."""

    def __init__(
        self,
        lane: Brisk,
        loop: asyncio.AbstractEventLoop,
        items: list[Item],
        reads: bool,
        talks: list[Talking],
        wakes: list[Wake],
    ) -> None:
        self.loop = loop
        self.items = items
        self.talks = talks
        self.wakes = wakes
        #: What is on its way, and what went wrong.
        self.sending: Sending | None = None
        self.trouble: Exception | None = None
        self._lane = lane
        self._reads = reads
        self._ear = -1
        self._timer: asyncio.TimerHandle | None = None

    def handed(self) -> Handed:
        return Handed(self.items, self._reads, self.talks, self.wakes, self.sending, self.trouble)

    def listen(self, socket: int, timeout: float) -> None:
        # A copy: the connection may be closed by the thread, and its number given to another, before the loop knows.
        self._ear = os.dup(socket)
        self.loop.add_reader(self._ear, self._lane.go_on, self, Ready.R)
        self._timer = self.loop.call_later(timeout, self._lane.go_on, self, None)

    def leave(self) -> None:
        """Nobody waits on the loop any more. From any thread."""
        if self._ear < 0:
            return
        try:
            here = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            here = False
        if here:
            self._deafen()
        else:
            with suppress(RuntimeError):  # closed: it hears nothing
                self.loop.call_soon_threadsafe(self._deafen)

    def _deafen(self) -> None:
        ear, self._ear = self._ear, -1
        if ear >= 0:
            self.loop.remove_reader(ear)
            os.close(ear)
        if self._timer is not None:
            self._timer.cancel()
