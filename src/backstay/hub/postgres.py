"""The hub over LISTEN/NOTIFY: a separate connection and thread receive and send hints.

Hints are sent after the commit, with one statement for all that are queued: a NOTIFY inside the engine's transactions
would serialise all commits of the database.
"""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

import psycopg
from psycopg import sql

from backstay.engine.base import OperationRunner, Wake, steady
from backstay.engine.jitter import RANDOM
from backstay.engine.postgres.connection.session import Session
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.notify import decode, notify_statement, wire_channel
from backstay.errors import EngineError, EngineRefused, EngineUnavailable
from backstay.hub.base import Hub, ignore_event

#: The first and the longest pause (seconds) between connection attempts: exponential backoff with jitter.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
#: Seconds without traffic after which the connection is checked with a query.
PING_EVERY = 5.0
#: How many hints are queued while there is no connection. The oldest are dropped first: waiters recheck by themselves.
BACKLOG = 1000


class PostgresHub(Hub):
    """Keeps one connection alive. After each reconnect all subscribers get None instead of a payload, which means that
    messages may be lost.
    """

    def __init__(
        self,
        engine: PostgresEngine,
        *,
        inbox: str,
        runner: OperationRunner | None = None,
        observe: Callable[..., None] = ignore_event,
    ) -> None:
        super().__init__(observe=observe)
        self.runner = runner
        self._engine = engine
        self._inbox = inbox
        self._wake_pair: tuple[socket.socket, socket.socket] | None = None
        self._reset_thread()
        engine.attach(inbox, self._after_commit, self._forward)

    def _reset_thread(self) -> None:
        self._close_wake_pair()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._connected = False
        #: Whether a connection was ever lost. If so, each new one is observed as "reconnected", not as "connected".
        self._broken = False
        #: The work of the hub's thread, in order: hints to send, and channels to open (True) or close (False). A byte
        #: through `_wake_pair` wakes the thread, because there is work.
        self._todo: deque[Wake | tuple[str, bool]] = deque()

    def _after_commit(self, wakes: Sequence[Wake]) -> None:
        for wake in wakes:
            if wake.inbox == self._inbox:
                self.deliver(wake.inbox, wake.payload)

    def _forward(self, wakes: Sequence[Wake]) -> None:
        with self._lock:
            self._todo.extend(wakes)
            while not self._connected and len(self._todo) > BACKLOG:
                self._todo.popleft()
            self._wake_thread()

    def _open(self, channel: str) -> None:
        if self._closed:
            raise RuntimeError("this hub is closed")
        if self._connected:
            self._todo.append((channel, True))
        self._wake_thread()  # if there is no connection, `_serve` opens the channel once there is one

    def _close(self, channel: str) -> None:
        if self._connected:
            self._todo.append((channel, False))
            self._wake_thread()
        else:
            self._multiplexers[channel].on_closed()

    def _wake_thread(self) -> None:
        """Wake the thread; start it if necessary. The caller holds the lock."""
        if self._thread is None and not self._closed:
            self._wake_pair = socket.socketpair()
            for end in self._wake_pair:
                end.setblocking(False)
            self._thread = threading.Thread(target=self._run, name="backstay-hub", daemon=True)
            try:
                self._thread.start()
            except BaseException:  # no thread, or an interrupt (Ctrl-C): if the thread did start, `_run` ends it
                self._thread = None
                self._close_wake_pair()
                raise
        if self._wake_pair is not None:
            with suppress(BlockingIOError):  # the buffer is full, so the thread is already woken
                self._wake_pair[0].send(b"!")

    def _close_wake_pair(self) -> None:
        pair, self._wake_pair = self._wake_pair, None
        for end in pair or ():
            end.close()

    # ── on the thread ──

    def _run(self) -> None:
        with self._lock:  # held by the caller that starts this thread
            if self._thread is not threading.current_thread() and not self._closed:
                return
        try:
            self._keep_connected()
        finally:
            with self._lock:
                self._close_wake_pair()
                if not self._closed:  # a bug ended the thread: the next `_wake_thread` starts a new one
                    self._thread = None
                    self._fail_opening(EngineUnavailable("the hub's connection was closed; listen again"))

    def _keep_connected(self) -> None:
        pause = FIRST_PAUSE
        while not self._closed or self._todo:  # hints of a process that publishes and exits at once are still sent
            try:
                session = self._engine.connect("hub")
            except EngineError as error:
                if self._closed:
                    return
                # The server refuses the connection, and a retry alone does not change that. So subscribers whose
                # subscription is not active yet get the error.
                if isinstance(error, EngineRefused):
                    self._fail_opening(error)
                self._stopping.wait(RANDOM.uniform(pause / 2, pause))
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            try:
                self._serve(session)
            except psycopg.Error:
                pass  # the connection is lost: reconnect
            finally:
                session.close()
                with self._lock:
                    self._connected = False
                    self._broken = True
                    self._todo = deque(item for item in self._todo if isinstance(item, Wake))
                    for multiplexer in list(self._multiplexers.values()):
                        multiplexer.on_disconnected()
                        self._forget_idle(multiplexer)
                if not self._closed:
                    self.observe("interrupted")

    def _fail_opening(self, error: EngineError) -> None:
        with self._lock:
            for multiplexer in list(self._multiplexers.values()):
                multiplexer.on_open_failed(error)
                self._forget_idle(multiplexer)

    def _serve(self, session: Session) -> None:
        session.add_notify_handler(lambda notification: self._on_notification(notification.payload))
        session.until = steady() + self._engine.address.timeout
        with self._lock:
            self._connected = True
            self._todo.extend((channel, True) for channel in self.channels_to_open())
        self.observe("reconnected" if self._broken else "connected")
        poll = select.poll()
        poll.register(session.fileno(), select.POLLIN)
        _, wake = cast("tuple[socket.socket, socket.socket]", self._wake_pair)  # not None while this thread runs
        poll.register(wake, select.POLLIN)
        self._process_todo(session)
        while not self._closed:
            ready = [fd for fd, _ in poll.poll(PING_EVERY * 1000)]
            session.until = steady() + self._engine.address.timeout
            if not ready:
                session.execute(b"SELECT 1")
            if wake.fileno() in ready:
                wake.recv(4096)
                self._process_todo(session)
            session.pgconn.consume_input()
            while notification := session.pgconn.notifies():
                self._on_notification(notification.extra.decode(errors="replace"))
        self._process_todo(session)

    def _process_todo(self, session: Session) -> None:
        """Process the queue in order: a hint that was queued before a channel was opened must not reach the channel's
        new subscriber. Consecutive hints are sent in one statement.
        """
        while self._todo:
            hints: list[Wake] = []
            while self._todo and isinstance(self._todo[0], Wake):
                hints.append(cast("Wake", self._todo.popleft()))
            if hints:
                session.execute(*notify_statement(hints))
            elif self._todo:
                channel, wanted = cast("tuple[str, bool]", self._todo.popleft())
                self._set_listening(session, channel, wanted)

    def _set_listening(self, session: Session, channel: str, wanted: bool) -> None:
        verb = sql.SQL("LISTEN {}" if wanted else "UNLISTEN {}")
        session.execute(verb.format(sql.Identifier(wire_channel(channel))))
        with self._lock:
            if multiplexer := self._multiplexers.get(channel):
                (multiplexer.on_opened if wanted else multiplexer.on_closed)()
                self._forget_idle(multiplexer)

    def _on_notification(self, text: str) -> None:
        if wake := decode(text):
            self.deliver(wake.inbox, wake.payload)
        else:
            self.observe("malformed")  # sent by another program

    # ── lifecycle ──

    def close(self) -> None:
        self._closed = True
        self._stopping.set()
        self._engine.detach(self._inbox)
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._wake_thread()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def after_fork(self) -> None:
        self._reset()
        self._reset_thread()
