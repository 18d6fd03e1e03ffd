"""The embedded engine: one SQLite file, any number of processes on one host.

Machines run here as Python, inside one IMMEDIATE transaction per group of operations. The clock is the host's,
read after the write lock is taken and never allowed to run backwards: the last time seen is stored with the data, and a
clock that is never set counts on from there.
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
    Tag,
    Tagged,
    TakeHint,
    Untag,
    Wake,
    Within,
    steady,
)
from backstay.engine.batching import GroupedEngine
from backstay.engine.commit_thread import Group
from backstay.engine.sqlite import caller_transactions
from backstay.engine.sqlite.schema import connect
from backstay.engine.sqlite.writer import Spoiled, Writer

T = TypeVar("T")

READS = (Read, Scan, Tagged, Ping)
#: Hints older than this are of no use to anybody.
HINT_LIFE = 60_000_000
#: One sweep removes at most this many rows of a kind, so that nobody waits for it.
SWEEP_ROWS = 1000


def host_clock() -> Micros:
    return time.time_ns() // 1000


def host_ticks() -> Micros:
    """A clock that is never set; the same for all processes of one host since it started."""
    return time.monotonic_ns() // 1000


@cache
def host_boot() -> str:
    """Names this start of this host; the ticks of two starts have nothing to do with each other."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{time.time() - time.monotonic():.0f}"


def _still() -> Micros:
    return 0


class SqliteEngine(GroupedEngine):
    """SQLite in WAL mode behind one writer thread."""

    default_hub = "local"
    dialect = "sqlite"

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
        # A test clock stands still unless its ticks are given too.
        self._clock = clock or host_clock
        self._ticks = ticks or (_still if clock else host_ticks)
        self._boot = boot if boot is not None else host_boot()
        #: Engine time when we last heard of it: ahead of a host's clock that was set back.
        self._floor: tuple[Micros, float] = (0, 0.0)
        #: Tells this process's own hints from those of others.
        self.origin = secrets.token_hex(8)
        #: Whether other processes can see what is stored here.
        self.share_hints = path != ":memory:"
        super().__init__(namespace)

    def _new_group(self) -> Group:
        self._writer = writer = Writer(
            self.connect,
            self.path,
            work=self._work,
            is_read=_is_read,
            sweep=self._sweep,
            timeout=self.timeout,
        )
        return Group("backstay-sqlite", commit=writer.commit, tick=writer.tick, end=writer.end)

    def __str__(self) -> str:
        return self.path

    def connect(self) -> sqlite3.Connection:
        """A connection to the file, its schema up to date."""
        return connect(self.path, synchronous=self.synchronous, timeout=self.timeout)

    def submit(self, op: Op[T]) -> asyncio.Future[T]:
        caller_transactions.check(self, self.path)
        return super().submit(op)

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        caller_transactions.check(self, self.path)
        return super().apply_many(ops, timeout)

    def on(self, db: sqlite3.Connection, op: Op[T]) -> T:
        """Carry out an operation on the caller's own connection, inside its transaction: nothing is committed here, and
        hints for this process alone are not given. A failure leaves nothing behind.
        """
        before = caller_transactions.plainly(db)
        try:
            db.execute("SAVEPOINT backstay_on")
            try:
                (answer,), _ = self._work(db, [op])
                if isinstance(answer, BaseException):
                    raise answer
            except BaseException:
                if db.in_transaction:  # a full disk ends it by itself
                    db.execute("ROLLBACK TO backstay_on")
                    db.execute("RELEASE backstay_on")
                raise
            db.execute("RELEASE backstay_on")
        finally:
            db.row_factory, db.text_factory = before
        caller_transactions.inside(db, self)
        return cast("T", answer)

    def now(self) -> Micros:
        floor, at = self._floor
        return max(self._clock(), floor + int((steady() - at) * 1_000_000))

    def correct(self, now: Micros) -> None:
        self._floor = (now, steady())

    def after_fork(self) -> None:
        self._writer.after_fork()
        self.origin = secrets.token_hex(8)
        super().after_fork()

    # ── operations, inside a transaction ──

    def _work(self, db: sqlite3.Connection, ops: list[Op[Any]]) -> tuple[list[Any], Callable[[], None]]:
        last, then, boot = db.execute("SELECT now, steady, boot FROM backstay_clock").fetchone()
        ticks = self._ticks()
        # A clock that was set back neither moves nor stops time: from the last moment on, the steady clock counts.
        passed = max(0, ticks - then) if boot == self._boot else 0  # another host's ticks mean nothing here
        now = max(self._clock(), last + passed)
        results: list[Any] = []
        wakes: list[Wake] = []
        before = db.total_changes
        for place, op in enumerate(ops):
            untouched = db.total_changes
            try:
                results.append(self._handlers[type(op)](self, db, op, now, wakes))
            except sqlite3.Error:  # the file's trouble is everybody's
                raise
            except Exception as error:  # one operation's trouble is its own
                if db.total_changes != untouched:
                    if len(ops) == 1:
                        raise
                    raise Spoiled(place, error) from error
                results.append(error)
        # Who only looked, as a replay does, has moved nothing that time going back could harm, and needs no disk.
        if (now > last or boot != self._boot) and db.total_changes != before:
            db.execute("UPDATE backstay_clock SET now = ?, steady = ?, boot = ?", (now, ticks, self._boot))
        if not wakes:
            return results, _nothing
        if self.share_hints and not self._carriers:
            db.executemany(
                "INSERT INTO backstay_hint (origin, channel, payload, at) VALUES (?, ?, ?, ?)",
                [(self.origin, w.inbox, w.payload, now) for w in wakes if w.inbox not in self._hubs],
            )
        return results, lambda: self._deliver(wakes)

    def _apply(self, db: sqlite3.Connection, op: Apply, now: Micros, wakes: list[Wake]) -> Any:
        key = (self.namespace, op.room.name, op.name)
        state, body = self._load(db, op.room, op.name)
        step = op.room.step(state, op.command, now)
        reply = op.room.quote(op.name, step, body)
        if step.write:
            if step.state is None:
                db.execute("DELETE FROM backstay_state WHERE space = ? AND room = ? AND name = ?", key)
            else:
                db.execute(
                    "INSERT INTO backstay_state (space, room, name, doc, keep_until) VALUES (?, ?, ?, ?, ?)"
                    " ON CONFLICT DO UPDATE SET doc = excluded.doc, keep_until = excluded.keep_until",
                    (*key, op.room.encode(step.state), step.keep_until),
                )
            if step.body is not None:
                db.execute(
                    "UPDATE backstay_state SET body = ? WHERE space = ? AND room = ? AND name = ?", (step.body, *key)
                )
        wakes += step.wakes
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
        # In byte order the names with a prefix follow one another; SQL's own text functions stop at a NUL.
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

    def _within(self, db: sqlite3.Connection, op: Within[Any], now: Micros, wakes: list[Wake]) -> Any:
        """`work(db, now, wakes)`: the connection inside its transaction, the engine's time, and where hints go."""
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
        Within: _within,
    }

    def _sweep(self, db: sqlite3.Connection) -> None:
        """Remove what is past its time. Nobody can tell: an absent row answers the same."""
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
    return isinstance(op, READS) or (isinstance(op, Within) and op.reads)


def _nothing() -> None:
    pass
