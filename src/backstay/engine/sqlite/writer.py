"""The connection on which a SQLite engine writes. While the file is busy it retries, it lets other processes write in
turn, and it deletes expired rows.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable
from typing import Any, TypeVar

from backstay.engine.base import Op
from backstay.engine.commit_thread import QueuedOp
from backstay.engine.jitter import RANDOM
from backstay.engine.sqlite.connection import SqliteConnection
from backstay.engine.sqlite.file_mode import open_beside
from backstay.engine.sqlite.schema import is_busy, translate
from backstay.engine.sweep_schedule import IDLE_LOOK, SweepSchedule
from backstay.errors import EngineError

T = TypeVar("T")

#: Random pause (seconds) between attempts on a busy file.
RETRY = (0.0003, 0.002)
#: Pause (seconds) after a commit while other processes wait for the file. It is longer than their longest pause between
#: two attempts, so that one of them can begin its transaction.
YIELD = 0.0025
#: Seconds that a sweep waits while other processes write: operations have priority.
SWEEP_PATIENCE = 0.5

#: Runs a batch inside the transaction; returns the results and a callback to run after the commit.
Work = Callable[[sqlite3.Connection, list[Op[Any]]], tuple[list[Any], Callable[[], None]]]


class FailedAfterWrite(Exception):
    """An operation of a batch raised `error` after it had written. Its writes can be undone only by a rollback of the
    whole transaction; the other operations are then run again without it. `index`: its position in the batch.
    """

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class WaiterFlag:
    """Shows other processes that this one waits for the database: a shared lock on a file beside the database. The
    kernel releases the lock when the process ends. `database`: the path of the database file; "": no other process can
    use it.
    """

    def __init__(self, database: str) -> None:
        self._fd = open_beside(database, "-queue") if database else -1

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


class SqliteWriter:
    """Runs the engine's transactions on one connection. All methods except `after_fork` run on the commit thread,
    the one thread of the process that runs the operations of the engine.
    """

    def __init__(
        self,
        open_db: Callable[[], sqlite3.Connection],
        path: str,
        *,
        work: Work,
        is_read: Callable[[Op[Any]], bool],
        has_expired: Callable[[sqlite3.Connection], bool],
        sweep: Callable[[sqlite3.Connection], bool],
        timeout: float,
    ) -> None:
        self._connection = SqliteConnection(open_db, survives_fork=path == ":memory:")
        self._path = path
        self._work = work
        self._is_read = is_read
        self._has_expired = has_expired
        self._sweep = sweep
        self._sweep_schedule = SweepSchedule()
        self._timeout = timeout
        self._waiter_flag = WaiterFlag("")
        self._has_flag = False

    def commit(self, items: list[QueuedOp]) -> list[Any]:
        """Run the operations as one transaction. The result UNSTARTED means that its time ended before the operation.
        If the transaction fails, its error is the result of every operation.
        """
        ops = [item.op for item in items]
        try:
            return self._commit(ops)
        except Exception as error:  # noqa: BLE001 - every caller gets the error, and the thread survives
            return [_copy_error(error, self._path) for _ in ops]

    def tick(self) -> float:
        """Delete some of the expired rows, if that is due. Returns the seconds until it is due again."""
        schedule = self._sweep_schedule
        if not self._connection.is_open:
            return IDLE_LOOK
        while schedule.is_due():
            began = time.monotonic()
            try:
                has_more = self._sweep_step()
            except (sqlite3.Error, EngineError):  # the file is busy or full: a later step deletes the rows
                schedule.record_failure()
            else:
                schedule.record(took=time.monotonic() - began, has_more=has_more)
        return schedule.pause()

    def _sweep_step(self) -> bool:
        with self._connection.use() as db:
            if not self._has_expired(db):
                return False
        return self._transact("BEGIN IMMEDIATE", self._sweep, flags=True, timeout=SWEEP_PATIENCE)

    def end(self) -> None:
        self._connection.close()
        self._waiter_flag.close()

    def after_fork(self) -> None:
        """In a forked child: close the file of the WaiterFlag, which was inherited from the parent. The database
        connection needs no closing here: a `SqliteConnection` is closed before the fork.
        """
        self._waiter_flag.close()

    def _commit(self, ops: list[Op[Any]]) -> list[Any]:
        try:
            return self._transaction(ops)
        except FailedAfterWrite as failed:
            index = failed.index
            results = self._commit(ops[:index] + ops[index + 1 :])  # retry the other operations without the failed one
            results.insert(index, failed.error)
            return results

    def _transaction(self, ops: list[Op[Any]]) -> list[Any]:
        reads = all(self._is_read(op) for op in ops)
        begin = "BEGIN" if reads else "BEGIN IMMEDIATE"
        results, after = self._transact(begin, lambda db: self._work(db, ops), flags=not reads, timeout=self._timeout)
        if not reads:
            self._sweep_schedule.count(len(ops))
        after()
        if self._waiter_flag.is_set_by_others():
            time.sleep(YIELD)
        return results

    def _transact(self, how: str, work: Callable[[sqlite3.Connection], T], *, flags: bool, timeout: float) -> T:
        db = self._begin(how, flags=flags, timeout=timeout)
        try:
            result = work(db)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        finally:
            self._connection.give_back()
        return result

    def _begin(self, how: str, *, flags: bool, timeout: float) -> sqlite3.Connection:
        """Take the connection and begin a transaction, retrying while the file is busy. `flags`: while it waits, show
        other processes by the WaiterFlag that this process wants to write.
        """
        deadline = 0.0
        try:
            while True:
                db = self._connection.take()
                try:
                    if not self._has_flag:
                        self._waiter_flag = WaiterFlag("" if self._path == ":memory:" else self._path)
                        self._has_flag = True
                    db.execute(how)
                    return db
                except BaseException as error:
                    self._connection.give_back()
                    if not isinstance(error, sqlite3.OperationalError) or not is_busy(error):
                        raise
                    if not deadline:
                        deadline = time.monotonic() + timeout
                    elif time.monotonic() > deadline:
                        raise
                if flags:
                    self._waiter_flag.set()
                time.sleep(RANDOM.uniform(*RETRY))
        finally:
            if deadline and flags:
                self._waiter_flag.clear()


def _copy_error(error: Exception, path: str) -> Exception:
    """Return a separate error for each caller: one object raised in several threads collects their tracebacks."""
    if isinstance(error, sqlite3.Error):
        return translate(error, path)
    return type(error)(str(error)) if isinstance(error, EngineError) else error
