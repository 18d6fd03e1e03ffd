"""The one connection that writes: fair turns between processes, retries of its own, sweeps."""

from __future__ import annotations

import fcntl
import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from backstay.engine.base import Op
from backstay.engine.commit_thread import Item
from backstay.engine.sqlite.connection import Connection
from backstay.engine.sqlite.schema import is_busy, translate
from backstay.errors import EngineError

#: A busy file is tried again after this long, at random in between.
RETRY = (0.0003, 0.002)
#: After a commit while others wait: longer than their longest pause, so they get in.
YIELD = 0.0025
#: How often ended rows are swept.
SWEEP = 60.0

#: Carries out a batch inside the transaction; answers results and what to do after the commit.
Work = Callable[[sqlite3.Connection, list[Op[Any]]], tuple[list[Any], Callable[[], None]]]


class Spoiled(Exception):
    """An operation among others raised after it had written: none of the transaction can be kept."""

    def __init__(self, place: int, error: Exception) -> None:
        super().__init__(place, error)
        self.place = place
        self.error = error


class Queue:
    """The sign that a process waits for the file: a shared lock on a file beside it, gone when the process is."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666) if path else -1

    def wait_here(self) -> None:
        self._try(fcntl.LOCK_SH)

    def leave(self) -> None:
        self._try(fcntl.LOCK_UN)

    def others_wait(self) -> bool:
        if self._try(fcntl.LOCK_EX):
            self.leave()
            return False
        return True

    def _try(self, how: int) -> bool:
        if self._fd < 0:
            return True
        try:
            fcntl.flock(self._fd, how | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Writer:
    """The one connection that writes. Everything but `after_fork` runs on the group's thread."""

    def __init__(
        self,
        open_db: Callable[[], sqlite3.Connection],
        path: str,
        *,
        work: Work,
        is_read: Callable[[Op[Any]], bool],
        sweep: Callable[[sqlite3.Connection], None],
        timeout: float,
    ) -> None:
        self._connection = Connection(open_db, stays=path == ":memory:")
        self._path = path
        self._work = work
        self._is_read = is_read
        self._sweep = sweep
        self._timeout = timeout
        self._queue = Queue("")
        self._queued = False
        self._swept = time.monotonic()

    def commit(self, items: list[Item]) -> list[Any]:
        """All operations as one transaction; every one gets the file's trouble, if there is any."""
        ops = [item.op for item in items]
        try:
            return self._commit(ops)
        except Exception as error:  # noqa: BLE001 - every caller gets it; the thread must live on
            return [_own(error, self._path) for _ in ops]

    def tick(self) -> None:
        """Sweep now and then."""
        if self._connection.is_open and time.monotonic() - self._swept > SWEEP:
            self._swept = time.monotonic()
            with suppress(sqlite3.Error, EngineError), self._connection.use() as db:
                self._sweep(db)  # busy or full: the next sweep will do

    def end(self) -> None:
        self._connection.close()
        self._queue.close()

    def after_fork(self) -> None:
        """The thread stayed with the parent. A fork leaves no connection behind, but this."""
        self._queue.close()

    def _commit(self, ops: list[Op[Any]]) -> list[Any]:
        try:
            return self._transaction(ops)
        except Spoiled as spoiled:
            place = spoiled.place
            results = self._commit(ops[:place] + ops[place + 1 :])  # its neighbours do not suffer
            results.insert(place, spoiled.error)
            return results

    def _transaction(self, ops: list[Op[Any]]) -> list[Any]:
        reads = all(self._is_read(op) for op in ops)
        db = self._begin("BEGIN" if reads else "BEGIN IMMEDIATE", queues=not reads)
        try:
            results, after = self._work(db, ops)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        finally:
            self._connection.give()
        after()
        if self._queue.others_wait():
            time.sleep(YIELD)
        return results

    def _begin(self, how: str, *, queues: bool) -> sqlite3.Connection:
        """The connection, taken and inside a transaction."""
        deadline = 0.0
        try:
            while True:
                db = self._connection.take()
                try:
                    if not self._queued:
                        self._queue = Queue("" if self._path == ":memory:" else self._path + "-queue")
                        self._queued = True
                    db.execute(how)
                    return db
                except BaseException as error:
                    self._connection.give()
                    if not isinstance(error, sqlite3.OperationalError) or not is_busy(error):
                        raise
                    if not deadline:
                        deadline = time.monotonic() + self._timeout
                    elif time.monotonic() > deadline:
                        raise
                if queues:
                    self._queue.wait_here()
                time.sleep(random.uniform(*RETRY))
        finally:
            if deadline and queues:
                self._queue.leave()


def _own(error: Exception, path: str) -> Exception:
    """An error of its own for each caller: one object raised in several threads grows a confused traceback."""
    if isinstance(error, sqlite3.Error):
        return translate(error, path)
    return type(error)(str(error)) if isinstance(error, EngineError) else error
