"""The hub of the SQLite engine: hints within a process, and between processes that share a file.

Messages of this process are delivered directly after the commit. Those of other processes are rows in `backstay_hint`:
a thread polls the file's change counter, which takes microseconds, and reads the table only after a change.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any

from backstay.engine.base import OperationRunner, Wake, steady
from backstay.engine.sqlite.connection import Connection
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.errors import EngineError
from backstay.hub.base import Hub, unobserved

#: Seconds between two polls of the change counter while hints arrive, and while there are none. 30 ms delivers a hint
#: within 50 ms and costs less than a hundredth of a core.
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
        observe: Callable[..., None] = unobserved,
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
            self._multiplexers[channel].opened()
        elif self._stopped:
            raise RuntimeError("this hub is closed")
        elif self._poller is None:
            self._poller = threading.Thread(target=self._poll, name="backstay-hub", daemon=True)
            self._poller.start()
        else:
            self._wake_up.set()  # the poller calls `opened` once it has read all earlier messages

    def _close(self, channel: str) -> None:
        self._multiplexers[channel].closed()

    def _poll(self) -> None:
        connection = Connection(self._engine.connect)
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
                        last = self._last(db)
                    rows: list[Any] = []
                    if (now := (db, self._version(db))) != seen:  # another commit, or the file was reopened
                        seen, rows = now, self._new(db, last)
                if rows:
                    last = self._deliver_rows(rows)
            except (sqlite3.Error, EngineError):  # the file is busy or gone: the next poll reads the hints
                opening = []
            with self._lock:
                for multiplexer in opening:
                    multiplexer.opened()
                    self._forget_idle(multiplexer)
            self._wake_up.wait(BUSY if steady() - self._active < CALM else QUIET)
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

    def _deliver_rows(self, rows: list[Any]) -> int:
        for _, origin, channel, payload in rows:
            if origin != self._engine.origin:
                self._active = steady()
                with self._lock:
                    multiplexer = self._multiplexers.get(channel)
                    if multiplexer is not None and multiplexer.state != "starting":  # sent before the channel is open
                        self.deliver(channel, payload)
        return int(rows[-1][0])

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
