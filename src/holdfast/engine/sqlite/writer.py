"""The one thread that writes: group commit within the process, fair turns between processes."""

from __future__ import annotations

import fcntl
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from holdfast.engine.base import Op
from holdfast.engine.sqlite.schema import is_busy, translate
from holdfast.errors import Closed, EngineError

#: One transaction takes at most this many operations, so that nobody waits behind a flood.
LARGEST = 1000
#: A busy file is tried again after this long, at random in between.
RETRY = (0.0003, 0.002)
#: After a commit while others wait: longer than their longest pause, so they get in.
YIELD = 0.0025
#: How often ended rows are swept.
SWEEP = 60.0

#: Carries out a batch inside the transaction; answers results and what to do after the commit.
Work = Callable[[sqlite3.Connection, list[Op[Any]]], tuple[list[Any], Callable[[], None]]]


def _ignore(results: list[Any]) -> None:
    pass


#: Time has passed and nobody asked for anything.
NOTHING: tuple[list[Op[Any]], Callable[[list[Any]], None]] = ([], _ignore)


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
    """Takes batches from any thread; commits whatever waits as one transaction, then answers."""

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
        self._open_db = open_db
        self._path = path
        self._work = work
        self._is_read = is_read
        self._sweep = sweep
        self._timeout = timeout
        self._inbox: SimpleQueue[tuple[list[Op[Any]], Callable[[list[Any]], None]] | None] = SimpleQueue()
        self._queue = Queue("")
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopped = False

    def put(self, ops: list[Op[Any]], answer: Callable[[list[Any]], None]) -> None:
        """Queue a batch; `answer` is called from the writer thread with results or exceptions."""
        with self._starting:
            if not self._stopped:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="holdfast-sqlite", daemon=True)
                    self._thread.start()
                self._inbox.put((ops, answer))
                return
        answer([Closed("this engine is closed") for _ in ops])

    def stop(self) -> None:
        """Finish what was queued, then end. Safe twice."""
        with self._starting:
            self._stopped = True
            thread, self._thread = self._thread, None
            if thread is not None:
                self._inbox.put(None)  # nothing is queued behind it
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        db = None
        swept = time.monotonic()
        try:
            while True:
                try:
                    item = self._inbox.get(timeout=SWEEP)
                except Empty:
                    item = NOTHING
                if item is None:
                    return
                batches = [item]
                size = len(item[0])
                stop = False
                while size < LARGEST and not self._inbox.empty():
                    more = self._inbox.get()
                    if more is None:
                        stop = True
                        break
                    batches.append(more)
                    size += len(more[0])
                ops = [op for batch, _ in batches for op in batch]
                try:
                    if db is None:
                        db = self._open_db()
                        self._queue = Queue("" if self._path == ":memory:" else self._path + "-queue")
                    results = self._commit(db, self._queue, ops) if ops else []
                except Exception as error:  # noqa: BLE001 - every caller gets it; the thread must live on
                    results = [_own(error, self._path) for _ in ops]
                for batch, answer in batches:
                    mine, results = results[: len(batch)], results[len(batch) :]
                    answer(mine)
                if stop:
                    return
                if db is not None and time.monotonic() - swept > SWEEP:
                    swept = time.monotonic()
                    with suppress(sqlite3.Error):  # busy or full: the next sweep will do
                        self._sweep(db)
        finally:
            if db is not None:
                db.close()
            self._queue.close()

    def after_fork(self) -> None:
        """The thread stayed with the parent, and so does its connection: SQLite forbids even closing it here."""
        self._queue.close()

    def _commit(self, db: sqlite3.Connection, queue: Queue, ops: list[Op[Any]]) -> list[Any]:
        if all(self._is_read(op) for op in ops):
            self._begin(db, "BEGIN", None)
        else:
            self._begin(db, "BEGIN IMMEDIATE", queue)
        try:
            results, after = self._work(db, ops)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        after()
        if queue.others_wait():
            time.sleep(YIELD)
        return results

    def _begin(self, db: sqlite3.Connection, how: str, queue: Queue | None) -> None:
        deadline = 0.0
        try:
            while True:
                try:
                    db.execute(how)
                    return
                except sqlite3.OperationalError as error:
                    if not is_busy(error):
                        raise
                    if not deadline:
                        deadline = time.monotonic() + self._timeout
                    elif time.monotonic() > deadline:
                        raise
                    if queue is not None:
                        queue.wait_here()
                    time.sleep(random.uniform(*RETRY))
        finally:
            if deadline and queue is not None:
                queue.leave()


def _own(error: Exception, path: str) -> Exception:
    """An error of its own for each caller: one object raised in several threads grows a confused traceback."""
    if isinstance(error, sqlite3.Error):
        return translate(error, path)
    return type(error)(str(error)) if isinstance(error, EngineError) else error
