"""The SQLite engine: one file, any number of processes on one host.

It runs machines in Python, inside one IMMEDIATE transaction per batch of operations. Time is the host's clock, read
after the write lock is taken. It never runs backwards: the last time is stored with the data, and the monotonic clock
counts on from there if the host's clock is set back.
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
    Apply,
    Micros,
    Op,
    Ping,
    Publish,
    PublishHint,
    Read,
    Reading,
    Scan,
    StoreOperation,
    Tag,
    Tagged,
    TakeHint,
    Untag,
    Wake,
    steady,
)
from backstay.engine.batching import BatchingEngine
from backstay.engine.commit_thread import CommitThread
from backstay.engine.sqlite import caller_transactions
from backstay.engine.sqlite.schema import connect
from backstay.engine.sqlite.writer import FailedAfterWrite, Writer

T = TypeVar("T")

READS = (Read, Scan, Tagged, Ping)
#: Hints are deleted after this time (µs): all processes have polled them by then.
HINT_LIFE = 60_000_000
#: One sweep deletes at most this many rows per table, which bounds how long operations wait behind it.
SWEEP_ROWS = 1000


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
    """SQLite in WAL mode behind one writer thread."""

    def __init__(
        self,
        path: str,
        *,
        namespace: str = "backstay",
        synchronous: str = "full",
        timeout: float = 5.0,
        clock: Callable[[], Micros] | None = None,
        ticks: Callable[[], Micros] | None = None,
        boot: str | None = None,
    ) -> None:
        self.path = path
        self.timeout = timeout
        self.synchronous = synchronous
        # With a test clock, time advances only through that clock unless `ticks` is given too.
        self._clock = clock or host_clock
        self._ticks = ticks or (_no_ticks if clock else host_ticks)
        self._boot = boot if boot is not None else host_boot()
        #: The last engine time that was reported, and when (steady clock): ahead of a host clock that was set back.
        self._floor: tuple[Micros, float] = (0, 0.0)
        #: Marks this process's own hints in the table.
        self.origin = secrets.token_hex(8)
        #: Whether other processes can read this database.
        self.share_hints = path != ":memory:"
        super().__init__(namespace)

    def _new_commit_thread(self) -> CommitThread:
        self._writer = writer = Writer(
            self.connect,
            self.path,
            work=self._run_ops,
            is_read=_is_read,
            sweep=self._sweep,
            timeout=self.timeout,
        )
        return CommitThread("backstay-sqlite", commit=writer.commit, tick=writer.tick, end=writer.end)

    def __str__(self) -> str:
        return self.path

    def connect(self) -> sqlite3.Connection:
        """Open a connection to the file and bring its schema up to date."""
        return connect(self.path, synchronous=self.synchronous, timeout=self.timeout)

    def submit(self, op: Op[T]) -> asyncio.Future[T]:
        caller_transactions.check(self, self.path)
        return super().submit(op)

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        caller_transactions.check(self, self.path)
        return super().apply_many(ops, timeout)

    def apply_on(self, db: sqlite3.Connection, op: Op[T]) -> T:
        """Run an operation on the caller's own connection, inside the caller's transaction. It does not commit, and it
        delivers no wakes within this process. If it fails, its writes are rolled back.
        """
        before = caller_transactions.use_plain_rows(db)
        try:
            db.execute("SAVEPOINT backstay_on")
            try:
                (result,), _ = self._run_ops(db, [op])
                if isinstance(result, BaseException):
                    raise result
            except BaseException:
                if db.in_transaction:  # SQLite itself rolls back when the disk is full
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
        before = db.total_changes
        for index, op in enumerate(ops):
            changes = db.total_changes
            try:
                results.append(self._handlers[type(op)](self, db, op, now, wakes))
            except sqlite3.Error:  # an error of the file fails the whole transaction
                raise
            except Exception as error:  # an exception is the result of this operation only
                if db.total_changes != changes:
                    if len(ops) == 1:
                        raise
                    raise FailedAfterWrite(index, error) from error
                results.append(error)
        # The clock is stored only with a change: a batch that only reads (a replay, for example) must not touch the
        # disk, and has written nothing that a clock set back could contradict.
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

    def _apply(self, db: sqlite3.Connection, op: Apply, now: Micros, wakes: list[Wake]) -> Any:
        key = (self.namespace, op.room.name, op.name)
        state, body = self._load(db, op.room, op.name)
        transition = op.room.step(state, op.command, now)
        reply = op.room.complete_reply(op.name, transition, body)
        if transition.write:
            if transition.state is None:
                db.execute("DELETE FROM backstay_state WHERE space = ? AND room = ? AND name = ?", key)
            else:
                db.execute(
                    "INSERT INTO backstay_state (space, room, name, doc, keep_until) VALUES (?, ?, ?, ?, ?)"
                    " ON CONFLICT DO UPDATE SET doc = excluded.doc, keep_until = excluded.keep_until",
                    (*key, op.room.encode(transition.state), transition.keep_until),
                )
            if transition.body is not None:
                db.execute(
                    "UPDATE backstay_state SET body = ? WHERE space = ? AND room = ? AND name = ?",
                    (transition.body, *key),
                )
        wakes += transition.wakes
        return reply

    def _load(self, db: sqlite3.Connection, room: Any, name: str) -> tuple[Any, bytes | None]:
        row = db.execute(
            "SELECT doc, body FROM backstay_state WHERE space = ? AND room = ? AND name = ?",
            (self.namespace, room.name, name),
        ).fetchone()
        return (room.decode_state(name, row[0]), row[1]) if row else (None, None)

    def _read(self, db: sqlite3.Connection, op: Read, now: Micros, _: list[Wake]) -> Reading[Any]:
        return Reading(now, self._load(db, op.room, op.name)[0])

    def _scan(self, db: sqlite3.Connection, op: Scan, now: Micros, _: list[Wake]) -> list[str]:
        rows = db.execute(
            "SELECT name FROM backstay_state WHERE space = ? AND room = ? AND name >= ? AND keep_until >= ?"
            " ORDER BY name",
            (self.namespace, op.room.name, op.prefix, now),
        )
        # In byte order the names with a prefix are adjacent. SQL's text functions would stop at a NUL.
        return [name for (name,) in itertools.takewhile(lambda row: row[0].startswith(op.prefix), rows)]

    def _tag(self, db: sqlite3.Connection, op: Tag, now: Micros, _: list[Wake]) -> None:
        db.execute(
            "INSERT INTO backstay_tag (space, room, tag, name, keep_until) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET keep_until = max(keep_until, excluded.keep_until)",
            (self.namespace, op.room.name, op.tag, op.name, now + op.ttl),
        )

    def _tagged(self, db: sqlite3.Connection, op: Tagged, now: Micros, _: list[Wake]) -> list[str]:
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
        """Call `work(db, now, wakes)`: the connection inside its transaction, the engine's time, and the list that
        collects hints.
        """
        return op.work(db, now, wakes)

    def _ping(self, db: sqlite3.Connection, op: Ping, now: Micros, _: list[Wake]) -> Micros:
        return now

    _handlers: ClassVar[dict[type, Callable[..., Any]]] = {
        Apply: _apply,
        Read: _read,
        Scan: _scan,
        Tag: _tag,
        Tagged: _tagged,
        Untag: _untag,
        Publish: _publish,
        PublishHint: _publish_hint,
        TakeHint: _take_hint,
        Ping: _ping,
        StoreOperation: _run_store_operation,
    }

    def _sweep(self, db: sqlite3.Connection) -> None:
        """Delete expired rows. It changes no reply: a missing row means the same as an expired one."""
        now = self._clock()
        for table, key in (
            ("backstay_state", "space, room, name"),
            ("backstay_tag", "space, room, tag, name"),
            ("backstay_hint_counter", "hint"),
        ):
            db.execute(
                f"DELETE FROM {table} WHERE ({key}) IN"  # noqa: S608 - names from the line above
                f" (SELECT {key} FROM {table} WHERE keep_until < ? LIMIT ?)",
                (now, SWEEP_ROWS),
            )
        db.execute("DELETE FROM backstay_hint WHERE at < ?", (now - HINT_LIFE,))


def _is_read(op: Op[Any]) -> bool:
    return isinstance(op, READS) or (isinstance(op, StoreOperation) and op.reads)


def _do_nothing() -> None:
    pass
