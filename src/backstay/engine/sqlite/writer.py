"""The only connection that writes: it retries while the file is busy, lets other processes in, and sweeps."""

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
from backstay.engine.commit_thread import QueuedOp
from backstay.engine.sqlite.connection import Connection
from backstay.engine.sqlite.schema import is_busy, translate
from backstay.errors import EngineError

#: Random pause (seconds) between attempts on a busy file.
RETRY = (0.0003, 0.002)
#: Pause after a commit while other processes wait: longer than their longest retry pause, so that one of them gets in.
YIELD = 0.0025
#: Seconds between two sweeps of expired rows.
SWEEP = 60.0

#: Runs a batch inside the transaction; returns the results and a callback to run after the commit.
Work = Callable[[sqlite3.Connection, list[Op[Any]]], tuple[list[Any], Callable[[], None]]]


class FailedAfterWrite(Exception):
    """An operation of a batch raised after it had written, so the whole transaction must be rolled back."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class WaiterFlag:
    """Shows that a process waits for the database: a shared lock on a file beside it, which ends with the process."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666) if path else -1

    def set(self) -> None:
        self._try(fcntl.LOCK_SH)

    def clear(self) -> None:
        self._try(fcntl.LOCK_UN)

    def is_set_by_others(self) -> bool:
        if self._try(fcntl.LOCK_EX):
            self.clear()
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
    """The only connection that writes. All methods except `after_fork` run on the commit thread."""

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
        self._waiter_flag = WaiterFlag("")
        self._has_flag = False
        self._swept = time.monotonic()

    def commit(self, items: list[QueuedOp]) -> list[Any]:
        """Run all operations as one transaction. An error of the file becomes the result of each."""
        ops = [item.op for item in items]
        try:
            return self._commit(ops)
        except Exception as error:  # noqa: BLE001 - every caller gets it, and the thread must survive it
            return [_copy_error(error, self._path) for _ in ops]

    def tick(self) -> None:
        """Delete expired rows from time to time."""
        if self._connection.is_open and time.monotonic() - self._swept > SWEEP:
            self._swept = time.monotonic()
            with suppress(sqlite3.Error, EngineError), self._connection.use() as db:
                self._sweep(db)  # if the file is busy or full, the next sweep deletes the rows

    def end(self) -> None:
        self._connection.close()
        self._waiter_flag.close()

    def after_fork(self) -> None:
        """Close the inherited flag file. The fork has already closed the connection."""
        self._waiter_flag.close()

    def _commit(self, ops: list[Op[Any]]) -> list[Any]:
        try:
            return self._transaction(ops)
        except FailedAfterWrite as failed:
            index = failed.index
            results = self._commit(ops[:index] + ops[index + 1 :])  # the other operations are retried without it
            results.insert(index, failed.error)
            return results

    def _transaction(self, ops: list[Op[Any]]) -> list[Any]:
        reads = all(self._is_read(op) for op in ops)
        db = self._begin("BEGIN" if reads else "BEGIN IMMEDIATE", flags=not reads)
        try:
            results, after = self._work(db, ops)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        finally:
            self._connection.give_back()
        after()
        if self._waiter_flag.is_set_by_others():
            time.sleep(YIELD)
        return results

    def _begin(self, how: str, *, flags: bool) -> sqlite3.Connection:
        """Take the connection and begin a transaction. `flags`: show other processes that this one waits."""
        deadline = 0.0
        try:
            while True:
                db = self._connection.take()
                try:
                    if not self._has_flag:
                        self._waiter_flag = WaiterFlag("" if self._path == ":memory:" else self._path + "-queue")
                        self._has_flag = True
                    db.execute(how)
                    return db
                except BaseException as error:
                    self._connection.give_back()
                    if not isinstance(error, sqlite3.OperationalError) or not is_busy(error):
                        raise
                    if not deadline:
                        deadline = time.monotonic() + self._timeout
                    elif time.monotonic() > deadline:
                        raise
                if flags:
                    self._waiter_flag.set()
                time.sleep(random.uniform(*RETRY))
        finally:
            if deadline and flags:
                self._waiter_flag.clear()


def _copy_error(error: Exception, path: str) -> Exception:
    """Return a separate error for each caller: one object raised in several threads collects their tracebacks."""
    if isinstance(error, sqlite3.Error):
        return translate(error, path)
    return type(error)(str(error)) if isinstance(error, EngineError) else error
