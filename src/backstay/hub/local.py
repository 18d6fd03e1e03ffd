"""Hints within a process, and between processes that share a SQLite file.

Own messages are delivered after the commit, directly. Other processes' messages lie in `backstay_hint`; a thread
looks at the file's change counter (some microseconds) and reads the table only when it moved.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any

from backstay.engine.base import Carrier, Wake, steady
from backstay.engine.sqlite.connection import Connection
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.errors import EngineError
from backstay.hub.base import Hub, unobserved

#: How often the change counter is looked at while things happen, and when nothing has for a while.
#: 30 ms: heard within 50, for less than a hundredth of a core.
BUSY, QUIET = 0.005, 0.03
#: How long "for a while" is.
CALM = 2.0


class LocalHub(Hub):
    """The hub of the embedded engine."""

    def __init__(
        self,
        engine: SqliteEngine,
        *,
        inbox: str,
        carrier: Carrier | None = None,
        observe: Callable[..., None] = unobserved,
    ) -> None:
        super().__init__(observe=observe)
        self.carrier = carrier
        self._engine = engine
        self._inbox = inbox
        self._poller: threading.Thread | None = None
        self._stopped = False
        #: Ends the poller's pause: somebody came, or all is over.
        self._bell = threading.Event()
        self._active = 0.0
        engine.attach(inbox, self._after_commit)

    def _after_commit(self, wakes: Sequence[Wake]) -> None:
        for wake in wakes:
            self.deliver(wake.inbox, wake.payload)

    def _open(self, channel: str) -> None:
        self._active = steady()
        if not self._engine.share_hints:
            self._listeners[channel].opened()
        elif self._stopped:
            raise RuntimeError("this hub is closed")
        elif self._poller is None:
            self._poller = threading.Thread(target=self._poll, name="backstay-hub", daemon=True)
            self._poller.start()
        else:
            self._bell.set()  # the poller says `opened` once it has read what came before

    def _close(self, channel: str) -> None:
        self._listeners[channel].closed()

    def _poll(self) -> None:
        connection = Connection(self._engine.connect)
        seen: tuple[sqlite3.Connection, int] | None = None
        last = 0
        while not self._stopped:
            self._bell.clear()
            with self._lock:
                opening = [listener for listener in self._listeners.values() if listener.state == "starting"]
            try:
                with connection.use() as db:
                    if seen is None:
                        last = self._last(db)
                    rows: list[Any] = []
                    if (now := (db, self._version(db))) != seen:  # another commit, or the file was opened again
                        seen, rows = now, self._new(db, last)
                if rows:
                    last = self._tell(rows)
            except (sqlite3.Error, EngineError):  # busy, or the file went away: hints only, the next look will do
                opening = []
            with self._lock:
                for listener in opening:
                    listener.opened()
                    self._forget_idle(listener)
            self._bell.wait(BUSY if steady() - self._active < CALM else QUIET)
        connection.close()

    @staticmethod
    def _version(db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA data_version").fetchone()[0])

    @staticmethod
    def _last(db: sqlite3.Connection) -> int:
        return int(
            db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'backstay_hint'").fetchone()[0]
        )

    @staticmethod
    def _new(db: sqlite3.Connection, last: int) -> list[Any]:
        return db.execute(
            "SELECT id, origin, channel, payload FROM backstay_hint WHERE id > ? ORDER BY id", (last,)
        ).fetchall()

    def _tell(self, rows: list[Any]) -> int:
        for _, origin, channel, payload in rows:
            if origin != self._engine.origin:
                self._active = steady()
                with self._lock:
                    listener = self._listeners.get(channel)
                    if listener is not None and listener.state != "starting":  # it came before whoever enters now
                        self.deliver(channel, payload)
        return int(rows[-1][0])

    def close(self) -> None:
        self._engine.detach(self._inbox)
        self._stopped = True
        self._bell.set()
        poller, self._poller = self._poller, None
        if poller is not None and poller is not threading.current_thread():
            with contextlib.suppress(RuntimeError):
                poller.join()

    def after_fork(self) -> None:
        self._reset()
        self._poller = None
        self._stopped = False
        self._bell = threading.Event()
