"""The SQLite engine: one file, any number of processes on one host.

It runs machines in Python, inside one IMMEDIATE transaction per batch of operations. Time is the host's clock, read
after the write lock is taken. Time never runs backwards: the last time is stored with the data, and if the host's clock
is set back, time continues from there by the monotonic clock.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from backstay.engine.base import (
    READS,
    Apply,
    ListTagged,
    Micros,
    Op,
    Ping,
    Publish,
    PublishHint,
    Read,
    Scan,
    StoreOperation,
    Tag,
    TakeHint,
    Untag,
    Wake,
    steady,
)
from backstay.engine.batching import BatchingEngine
from backstay.engine.commit_thread import MAX_SECONDS, UNSTARTED, CommitThread
from backstay.engine.sqlite import caller_transactions, sweep
from backstay.engine.sqlite.file_mode import PRIVATE
from backstay.engine.sqlite.records import Records
from backstay.engine.sqlite.schema import connect
from backstay.engine.sqlite.writer import FailedAfterWrite, SqliteWriter

T = TypeVar("T")


def host_clock() -> Micros:
    return time.time_ns() // 1000


def host_ticks() -> Micros:
    """Return the monotonic clock (µs), which all processes of a host share until it restarts."""
    return time.monotonic_ns() // 1000


@cache
def host_boot() -> str:
    """Return an id of the host's current boot. Ticks of different boots are not comparable."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{time.time() - time.monotonic():.0f}"


def _no_ticks() -> Micros:
    return 0


