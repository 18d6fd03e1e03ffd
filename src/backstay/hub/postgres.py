"""Hints over LISTEN/NOTIFY: one connection of its own hears and tells, on a thread of its own.

Hints leave after the commit, whatever has gathered in one statement: inside the transactions they would serialise
all commits of the database.
"""

from __future__ import annotations

import random
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

import psycopg
from psycopg import sql

from backstay.engine.base import Carrier, Wake, steady
from backstay.engine.postgres.connection.session import Session
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.notify import decode, note, wire_channel
from backstay.errors import EngineError, EngineRefused, EngineUnavailable
from backstay.hub.base import Hub, unobserved

#: The pause before a new attempt to connect: doubled each time, at random up to that, never above the last.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
#: A silent connection is asked for a sign of life this often.
PING_EVERY = 5.0
#: Hints kept while there is no connection; older ones go first. Whoever waits looks by itself in the end.
BACKLOG = 1000


class PostgresHub(Hub):
    """Keeps one connection alive and tells every listener once after each break."""

    def __init__(
        self,
        engine: PostgresEngine,
        *,
        inbox: str,
        carrier: Carrier | None = None,
        observe: Callable[..., None] = unobserved,
    ) -> None:
        super().__init__(observe=observe)
        self.carrier = carrier
        self._engine = engine
        self._inbox = inbox
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._start_over()
        engine.attach(inbox, self._after_commit, self._carry)

    def _start_over(self) -> None:
        self._unhang()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._connected = False
        #: True from the first break on.
        self._broken = False
        #: Hints to send, and channels to open (True) or close, in the order they came; the bell calls the thread.
        self._todo: deque[Wake | tuple[str, bool]] = deque()

    def _after_commit(self, wakes: Sequence[Wake]) -> None:
        for wake in wakes:
            if wake.inbox == self._inbox:
                self.deliver(wake.inbox, wake.payload)

    def _carry(self, wakes: Sequence[Wake]) -> None:
        with self._lock:
            self._todo.extend(wakes)
            while not self._connected and len(self._todo) > BACKLOG:
                self._todo.popleft()
            self._ring()

    def _open(self, channel: str) -> None:
        if self._closed:
            raise RuntimeError("this hub is closed")
        if self._connected:
            self._todo.append((channel, True))
        self._ring()  # without a connection: `_attend` opens whatever is wanted

    def _close(self, channel: str) -> None:
        if self._connected:
            self._todo.append((channel, False))
            self._ring()
        else:
            self._listeners[channel].closed()

    def _ring(self) -> None:
        """Under the lock."""
        if self._thread is None and not self._closed:
            self._bell = socket.socketpair()
            for end in self._bell:
                end.setblocking(False)
            thread = threading.Thread(target=self._run, name="backstay-hub", daemon=True)
            try:
                thread.start()
            except BaseException:  # no thread to be had: the next to come tries again
                self._unhang()
                raise
            self._thread = thread
        if self._bell is not None:
            with suppress(BlockingIOError):  # it rings already
                self._bell[0].send(b"!")

    def _unhang(self) -> None:
        bell, self._bell = self._bell, None
        for end in bell or ():
            end.close()

    # ── on the thread ──

    def _run(self) -> None:
        try:
            self._keep()
        finally:
            with self._lock:
                self._unhang()
                if not self._closed:  # a mistake of ours: the next to come begins anew
                    self._thread = None
                    self._refused(EngineUnavailable("the hub's connection was given up; listen again"))

    def _keep(self) -> None:
        pause = FIRST_PAUSE
        while not self._closed or self._todo:  # a process that tells and ends at once has told nobody yet
            try:
                session = self._engine.connect("hub")
            except EngineError as error:
                if self._closed:
                    return
                if isinstance(error, EngineRefused):  # waiting will not help those who wait now
                    self._refused(error)
                self._stopping.wait(random.uniform(pause / 2, pause))
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            try:
                self._attend(session)
            except psycopg.Error:
                pass  # broken: once more from the beginning
            finally:
                session.close()
                with self._lock:
                    self._connected = False
                    self._broken = True
                    self._todo = deque(item for item in self._todo if isinstance(item, Wake))
                    for listener in list(self._listeners.values()):
                        listener.interrupted()
                        self._forget_idle(listener)
                if not self._closed:
                    self.observe("interrupted")

    def _refused(self, error: EngineError) -> None:
        with self._lock:
            for listener in list(self._listeners.values()):
                listener.open_failed(error)
                self._forget_idle(listener)

    def _attend(self, session: Session) -> None:
        session.add_notify_handler(lambda note: self._heard(note.payload))
        session.until = steady() + self._engine.address.timeout
        with self._lock:
            self._connected = True
            self._todo.extend((channel, True) for channel in self.wanted())
        self.observe("reconnected" if self._broken else "connected")
        poll = select.poll()
        poll.register(session.fileno(), select.POLLIN)
        _, bell = cast("tuple[socket.socket, socket.socket]", self._bell)  # it hangs until this thread ends
        poll.register(bell, select.POLLIN)
        self._work_off(session)
        while not self._closed:
            ready = [fd for fd, _ in poll.poll(PING_EVERY * 1000)]
            session.until = steady() + self._engine.address.timeout
            if not ready:
                session.execute(b"SELECT 1")
            if bell.fileno() in ready:
                bell.recv(4096)
                self._work_off(session)
            session.pgconn.consume_input()
            while note := session.pgconn.notifies():
                self._heard(note.extra.decode(errors="replace"))
        self._work_off(session)

    def _work_off(self, session: Session) -> None:
        """In order: what was published before a channel opened is not for its listener. Hints go in one statement."""
        while self._todo:
            hints: list[Wake] = []
            while self._todo and isinstance(self._todo[0], Wake):
                hints.append(cast("Wake", self._todo.popleft()))
            if hints:
                session.execute(*note(hints))
            elif self._todo:
                channel, wanted = cast("tuple[str, bool]", self._todo.popleft())
                self._change(session, channel, wanted)

    def _change(self, session: Session, channel: str, wanted: bool) -> None:
        verb = sql.SQL("LISTEN {}" if wanted else "UNLISTEN {}")
        session.execute(verb.format(sql.Identifier(wire_channel(channel))))
        with self._lock:
            if listener := self._listeners.get(channel):
                (listener.opened if wanted else listener.closed)()
                self._forget_idle(listener)

    def _heard(self, text: str) -> None:
        if wake := decode(text):
            self.deliver(wake.inbox, wake.payload)
        else:
            self.observe("malformed")  # a stranger's: nobody here is meant

    # ── life ──

    def close(self) -> None:
        self._closed = True
        self._stopping.set()
        self._engine.detach(self._inbox)
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def after_fork(self) -> None:
        self._reset()
        self._start_over()
