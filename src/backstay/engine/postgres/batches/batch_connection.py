"""One connection and what it carries out, one group after another."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors as pg

from backstay.engine.base import Apply, steady
from backstay.engine.commit_thread import LATER, Item
from backstay.engine.postgres.batches.batch import Batch, Key
from backstay.engine.postgres.batches.hint_counters import HINTS, HintBatch
from backstay.engine.postgres.connection.session import FINAL, translate
from backstay.engine.postgres.connection.wire import Wire
from backstay.errors import EngineError, EngineUnavailable

if TYPE_CHECKING:
    from backstay.engine.postgres.engine import PostgresEngine

#: A name that was put off this often is waited for, on a connection where only its like wait.
SKIPS = 2
#: Seconds that a name may be waited for in all: longer than the server lets one of us stand still.
PATIENCE = 3.0
#: The server undid everything for reasons that do not come again.
UNDONE = (pg.DeadlockDetected, pg.SerializationFailure)
#: Seconds until it is tried again: whoever was in the way has its turn first, else both meet as before.
ASIDE = (0.005, 0.05)
#: Seconds between two sweeps of this process; many processes sweep, so each does it seldom.
SWEEP = (60.0, 180.0)
#: Seconds that a sweep waits for a connection: others need it more.
AT_ONCE = 0.1
#: One sweep removes at most this many rows of a kind, so that nobody waits for it.
SWEEP_ROWS = 1000
#: What is swept, and by which key.
SWEPT = {
    "backstay_state": "space, room, name",
    "backstay_tag": "space, room, tag, name",
    "backstay_hint_counter": "hint",
}
#: The statement's time, not the wall's: an index is of no use against a value that changes from row to row.
SWEEPS = [
    f"""
    DELETE FROM {table} WHERE ({key}) IN (
        SELECT {key} FROM {table}
        WHERE keep_until < coalesce(%s, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
        LIMIT {SWEEP_ROWS} FOR UPDATE SKIP LOCKED)
    """.encode()  # noqa: S608 - names from the lines above
    for table, key in SWEPT.items()
]


class Lane:
    """Everything runs on its group's thread. `wait`: for names that others hold. `spare`: leases depend on it, so it
    has a connection of its own where a user's pool has none.
    """

    def __init__(self, engine: PostgresEngine, *, wait: bool = False, spare: bool = False) -> None:
        self._engine = engine
        self._wait = wait
        self._spare = spare
        #: Somebody has been served: there are tables to sweep.
        self._served = False
        #: Names that have a row, so that it need not be made. None where names are waited for.
        self._known: set[Key] | None = None if wait else set()
        self._wire: Wire | None = None
        self._sweep_at = steady() + random.uniform(*SWEEP)

    def commit(self, items: list[Item]) -> list[Any]:
        """Results or exceptions, in order. LATER: somebody else holds the name."""
        try:
            return self._commit(items)
        finally:
            self._rest()

    def _commit(self, items: list[Item]) -> list[Any]:
        if not self._wait:
            return self._transact(items)
        # Name by name: who waits for one must not hold another.
        names: dict[tuple[str, str] | None, list[Item]] = {}
        for item in items:
            names.setdefault((item.op.room.name, item.op.name) if isinstance(item.op, Apply) else None, []).append(item)
        results = {id(item): result for group in names.values() for item, result in self._pairs(group)}
        return [self._at_last(item, results[id(item)]) for item in items]

    def _at_last(self, item: Item, result: Any) -> Any:
        """Nobody is put off for ever: a row that is neither there nor to be made may never come."""
        op = item.op
        if result is not LATER or not isinstance(op, Apply) or steady() <= item.since + PATIENCE:
            return result
        return EngineUnavailable(
            f"{self._engine.address}: the row of {op.room.name} {op.name!r} could not be had within {PATIENCE:g} s:"
            " somebody keeps it locked, or a trigger or policy on backstay_state hides it"
        )

    def _pairs(self, items: list[Item]) -> list[tuple[Item, Any]]:
        return list(zip(items, self._transact(items), strict=True))

    def _transact(self, items: list[Item]) -> list[Any]:
        engine = self._engine
        ops = [item.op for item in items]
        until = steady() + engine.address.timeout
        left = engine.tries
        while True:
            left -= 1
            used = self._wire is not None or not engine.keeps_sessions
            batch: Batch | HintBatch | None = None
            try:
                if self._wire is None or self._wire.session.closed:
                    self._wire = Wire(engine.session(spare=self._spare))
                else:  # a new one counts from the moment at which it was there
                    self._wire.session.until = until
                if all(isinstance(op, HINTS) for op in ops):
                    batch = HintBatch(self._wire, ops, now=engine.test_now())
                else:
                    batch = Batch(self._wire, engine.namespace, ops, known=self._known, now=engine.test_now())
                results = batch.run()
            except psycopg.Error as error:
                sent = batch is not None and batch.committing
                self._recover()
                stale = used and not sent and self._wire is None
                if steady() < until:
                    if isinstance(error, UNDONE):
                        time.sleep(random.uniform(*ASIDE))
                        continue
                    if left and stale:
                        continue
                if isinstance(error, pg.LockNotAvailable):
                    return [self._put_off(item, error) for item in items]
                if isinstance(error, FINAL) and len({type(op) for op in ops}) > 1:
                    return self._apart(items)
                return [translate(error, engine.address, sent=sent) for _ in ops]
            except EngineError as error:
                self.end()
                return [type(error)(str(error)) for _ in ops]
            except Exception as error:  # noqa: BLE001 - a bug: every caller gets it; the thread must live on
                self._break()
                return [error for _ in ops]
            self._served = True
            engine.correct(batch.now)
            engine.tell(batch.wakes)
            return [translate(r, engine.address, sent=True) if isinstance(r, psycopg.Error) else r for r in results]

    def _apart(self, items: list[Item]) -> list[Any]:
        """The server refuses something for good, a right say. What is of another kind does not suffer for it."""
        kinds: dict[type, list[Item]] = {}
        for item in items:
            kinds.setdefault(type(item.op), []).append(item)
        results = {id(item): result for alike in kinds.values() for item, result in self._pairs(alike)}
        return [results[id(item)] for item in items]

    def _put_off(self, item: Item, error: psycopg.Error) -> Any:
        """Somebody held a row too long for a statement. Which one is not known, so each name is tried by itself."""
        if item.since and steady() > item.since + PATIENCE:
            return translate(error, self._engine.address)
        item.skips = max(item.skips, SKIPS)
        return LATER

    def _recover(self) -> None:
        """After an error: out of the transaction, or out of the connection."""
        if self._wire is not None:
            try:
                self._wire.session.execute(b"ROLLBACK")
            except Exception:  # noqa: BLE001 - whatever it is, this connection does not get out of it
                self._break()

    def tick(self) -> None:
        """Sweep now and then. Nobody can tell: an absent row answers the same."""
        if not self._served or steady() < self._sweep_at:
            return
        self._sweep_at = steady() + random.uniform(*SWEEP)
        self.sweep()

    def sweep(self) -> None:
        if self._known is not None:
            self._known.clear()
        try:
            if self._wire is None or self._wire.session.closed:
                self._wire = Wire(self._engine.session(AT_ONCE))
            session = self._wire.session
            session.until = steady() + self._engine.address.timeout
            for statement in SWEEPS:
                session.begin()
                session.execute(statement, (self._engine.test_now(),))
                session.execute(b"COMMIT")
        except psycopg.Error:
            self._break()  # the next sweep will do
        except EngineError:
            self.end()
        finally:
            self._rest()

    def _rest(self) -> None:
        """Between groups a borrowed connection is with its owner."""
        if not self._engine.keeps_sessions:
            self.end()

    def _break(self) -> None:
        """The connection is of no more use to anybody."""
        if self._wire is not None:
            self._wire.session.close()
        self.end()

    def end(self) -> None:
        """Let go of the connection. Safe twice."""
        wire, self._wire = self._wire, None
        if wire is not None:
            self._engine.let_go(wire.session)
