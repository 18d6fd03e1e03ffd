"""A SQLite connection that is closed before its process forks.

SQLite keeps a process's file locks in memory. A child that is forked during a transaction inherits that bookkeeping: it
sees the file as locked forever and believes to hold locks that it does not have. So a fork waits for running
transactions, no connection crosses it, and both processes reopen the file at the next use.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager

#: Seconds that a fork waits for a running transaction. After that the fork goes on and the connection stays open.
PATIENCE = 5.0


class Connection:
    """A lazily opened connection. `stays`: it holds the only copy of the data (`memory://`), so a fork does not close
    it.
    """

    def __init__(self, open_db: Callable[[], sqlite3.Connection], *, stays: bool = False) -> None:
        self._open_db = open_db
        self._stays = stays
        self._db: sqlite3.Connection | None = None
        #: Held while the connection is in use.
        self._in_use = threading.Lock()
        _ALL.add(self)

    @property
    def is_open(self) -> bool:
        return self._db is not None

    def take(self) -> sqlite3.Connection:
        """Take the connection for exclusive use. A fork waits until `give_back`."""
        self._in_use.acquire()
        try:
            if self._db is None:
                self._db = self._open_db()
            return self._db
        except BaseException:
            self._in_use.release()
            raise

    def give_back(self) -> None:
        self._in_use.release()

    @contextmanager
    def use(self) -> Generator[sqlite3.Connection, None, None]:
        db = self.take()
        try:
            yield db
        finally:
            self.give_back()

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def before_fork(self) -> bool:
        """Close the connection and block its use until `give_back`. Returns False if it stays in use for too long."""
        if not self._in_use.acquire(timeout=PATIENCE):
            return False
        if not self._stays:
            self.close()
        return True


_ALL: weakref.WeakSet[Connection] = weakref.WeakSet()
#: Per thread, because two threads may fork at once: the connections that this thread's fork has blocked.
_forking = threading.local()


def _before_fork() -> None:
    _forking.held = [connection for connection in list(_ALL) if connection.before_fork()]


def _after_fork() -> None:
    for connection in _forking.held:
        connection.give_back()
    _forking.held = []


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
