"""PostgreSQL as an engine: machines run here as Python, one transaction for each group of operations.

The clock is the server's, read after the names are locked. Hints go out after the commit, on another connection:
inside the transaction they would serialise all commits of the database.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import errors as pg

from holdfast.engine.base import Apply, Micros, Wake, steady
from holdfast.engine.group import ELSEWHERE, LATER, Group, Item
from holdfast.engine.grouped import GroupedEngine
from holdfast.engine.postgres.address import Address
from holdfast.engine.postgres.batch import Batch, Key
from holdfast.engine.postgres.schema import upgrade
from holdfast.engine.postgres.session import Session, connect, translate
from holdfast.errors import EngineError

#: A name that was put off this often is waited for, on a connection where only its like wait.
SKIPS = 2
#: Seconds that a name may be waited for in all: longer than the server lets one of us stand still.
PATIENCE = 3.0
#: The server undid everything for reasons that do not come again.
UNDONE = (pg.DeadlockDetected, pg.SerializationFailure)
#: A group is tried this often when the server undid it, or had closed the connection before it began.
TRIES = 3
#: Seconds between two sweeps of this process; many processes sweep, so each does it seldom.
SWEEP = (60.0, 180.0)
#: One sweep removes at most this many rows of a kind, so that nobody waits for it.
SWEEP_ROWS = 1000
#: What is swept, and by which key.
SWEPT = {
    "holdfast_state": "space, room, name",
    "holdfast_tag": "space, room, tag, name",
    "holdfast_hint_counter": "hint",
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
    """One connection and what it carries out, one group after another. Everything runs on its group's thread."""

    def __init__(self, engine: PostgresEngine, *, wait: bool) -> None:
        self._engine = engine
        self._wait = wait
        #: Names that have a row, so that it need not be made. None where names are waited for.
        self._known: set[Key] | None = None if wait else set()
        self._session: Session | None = None
        self._sweep_at = steady() + random.uniform(*SWEEP)

    def commit(self, items: list[Item]) -> list[Any]:
        """Results or exceptions, in order. LATER: somebody else holds the name."""
        if not self._wait:
            return self._transact(items)
        # Name by name: who waits for one must not hold another.
        names: dict[tuple[str, str] | None, list[Item]] = {}
        for item in items:
            names.setdefault((item.op.room.name, item.op.name) if isinstance(item.op, Apply) else None, []).append(item)
        results = {id(item): result for group in names.values() for item, result in self._pairs(group)}
        return [results[id(item)] for item in items]

    def _pairs(self, items: list[Item]) -> list[tuple[Item, Any]]:
        return list(zip(items, self._transact(items), strict=True))

    def _transact(self, items: list[Item]) -> list[Any]:
        engine = self._engine
        ops = [item.op for item in items]
        until = steady() + engine.address.timeout
        for left in range(TRIES - 1, -1, -1):
            used = self._session is not None
            batch: Batch | None = None
            try:
                session = self._ready()
                if used:  # else counted from the moment at which it was there
                    session.until = until
                batch = Batch(session, engine.namespace, ops, known=self._known, now=engine.test_now())
                results = batch.run()
            except psycopg.Error as error:
                sent = batch is not None and batch.committing
                self._recover()
                stale = used and not sent and self._session is None
                if left and steady() < until and (stale or isinstance(error, UNDONE)):
                    continue
                if isinstance(error, pg.LockNotAvailable):
                    return [self._put_off(item, error) for item in items]
                return [translate(error, engine.address, sent=sent) for _ in ops]
            except EngineError as error:
                self.end()
                return [type(error)(str(error)) for _ in ops]
            except Exception as error:  # noqa: BLE001 - a bug: every caller gets it; the thread must live on
                self.end()
                return [error for _ in ops]
            engine.correct(batch.now)
            engine.tell(batch.wakes)
            return results
        raise AssertionError("the last try returns")

    def _put_off(self, item: Item, error: psycopg.Error) -> Any:
        """Somebody held a row too long for a statement. Which one is not known, so each name is tried by itself."""
        if item.since and steady() > item.since + PATIENCE:
            return translate(error, self._engine.address)
        item.skips = max(item.skips, SKIPS)
        return LATER

    def _ready(self) -> Session:
        if self._session is None or self._session.closed:
            session = self._engine.connect()
            self._session = session
            upgrade(session, str(self._engine))
        return self._session

    def _recover(self) -> None:
        """After an error: out of the transaction, or out of the connection."""
        if self._session is not None:
            try:
                self._session.execute(b"ROLLBACK")
            except psycopg.Error:
                self.end()

    def tick(self) -> None:
        """Sweep now and then. Nobody can tell: an absent row answers the same."""
        if self._session is None or steady() < self._sweep_at:
            return
        self._sweep_at = steady() + random.uniform(*SWEEP)
        self.sweep()

    def sweep(self) -> None:
        if self._known is not None:
            self._known.clear()
        try:
            session = self._ready()
            session.until = steady() + self._engine.address.timeout
            for statement in SWEEPS:
                session.execute(statement, (self._engine.test_now(),))
        except (psycopg.Error, EngineError):
            self.end()  # the next sweep will do

    def end(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class PostgresEngine(GroupedEngine):
    """PostgreSQL 14 or newer, behind two connections: one for the groups, one for names that must be waited for."""

    default_hub = "postgres"

    def __init__(
        self,
        address: Address,
        *,
        namespace: str = "holdfast",
        client_name: str = "holdfast",
        clock: Callable[[], Micros] | None = None,
    ) -> None:
        self.address = address
        self.client_name = client_name
        self._test_clock = clock
        self._offset = 0.0
        super().__init__(namespace)

    def _new_group(self) -> Group:
        self._lanes = [Lane(self, wait=False), Lane(self, wait=True)]
        first, second = self._lanes
        self._waiting = Group("holdfast-postgres-wait", commit=second.commit, end=second.end)

        def commit(items: list[Item]) -> list[Any]:
            stuck = [item for item in items if item.skips >= SKIPS]
            if not stuck:
                return first.commit(items)
            for item in stuck:
                item.since = item.since or steady()
            rest = [item for item in items if item.skips < SKIPS]
            self._waiting.put_items(stuck)
            # Not by `skips` again: the commit may raise them, and who is put off by it must not count as gone.
            results = dict.fromkeys(map(id, stuck), ELSEWHERE)
            results.update(zip(map(id, rest), first.commit(rest) if rest else [], strict=True))
            return [results[id(item)] for item in items]

        return Group("holdfast-postgres", commit=commit, tick=first.tick, end=first.end)

    def connect(self, role: str = "") -> Session:
        """A connection of its own. Raises errors of our tree."""
        name = f"{self.client_name}:{role}" if role else self.client_name
        return connect(self.address, name)

    def tell(self, wakes: Sequence[Wake]) -> None:
        if wakes:
            self._deliver(wakes)

    def test_now(self) -> Micros | None:
        return self._test_clock() if self._test_clock is not None else None

    def __str__(self) -> str:
        return str(self.address)

    def now(self) -> Micros:
        if self._test_clock is not None:
            return self._test_clock()
        return int((steady() + self._offset) * 1_000_000)

    def correct(self, now: Micros) -> None:
        self._offset = now / 1_000_000 - steady()

    def close_blocking(self) -> None:
        super().close_blocking()
        self._waiting.stop()
