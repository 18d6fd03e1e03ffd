"""A connection that is closed while its process forks.

SQLite counts the locks of a process in its memory. A child that is forked while a connection is at work takes them for
its own, finds the file locked for ever, and holds no lock where it believes to hold one. So a fork waits for whoever is
at work, and nothing of SQLite's crosses it; both sides open the file again when they next need it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager

#: How long a fork waits for a transaction to end. One that stands still longer is left as it is.
PATIENCE = 5.0


class Connection:
    """Opened when it is first needed. `stays`: it holds the only copy, as in memory, so it is not closed for a fork."""

    def __init__(self, open_db: Callable[[], sqlite3.Connection], *, stays: bool = False) -> None:
        self._open_db = open_db
        self._stays = stays
        self._db: sqlite3.Connection | None = None
        self._at_work = threading.Lock()
        _ALL.add(self)

    @property
    def is_open(self) -> bool:
        return self._db is not None

    def take(self) -> sqlite3.Connection:
        """Nobody forks until it is given back."""
        self._at_work.acquire()
        try:
            if self._db is None:
                self._db = self._open_db()
            return self._db
        except BaseException:
            self._at_work.release()
            raise

    def give(self) -> None:
        self._at_work.release()

    @contextmanager
    def use(self) -> Generator[sqlite3.Connection, None, None]:
        db = self.take()
        try:
            yield db
        finally:
            self.give()

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def before_fork(self) -> bool:
        """True: nobody is at work, and nobody will be before `give`."""
        if not self._at_work.acquire(timeout=PATIENCE):
            return False
        if not self._stays:
            self.close()
        return True


_ALL: weakref.WeakSet[Connection] = weakref.WeakSet()
#: By thread: two may fork at once, and each gives back its own.
_forking = threading.local()


def _before_fork() -> None:
    _forking.held = [connection for connection in list(_ALL) if connection.before_fork()]


def _after_fork() -> None:
    for connection in _forking.held:
        connection.give()
    _forking.held = []


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
