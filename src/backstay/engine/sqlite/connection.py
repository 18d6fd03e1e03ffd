"""A SQLite connection that is closed before its process forks.

SQLite keeps a list of the process's file locks in memory. A child that is forked during a transaction inherits that
list: the child sees the file as locked forever, and takes the parent's locks for its own. So a fork first waits for
running transactions and closes the connections; both processes reopen the file at the next use.
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


class SqliteConnection:
    """A lazily opened connection. `survives_fork`: a fork does not close it, because it holds the only copy of the data
    (`memory://`).
    """

    def __init__(self, open_db: Callable[[], sqlite3.Connection], *, survives_fork: bool = False) -> None:
        self._open_db = open_db
        self._survives_fork = survives_fork
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
        """Close the connection, and refuse its use until `give_back` is called after the fork. Returns False, and
        changes nothing, if the connection is still in use after `PATIENCE` seconds.
        """
        if not self._in_use.acquire(timeout=PATIENCE):
            return False
        if not self._survives_fork:
            self.close()
        return True


_ALL: weakref.WeakSet[SqliteConnection] = weakref.WeakSet()
#: `blocked`: the connections that this thread's fork has blocked. Per thread, because two threads may fork at once.
_forking = threading.local()


def _before_fork() -> None:
    _forking.blocked = [connection for connection in list(_ALL) if connection.before_fork()]


def _after_fork() -> None:
    for connection in _forking.blocked:
        connection.give_back()
    _forking.blocked = []


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
