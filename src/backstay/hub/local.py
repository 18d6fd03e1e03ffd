"""The hub of the SQLite engine: hints within a process, and between processes that share a file.

Messages of this process are delivered directly after the commit. Messages of other processes are rows in
`backstay_hint`: a thread polls the file's change counter, which takes microseconds, and reads the table only after a
change. The ids of the rows have no gaps. If a row after the last one that was read is missing, it was deleted unread,
for example while this process was stopped for more than a minute: then all subscribers get MISSED.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any

from backstay.engine.base import OperationRunner, Wake, steady
from backstay.engine.sqlite.connection import SqliteConnection
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.errors import EngineError
from backstay.hub.base import Hub, ignore_event

#: Seconds between two polls of the file's change counter. BUSY: while hints of other processes arrive. QUIET: while
#: none arrive; at this rate a hint is delivered within 50 ms, and polling costs less than a hundredth of a core.
BUSY, QUIET = 0.005, 0.03
#: Seconds without a hint until polling slows down.
CALM = 2.0


class LocalHub(Hub):
    """The hub of the SQLite engine."""

    def __init__(
        self,
        engine: SqliteEngine,
        *,
        inbox: str,
        runner: OperationRunner | None = None,
        observe: Callable[..., None] = ignore_event,
    ) -> None:
        super().__init__(observe=observe)
        self.runner = runner
        self._engine = engine
        self._inbox = inbox
        self._poller: threading.Thread | None = None
        self._stopped = False
        #: Ends the poller's pause: a channel was opened, or the hub closes.
        self._wake_up = threading.Event()
        self._active = 0.0
        engine.attach(inbox, self._after_commit)

    def _after_commit(self, wakes: Sequence[Wake]) -> None:
        for wake in wakes:
            self.deliver(wake.inbox, wake.payload)

    def _open(self, channel: str) -> None:
        self._active = steady()
        if not self._engine.share_hints:
            self._multiplexers[channel].on_opened()
        elif self._stopped:
            raise RuntimeError("this hub is closed")
        elif self._poller is None:
            self._poller = threading.Thread(target=self._poll, name="backstay-hub", daemon=True)
            try:
                self._poller.start()
            except BaseException:  # no thread, or an interrupt (Ctrl-C): if the thread did start, `_poll` ends it
                self._poller = None
                raise
        else:
            self._wake_up.set()  # the poller calls `on_opened` once it has read all earlier messages

    def _close(self, channel: str) -> None:
        self._multiplexers[channel].on_closed()

    def _poll(self) -> None:
        with self._lock:  # held by the caller that starts this thread
            if self._poller is not threading.current_thread():
                return
        connection = SqliteConnection(self._engine.connect)
        seen: tuple[sqlite3.Connection, int] | None = None
        last = 0
        while not self._stopped:
            self._wake_up.clear()
            with self._lock:
                opening = [
                    multiplexer for multiplexer in self._multiplexers.values() if multiplexer.state == "starting"
                ]
            try:
                with connection.use() as db:
                    if seen is None:
                        last = self._read_last_id(db)
                    rows: list[Any] = []
                    # After a commit of another connection, the counter differs; after a fork, the connection is new.
                    if (now := (db, self._read_change_counter(db))) != seen:
                        seen, rows = now, self._read_new_rows(db, last)
                if rows:
                    last = self._deliver_rows(rows, last)
            except (sqlite3.Error, EngineError):  # the file is busy or gone: the next poll reads the hints
                opening = []
            with self._lock:
                for multiplexer in opening:
                    multiplexer.on_opened()
                    self._forget_idle(multiplexer)
            self._wake_up.wait(BUSY if steady() - self._active < CALM else QUIET)
        connection.close()

    @staticmethod
    def _read_change_counter(db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA data_version").fetchone()[0])

    @staticmethod
    def _read_last_id(db: sqlite3.Connection) -> int:
        return int(
            db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'backstay_hint'").fetchone()[0]
        )

    @staticmethod
    def _read_new_rows(db: sqlite3.Connection, last: int) -> list[Any]:
        """Return the rows after `last`, each with the id of the newest row that was ever inserted. If there are none,
        return one row whose own id is None. All of it is one statement, so that it sees one state of the file.
        """
        return db.execute(
            "SELECT newest.id, hint.id, hint.origin, hint.channel, hint.payload"
            " FROM (SELECT coalesce(max(seq), 0) AS id FROM sqlite_sequence WHERE name = 'backstay_hint') newest"
            " LEFT JOIN backstay_hint hint ON hint.id > ? ORDER BY hint.id",
            (last,),
        ).fetchall()

    def _deliver_rows(self, rows: list[Any], last: int) -> int:
        """Deliver the rows after `last`, and before them MISSED if some were deleted unread. Returns the newest id."""
        newest, first, *_ = rows[0]
        # A newest row before `last` means that the file was replaced by another one.
        if first != last + 1 and newest != last:
            self._report_missed()
        for _, id_, origin, channel, payload in rows:
            if id_ is not None and origin != self._engine.origin:
                self._active = steady()
                with self._lock:
                    multiplexer = self._multiplexers.get(channel)
                    # A channel in `starting` opens later: its subscribers must not get an earlier message.
                    if multiplexer is not None and multiplexer.state != "starting":
                        self.deliver(channel, payload)
        return int(newest)

    def _report_missed(self) -> None:
        self.observe("missed")
        with self._lock:
            for multiplexer in list(self._multiplexers.values()):
                multiplexer.report_missed()

    def close(self) -> None:
        self._engine.detach(self._inbox)
        self._stopped = True
        self._wake_up.set()
        poller, self._poller = self._poller, None
        if poller is not None and poller is not threading.current_thread():
            with contextlib.suppress(RuntimeError):
                poller.join()

    def after_fork(self) -> None:
        self._reset()
        self._poller = None
        self._stopped = False
        self._wake_up = threading.Event()
