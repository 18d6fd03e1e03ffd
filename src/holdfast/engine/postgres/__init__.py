"""PostgreSQL as an engine: machines run here as Python, one transaction for each group of operations.

The clock is the server's, read after the names are locked. Hints go out after the commit, on another connection:
inside the transaction they would serialise all commits of the database.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from holdfast.engine.base import Micros, Op, Wake, steady
from holdfast.engine.group import ELSEWHERE, Group, Item
from holdfast.engine.grouped import GroupedEngine
from holdfast.engine.postgres.address import Address
from holdfast.engine.postgres.batch import Batch
from holdfast.engine.postgres.schema import upgrade
from holdfast.engine.postgres.session import Session, connect, translate
from holdfast.errors import EngineError

#: A name that was put off this often is waited for, on a connection where only its like wait.
SKIPS = 2
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
SWEEPS = [
    f"""
    DELETE FROM {table} WHERE ({key}) IN (
        SELECT {key} FROM {table} WHERE keep_until < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        LIMIT {SWEEP_ROWS} FOR UPDATE SKIP LOCKED)
    """.encode()  # noqa: S608 - names from the lines above
    for table, key in (
        ("holdfast_state", "space, room, name"),
        ("holdfast_tag", "space, room, tag, name"),
        ("holdfast_hint_counter", "hint"),
    )
]


class Lane:
    """One connection and what it carries out, one group after another. Everything runs on its group's thread."""

    def __init__(self, engine: PostgresEngine, *, wait: bool) -> None:
        self._engine = engine
        self._wait = wait
        self._session: Session | None = None
        self._sweep_at = steady() + random.uniform(*SWEEP)

    def commit(self, items: list[Item]) -> list[Any]:
        if self._wait:  # one by one: who waits for a name must not hold another
            return [self._transact([item.op])[0] for item in items]
        return self._transact([item.op for item in items])

    def _transact(self, ops: Sequence[Op[Any]]) -> list[Any]:
        engine = self._engine
        batch: Batch | None = None
        try:
            session = self._ready()
            session.until = steady() + engine.address.timeout
            batch = Batch(session, engine.namespace, ops, wait=self._wait, now=engine.test_now())
            results = batch.run()
        except psycopg.Error as error:
            self.end()
            sent = batch is not None and batch.committing
            return [translate(error, engine.address, sent=sent) for _ in ops]
        except EngineError as error:
            self.end()
            return [type(error)(str(error)) for _ in ops]
        except Exception as error:  # noqa: BLE001 - a bug: every caller gets it; the thread must live on
            self.end()
            return [error for _ in ops]
        engine.tell(batch.wakes)
        return results

    def _ready(self) -> Session:
        if self._session is None or self._session.closed:
            session = self._engine.connect()
            self._session = session
            upgrade(session, str(self._engine))
        return self._session

    def tick(self) -> None:
        """Sweep now and then. Nobody can tell: an absent row answers the same."""
        if self._session is None or steady() < self._sweep_at:
            return
        self._sweep_at = steady() + random.uniform(*SWEEP)
        try:
            self._session.until = steady() + self._engine.address.timeout
            for statement in SWEEPS:
                self._session.execute(statement)
        except psycopg.Error:
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
            self._waiting.put_items(stuck)
            results = iter(first.commit(rest) if (rest := [i for i in items if i.skips < SKIPS]) else [])
            return [ELSEWHERE if item.skips >= SKIPS else next(results) for item in items]

        return Group("holdfast-postgres", commit=commit, tick=first.tick, end=first.end)

    def connect(self, role: str = "") -> Session:
        """A connection of its own. Raises errors of our tree."""
        name = f"{self.client_name}:{role}" if role else self.client_name
        return connect(self.address, name, self.address.timeout)

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
