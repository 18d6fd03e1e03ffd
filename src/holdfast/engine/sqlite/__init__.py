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
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from holdfast.engine.base import (
    Apply,
    Micros,
    Op,
    Ping,
    Publish,
    Read,
    Reading,
    Scan,
    Tag,
    Tagged,
    Untag,
    Wake,
    only,
    steady,
)
from holdfast.engine.sqlite.schema import connect
from holdfast.engine.sqlite.writer import Writer
from holdfast.engine.turn import Asked, Turn, settle
from holdfast.errors import Closed, OutcomeUnknown

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


class SqliteEngine:
    """SQLite in WAL mode behind one writer thread."""

    default_hub = "local"

    def __init__(
        self,
        path: str,
        *,
        namespace: str = "holdfast",
        synchronous: str = "full",
        timeout: float = 5.0,
        clock: Callable[[], Micros] | None = None,
        ticks: Callable[[], Micros] | None = None,
        boot: str | None = None,
    ) -> None:
        self.path = path
        self.namespace = namespace
        self.timeout = timeout
        self.synchronous = synchronous
        # A test clock stands still unless its ticks are given too.
        self._clock = clock or host_clock
        self._ticks = ticks or (_still if clock else host_ticks)
        self._boot = boot if boot is not None else host_boot()
        self._turn = Turn(self._flush)
        self._closed = False
        #: Engine time when we last heard of it: ahead of a host's clock that was set back.
        self._floor: tuple[Micros, float] = (0, 0.0)
        #: Tells this process's own hints from those of others.
        self.origin = secrets.token_hex(8)
        self._hubs: dict[str, Callable[[Sequence[Wake]], None]] = {}
        #: False when another hub carries the hints between processes.
        self.share_hints = path != ":memory:"
        self._writer = self._new_writer()

    def _new_writer(self) -> Writer:
        return Writer(
            self.connect,
            self.path,
            work=self._work,
            is_read=_is_read,
            sweep=self._sweep,
            timeout=self.timeout,
        )

    def attach(self, inbox: str, deliver: Callable[[Sequence[Wake]], None]) -> None:
        """Wakes go to `deliver` after each commit. Those for `inbox` concern nobody else and are not stored."""
        self._hubs = {**self._hubs, inbox: deliver}

    def detach(self, inbox: str) -> None:
        self._hubs = {other: deliver for other, deliver in self._hubs.items() if other != inbox}

    def _deliver(self, wakes: Sequence[Wake]) -> None:
        for deliver in self._hubs.values():
            deliver(wakes)

    def connect(self) -> sqlite3.Connection:
        """A connection to the file, its schema up to date."""
        return connect(self.path, synchronous=self.synchronous, timeout=self.timeout)

    # ── doors ──

    def submit(self, op: Op[T]) -> asyncio.Future[T]:
        if self._closed:
            raise Closed("this engine is closed")
        return self._turn.submit(op)

    def _flush(self, loop: asyncio.AbstractEventLoop, asked: Asked) -> None:
        futures = [future for _, future in asked]

        def answer(results: list[Any]) -> None:
            with suppress(RuntimeError):  # the loop has gone; nobody waits
                loop.call_soon_threadsafe(settle, futures, results)

        self._writer.put([op for op, _ in asked], answer)

    def prepare(self, op: Apply) -> Apply:
        return op

    def apply(self, op: Op[T]) -> T:
        return cast("T", only(self.apply_many([op])))

    def apply_many(self, ops: Sequence[Op[Any]], timeout: float | None = None) -> list[Any]:
        if self._closed:
            return [Closed("this engine is closed")] * len(ops)
        if not ops:
            return []
        answered = threading.Event()
        box: list[Any] = []

        def answer(results: list[Any]) -> None:
            box.extend(results)
            answered.set()

        self._writer.put(list(ops), answer)
        # The writer answers within its own timeout; only a stopped disk can keep it longer.
        if not answered.wait(timeout):
            return [OutcomeUnknown(f"{self.path} did not answer within {timeout:g} s") for _ in ops]
        return box

    def thread_ears(self) -> None:
        """Hints come through the hub."""

    def witness(self) -> None:
        """One file, no replicas."""

    def key(self, room: str, name: str) -> str:
        return f"{self.namespace}/{room}/{name}"

    def now(self) -> Micros:
        floor, at = self._floor
        return max(self._clock(), floor + int((steady() - at) * 1_000_000))

    def correct(self, now: Micros) -> None:
        self._floor = (now, steady())

    async def open(self) -> None:
        await self.submit(Ping())

    async def close(self) -> None:
        await asyncio.to_thread(self.close_blocking)

    def close_blocking(self) -> None:
        self._closed = True
        self._writer.stop()

    def after_fork(self) -> None:
        self._writer.after_fork()
        self._turn = Turn(self._flush)
        self.origin = secrets.token_hex(8)
        self._hubs = {}
        self._writer = self._new_writer()

    # ── operations, inside a transaction ──

    def _work(self, db: sqlite3.Connection, ops: list[Op[Any]]) -> tuple[list[Any], Callable[[], None]]:
        last, then, boot = db.execute("SELECT now, steady, boot FROM holdfast_clock").fetchone()
        ticks = self._ticks()
        # A clock that was set back neither moves nor stops time: from the last moment on, the steady clock counts.
        passed = max(0, ticks - then) if boot == self._boot else 0  # another host's ticks mean nothing here
        now = max(self._clock(), last + passed)
        results: list[Any] = []
        wakes: list[Wake] = []
        for op in ops:
            try:
                results.append(self._handlers[type(op)](self, db, op, now, wakes))
            except sqlite3.Error:  # the file's trouble is everybody's
                raise
            except Exception as error:  # noqa: BLE001 - one operation's trouble is its own
                results.append(error)
        if (now > last or boot != self._boot) and not all(map(_is_read, ops)):
            db.execute("UPDATE holdfast_clock SET now = ?, steady = ?, boot = ?", (now, ticks, self._boot))
        if not wakes:
            return results, _nothing
        if self.share_hints:
            db.executemany(
                "INSERT INTO holdfast_hint (origin, channel, payload, at) VALUES (?, ?, ?, ?)",
                [(self.origin, w.inbox, w.payload, now) for w in wakes if w.inbox not in self._hubs],
            )
        return results, lambda: self._deliver(wakes)

    def _apply(self, db: sqlite3.Connection, op: Apply, now: Micros, wakes: list[Wake]) -> Any:
        key = (self.namespace, op.room.name, op.name)
        step = op.room.step(self._load(db, op.room, op.name), op.command, now)
        if step.write:
            if step.state is None:
                db.execute("DELETE FROM holdfast_state WHERE space = ? AND room = ? AND name = ?", key)
            else:
                db.execute(
                    "INSERT INTO holdfast_state (space, room, name, doc, keep_until) VALUES (?, ?, ?, ?, ?)"
                    " ON CONFLICT DO UPDATE SET doc = excluded.doc, keep_until = excluded.keep_until",
                    (*key, op.room.encode(step.state), step.keep_until),
                )
        wakes += step.wakes
        return step.reply

    def _load(self, db: sqlite3.Connection, room: Any, name: str) -> Any:
        row = db.execute(
            "SELECT doc FROM holdfast_state WHERE space = ? AND room = ? AND name = ?",
            (self.namespace, room.name, name),
        ).fetchone()
        return room.decode_state(name, row[0]) if row else None

    def _read(self, db: sqlite3.Connection, op: Read, now: Micros, _: list[Wake]) -> Reading[Any]:
        return Reading(now, self._load(db, op.room, op.name))

    def _scan(self, db: sqlite3.Connection, op: Scan, now: Micros, _: list[Wake]) -> list[str]:
        rows = db.execute(
            "SELECT name FROM holdfast_state WHERE space = ? AND room = ? AND name >= ? AND keep_until >= ?"
            " ORDER BY name",
            (self.namespace, op.room.name, op.prefix, now),
        )
        # In byte order the names with a prefix follow one another; SQL's own text functions stop at a NUL.
        return [name for (name,) in itertools.takewhile(lambda row: row[0].startswith(op.prefix), rows)]

    def _tag(self, db: sqlite3.Connection, op: Tag, now: Micros, _: list[Wake]) -> None:
        db.execute(
            "INSERT INTO holdfast_tag (space, room, tag, name, keep_until) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET keep_until = max(keep_until, excluded.keep_until)",
            (self.namespace, op.room.name, op.tag, op.name, now + op.ttl),
        )

    def _tagged(self, db: sqlite3.Connection, op: Tagged, now: Micros, _: list[Wake]) -> list[str]:
        rows = db.execute(
            "SELECT name FROM holdfast_tag WHERE space = ? AND room = ? AND tag = ? AND keep_until > ? ORDER BY name",
            (self.namespace, op.room.name, op.tag, now),
        )
        return [row[0] for row in rows]

    def _untag(self, db: sqlite3.Connection, op: Untag, now: Micros, _: list[Wake]) -> None:
        db.executemany(
            "DELETE FROM holdfast_tag WHERE space = ? AND room = ? AND tag = ? AND name = ?",
            [(self.namespace, op.room.name, op.tag, name) for name in op.names],
        )

    def _publish(self, db: sqlite3.Connection, op: Publish, now: Micros, wakes: list[Wake]) -> None:
        wakes.append(Wake(op.channel, op.payload))

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
        Ping: _ping,
    }

    def _sweep(self, db: sqlite3.Connection) -> None:
        """Remove what is past its time. Nobody can tell: an absent row answers the same."""
        now = self._clock()
        for table, key in (
            ("holdfast_state", "space, room, name"),
            ("holdfast_tag", "space, room, tag, name"),
        ):
            db.execute(
                f"DELETE FROM {table} WHERE ({key}) IN"  # noqa: S608 - names from the line above
                f" (SELECT {key} FROM {table} WHERE keep_until < ? LIMIT ?)",
                (now, SWEEP_ROWS),
            )
        db.execute("DELETE FROM holdfast_hint WHERE at < ?", (now - HINT_LIFE,))


def _is_read(op: Op[Any]) -> bool:
    return isinstance(op, READS)


def _nothing() -> None:
    pass
