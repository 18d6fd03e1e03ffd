"""PostgreSQL as an engine: machines run here as Python, one transaction for each group of operations.

The clock is the server's, read after the names are locked. Hints go out after the commit, on another connection:
inside the transaction they would serialise all commits of the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from backstay.engine.base import Micros, Op, Wake, Within, steady
from backstay.engine.batching import GroupedEngine
from backstay.engine.commit_thread import ELSEWHERE, Answer, Group, Item
from backstay.engine.postgres.address import Address
from backstay.engine.postgres.batches.batch_connection import SKIPS, Lane
from backstay.engine.postgres.connection.session import Session, connect
from backstay.engine.postgres.pipeline.loop_connection import Brisk
from backstay.engine.postgres.schema import upgrade

T = TypeVar("T")

#: A group is tried this often when the server undid it, or had closed the connection before it began.
TRIES = 3
#: Connections for verbs of rooms with tables of their own: one for each lane that a worker has, one for the rest of
#: what a loop asks for, and one for threads.
STEPS, OTHERS = 2, 2
VERBS = STEPS + OTHERS


class PostgresEngine(GroupedEngine):
    """PostgreSQL 14 or newer, behind two connections: one for the groups, one for names that must be waited for; and
    up to four more for jobs, once there are any, so that neither waits for the other.
    """

    default_hub = "postgres"
    dialect = "postgres"
    tries = TRIES

    def __init__(
        self,
        address: Address,
        *,
        namespace: str = "backstay",
        client_name: str = "backstay",
        clock: Callable[[], Micros] | None = None,
    ) -> None:
        self.address = address
        self.client_name = client_name
        self._test_clock = clock
        self._offset = 0.0
        super().__init__(namespace)

    def _new_group(self) -> Group:
        self._lanes = [Lane(self), Lane(self, wait=True)]
        first, second = self._lanes
        self._waiting = Group("backstay-postgres-wait", commit=second.commit, end=second.end)
        self._verbs = [Brisk(self, f"backstay-postgres-jobs-{n}") for n in range(VERBS)]
        return self._group_of("backstay-postgres", first)

    def _group_of(self, name: str, first: Lane) -> Group:
        """A thread that serves a lane, and passes on what has to be waited for."""

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

        return Group(name, commit=commit, tick=first.tick, end=first.end)

    def submit(self, op: Op[T]) -> asyncio.Future[T]:
        # A step travels alone: it need not wait for the end of the turn, in which what the last one brought begins.
        if not (isinstance(op, Within) and op.key) or self._closed:
            return super().submit(op)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._flush(loop, [(op, future)])
        return future

    def _put(
        self, ops: Sequence[Op[Any]], answer: Answer, way: Group, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        if not self.keeps_sessions:  # what is borrowed goes back between two groups: a thread's work
            loop = None
        by_verb: dict[int, list[Item]] = {}
        others: list[Item] = []
        for place, op in enumerate(ops):
            items = by_verb.setdefault(_route(op, loop), []) if isinstance(op, Within) else others
            items.append(Item(op, place, answer))
        if others:
            way.put_items(others)
        for number, items in by_verb.items():
            self._verbs[number].put_items(items, loop)

    @property
    def keeps_sessions(self) -> bool:
        """Whether a lane keeps its connection between groups."""
        return True

    def session(self, patience: float | None = None, *, spare: bool = False) -> Session:
        """A connection for a lane, with the schema up to date."""
        session = self.connect()
        try:
            upgrade(session, str(self))
        except BaseException:
            session.close()
            raise
        return session

    def let_go(self, session: Session) -> None:
        """A lane is done with its connection."""
        session.close()

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
        for verbs in self._verbs:
            verbs.stop()


def _route(op: Within[Any], loop: asyncio.AbstractEventLoop | None) -> int:
    """Verbs whose key ends in a number keep to the connection of that number; of the others, a loop's have one of their
    own: what keeps leases alive comes from a thread, and must not wait for a loop that stands still.
    """
    number = op.key.rpartition(":")[2]
    if number.isdecimal():
        return OTHERS + int(number) % STEPS
    return 0 if loop is None else 1