class SqliteEngine(BatchingEngine):
    """SQLite in WAL mode; one thread of this process runs all operations."""

    def __init__(
        self,
        path: str,
        *,
        namespace: str = "backstay",
        synchronous: str = "full",
        timeout: float = 5.0,
        file_mode: int = PRIVATE,
        clock: Callable[[], Micros] | None = None,
        ticks: Callable[[], Micros] | None = None,
        boot: str | None = None,
    ) -> None:
        self.path = path
        self.timeout = timeout
        self.synchronous = synchronous
        #: The mode of new files: of the database and of the files beside it.
        self.file_mode = file_mode
        # `ticks` is the monotonic clock. For a test that passes only `clock`, the monotonic clock stands still, so that
        # time advances only through the test's `clock`.
        self._clock = clock or host_clock
        self._ticks = ticks or (_no_ticks if clock else host_ticks)
        self._boot = boot if boot is not None else host_boot()
        #: The engine time of the last `correct_clock` call, and the monotonic clock (seconds) at that moment. If the
        #: host's clock was set back, `now` continues from this engine time by the monotonic clock.
        self._floor: tuple[Micros, float] = (0, 0.0)
        #: Marks the rows that this process inserts into `backstay_hint`. Its own hub skips them: it has delivered them
        #: directly.
        self.origin = secrets.token_hex(8)
        #: Whether hints are also stored for other processes: no other process can read `:memory:`.
        self.share_hints = path != ":memory:"
        super().__init__(namespace)

    def _new_commit_thread(self) -> CommitThread:
        self._writer = writer = SqliteWriter(
            self.connect,
            self.path,
            work=self._run_ops,
            is_read=_is_read,
            has_expired=self._has_expired,
            sweep=self._sweep,
            timeout=self.timeout,
        )
        return CommitThread("backstay-sqlite", commit=writer.commit, tick=writer.tick, end=writer.end)

    def __str__(self) -> str:
        return self.path

    def connect(self) -> sqlite3.Connection:
        """Open a connection to the file and bring its schema up to date."""
        return connect(self.path, synchronous=self.synchronous, timeout=self.timeout, file_mode=self.file_mode)

    def submit(self, op: Op[T]) -> asyncio.Future[T]:
        caller_transactions.check(self, self.path)
        return super().submit(op)

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        caller_transactions.check(self, self.path)
        return super().apply_many(ops, timeout)

    def apply_on(self, db: sqlite3.Connection, op: Op[T]) -> T:
        """Run an operation on the caller's own connection, inside the caller's transaction. It does not commit, and it
        sends no hints to waiters of this process. If it fails, its writes are rolled back.
        """
        before = caller_transactions.use_plain_rows(db)
        try:
            db.execute("SAVEPOINT backstay_on")
            try:
                (result,), _ = self._run_ops(db, [op])
                if isinstance(result, BaseException):
                    raise result
            except BaseException:
                if db.in_transaction:  # if the disk is full, SQLite has already rolled back
                    db.execute("ROLLBACK TO backstay_on")
                    db.execute("RELEASE backstay_on")
                raise
            db.execute("RELEASE backstay_on")
        finally:
            db.row_factory, db.text_factory = before
        caller_transactions.enter(db, self)
        return cast("T", result)

    def now(self) -> Micros:
        floor, at = self._floor
        return max(self._clock(), floor + int((steady() - at) * 1_000_000))

    def correct_clock(self, now: Micros) -> None:
        self._floor = (now, steady())

    def after_fork(self) -> None:
        self._writer.after_fork()
        self.origin = secrets.token_hex(8)
        super().after_fork()

    # ── operations, inside a transaction ──

    def _run_ops(self, db: sqlite3.Connection, ops: list[Op[Any]]) -> tuple[list[Any], Callable[[], None]]:
        last, then, boot = db.execute("SELECT now, steady, boot FROM backstay_clock").fetchone()
        ticks = self._ticks()
        # If the host's clock was set back, time continues from the last stored moment by the monotonic clock.
        passed = max(0, ticks - then) if boot == self._boot else 0  # ticks of another boot are not comparable
        now = max(self._clock(), last + passed)
        results: list[Any] = []
        wakes: list[Wake] = []
        records = Records(db, self.namespace)
        before = db.total_changes
        until = steady() + MAX_SECONDS
        for index, op in enumerate(ops):
            if index and steady() > until:
                results += [UNSTARTED] * (len(ops) - index)
                break
            kind = type(op)
            if kind is not Apply and kind is not Read:
                _set_errors(results, records.write())  # other operations may read or change the table itself
            changes = db.total_changes
            try:
                if kind is Apply:
                    results.append(records.apply(index, cast("Apply", op), now, wakes))
                elif kind is Read:
                    results.append(records.read(cast("Read", op), now))
                else:
                    results.append(self._handlers[kind](self, db, op, now, wakes))
            except sqlite3.Error:  # SQLite failed (disk full, damaged file): fail the whole transaction
                raise
            except Exception as error:  # an exception becomes the result of this operation only
                if db.total_changes != changes:
                    if len(ops) == 1:
                        raise
                    raise FailedAfterWrite(index, error) from error
                results.append(error)
        _set_errors(results, records.write())
        # Store the engine time only if the batch has changed something. It is stored so that no later transaction gets
        # an earlier time than the records that this one wrote. A batch that only reads has written none, and must not
        # cost a disk write.
        if (now > last or boot != self._boot) and db.total_changes != before:
            db.execute("UPDATE backstay_clock SET now = ?, steady = ?, boot = ?", (now, ticks, self._boot))
        if not wakes:
            return results, _do_nothing
        if self.share_hints and not self._forwarders:
            db.executemany(
                "INSERT INTO backstay_hint (origin, channel, payload, at) VALUES (?, ?, ?, ?)",
                [(self.origin, w.inbox, w.payload, now) for w in wakes if w.inbox not in self._hubs],
            )
        return results, lambda: self._deliver(wakes)

    def _scan(self, db: sqlite3.Connection, op: Scan, now: Micros, _: list[Wake]) -> list[str]:
        rows = db.execute(
            "SELECT name FROM backstay_state WHERE space = ? AND room = ? AND name >= ? AND keep_until >= ?"
            " ORDER BY name",
            (self.namespace, op.room.name, op.prefix, now),
        )
        # In byte order the names with a prefix are adjacent. SQLite's text functions would stop at a NUL character.
        return [name for (name,) in itertools.takewhile(lambda row: row[0].startswith(op.prefix), rows)]

    def _tag(self, db: sqlite3.Connection, op: Tag, now: Micros, _: list[Wake]) -> None:
        db.execute(
            "INSERT INTO backstay_tag (space, room, tag, name, keep_until) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET keep_until = max(keep_until, excluded.keep_until)",
            (self.namespace, op.room.name, op.tag, op.name, now + op.ttl),
        )

    def _list_tagged(self, db: sqlite3.Connection, op: ListTagged, now: Micros, _: list[Wake]) -> list[str]:
        rows = db.execute(
            "SELECT name FROM backstay_tag WHERE space = ? AND room = ? AND tag = ? AND keep_until > ? ORDER BY name",
            (self.namespace, op.room.name, op.tag, now),
        )
        return [row[0] for row in rows]

    def _untag(self, db: sqlite3.Connection, op: Untag, now: Micros, _: list[Wake]) -> None:
        db.executemany(
            "DELETE FROM backstay_tag WHERE space = ? AND room = ? AND tag = ? AND name = ?",
            [(self.namespace, op.room.name, op.tag, name) for name in op.names],
        )

    def _publish(self, db: sqlite3.Connection, op: Publish, now: Micros, wakes: list[Wake]) -> None:
        wakes.append(Wake(op.channel, op.payload))

    def _publish_hint(self, db: sqlite3.Connection, op: PublishHint, now: Micros, wakes: list[Wake]) -> None:
        db.execute("INSERT OR REPLACE INTO backstay_hint_counter VALUES (?, ?, ?)", (op.hint, op.count, now + op.life))
        wakes.append(Wake(op.channel, op.payload))

    def _take_hint(self, db: sqlite3.Connection, op: TakeHint, now: Micros, _: list[Wake]) -> int:
        row = db.execute(
            "SELECT remaining FROM backstay_hint_counter WHERE hint = ? AND keep_until > ?", (op.hint, now)
        ).fetchone()
        if row is None:
            return op.n
        taken = min(op.n, int(row[0]))
        if taken:
            db.execute("UPDATE backstay_hint_counter SET remaining = remaining - ? WHERE hint = ?", (taken, op.hint))
        return taken

    def _run_store_operation(
        self, db: sqlite3.Connection, op: StoreOperation[Any], now: Micros, wakes: list[Wake]
    ) -> Any:
        """Run an operation of a store, which is a function: `op.work(db, now, wakes)`. It gets the connection inside
        its transaction, the engine's time, and a list to which it appends the hints to send after the commit.
        """
        return op.work(db, now, wakes)

    def _ping(self, db: sqlite3.Connection, op: Ping, now: Micros, _: list[Wake]) -> Micros:
        return now

    _handlers: ClassVar[dict[type, Callable[..., Any]]] = {
        Scan: _scan,
        Tag: _tag,
        ListTagged: _list_tagged,
        Untag: _untag,
        Publish: _publish,
        PublishHint: _publish_hint,
        TakeHint: _take_hint,
        Ping: _ping,
        StoreOperation: _run_store_operation,
    }

    def _has_expired(self, db: sqlite3.Connection) -> bool:
        return sweep.has_expired(db, self._clock())

    def _sweep(self, db: sqlite3.Connection) -> bool:
        """Delete expired rows, up to a number. Returns whether there may be more. It changes no reply: a missing row
        means the same as an expired one.
        """
        return sweep.sweep(db, self._clock())


def _is_read(op: Op[Any]) -> bool:
    return isinstance(op, READS) or (isinstance(op, StoreOperation) and op.reads)


def _set_errors(results: list[Any], errors: dict[int, Exception]) -> None:
    for index, error in errors.items():
        results[index] = error


def _do_nothing() -> None:
    pass
