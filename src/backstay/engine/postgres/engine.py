"""The PostgreSQL engine: runs machines in Python, with one transaction for each batch of operations.

Time is the server's clock, read after the names are locked. Hints are sent after the commit, on another connection: a
NOTIFY inside the transaction would serialise all commits of the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from backstay.engine.base import Apply, Micros, Op, StoreOperation, Wake, steady
from backstay.engine.batching import BatchingEngine
from backstay.engine.commit_thread import DELEGATED, CommitThread, OnResults, QueuedOp
from backstay.engine.postgres.address import Address
from backstay.engine.postgres.batches.batch_connection import SKIPS, BatchConnection
from backstay.engine.postgres.connection.session import Session, connect
from backstay.engine.postgres.pipeline.loop_connection import LoopConnection
from backstay.engine.postgres.schema import upgrade

T = TypeVar("T")

#: How often a batch is tried if the server rolled it back, or had closed the connection before the batch began.
TRIES = 3
#: The numbers of connections for store operations. EXCHANGES are for the exchanges of workers. Of the OTHERS, one is
#: for all other store operations that event loops submit, and one for those that threads submit.
EXCHANGES, OTHERS = 2, 2
STORE_CONNECTIONS = EXCHANGES + OTHERS


class PostgresEngine(BatchingEngine):
    """The engine for PostgreSQL 14 or newer. One connection runs batches of machine commands, and one waits for rows
    that other transactions have locked. Up to four more, opened on first use, run the operations of stores: so locks
    and jobs never wait for each other.
    """

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

    def _new_commit_thread(self) -> CommitThread:
        self._connections = [BatchConnection(self), BatchConnection(self, wait=True)]
        first, second = self._connections
        self._waiting = CommitThread("backstay-postgres-wait", commit=second.commit, end=second.end)
        self._store_connections = [
            LoopConnection(self, f"backstay-postgres-jobs-{n}") for n in range(STORE_CONNECTIONS)
        ]
        return self._serve("backstay-postgres", first)

    def _serve(self, name: str, connection: BatchConnection) -> CommitThread:
        """Return a thread that collects queued operations and runs them in batches on a connection. An operation that
        was deferred SKIPS times, because another transaction has locked its row, moves to the thread that waits for
        locked rows.
        """

        def commit(items: list[QueuedOp]) -> list[Any]:
            stuck = [item for item in items if item.skips >= SKIPS]
            if not stuck:
                return connection.commit(items)
            for item in stuck:
                item.waiting_since = item.waiting_since or steady()
            rest = [item for item in items if item.skips < SKIPS]
            self._waiting.put_items(stuck)
            # The result DELEGATED means that the other thread will return the result. Only the operations in `stuck`
            # get it. Note them now: the commit below may raise `skips` of an operation in `rest` to SKIPS, too.
            results = dict.fromkeys(map(id, stuck), DELEGATED)
            results.update(zip(map(id, rest), connection.commit(rest) if rest else [], strict=True))
            return [results[id(item)] for item in items]

        return CommitThread(name, commit=commit, tick=connection.tick, end=connection.end)

    def submit(self, op: Op[T]) -> asyncio.Future[T]:
        # An operation with a key is an exchange of a worker. It is sent at once, as a batch of its own. Others are
        # collected until the end of the event loop's iteration. For an exchange that would be too late: the loop would
        # first start the jobs that the previous exchange claimed.
        if type(op) is Apply or self._closed or not (isinstance(op, StoreOperation) and op.key):
            return super().submit(op)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._flush(loop, [(op, future)])
        return future

    def _put(
        self,
        ops: Sequence[Op[Any]],
        on_results: OnResults,
        thread: CommitThread,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        urgent: bool = False,
    ) -> None:
        if not self.keeps_sessions:  # a pooled session goes back to its pool after each batch, which only threads do
            loop = None
        by_connection: dict[int, list[QueuedOp]] = {}
        others: list[QueuedOp] = []
        for index, op in enumerate(ops):
            items = others
            if type(op) is not Apply and isinstance(op, StoreOperation):
                items = by_connection.setdefault(_route(op, loop), [])
            items.append(QueuedOp(op, index, on_results, urgent=urgent))
        if others:
            thread.put_items(others)
        for number, items in by_connection.items():
            self._store_connections[number].put_items(items, loop)

    @property
    def keeps_sessions(self) -> bool:
        """Whether a connection keeps its session between batches. False if sessions are borrowed from a pool."""
        return True

    def session(self, patience: float | None = None, *, spare: bool = False) -> Session:
        """Open a session and bring its schema up to date. Only the pooled engine uses the parameters: `patience` is how
        long to wait for a free connection, `spare` opens one outside the pool if none is free.
        """
        session = self.connect()
        try:
            upgrade(session, str(self))
        except BaseException:
            session.close()
            raise
        return session

    def release_session(self, session: Session) -> None:
        """Close a session that is no longer needed; the pooled engine returns it to its pool."""
        session.close()

    def connect(self, role: str = "") -> Session:
        """Open a separate connection; `role` is added to its application name. Raises BackstayError."""
        name = f"{self.client_name}:{role}" if role else self.client_name
        return connect(self.address, name)

    def deliver_wakes(self, wakes: Sequence[Wake]) -> None:
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

    def correct_clock(self, now: Micros) -> None:
        self._offset = now / 1_000_000 - steady()

    def close_blocking(self) -> None:
        super().close_blocking()
        self._waiting.stop()
        for connection in self._store_connections:
            connection.stop()


def _route(op: StoreOperation[Any], loop: asyncio.AbstractEventLoop | None) -> int:
    """Return the number of the connection for a store operation. Only exchanges have a key (`op.key`). It
    ends in the number of the worker channel, which selects one of the connections for exchanges. Other operations use
    one connection for event loops and one for threads: lease renewals come from a thread and must not wait behind a
    blocked event loop.
    """
    number = op.key.rpartition(":")[2]
    if number.isdecimal():
        return OTHERS + int(number) % EXCHANGES
    return 0 if loop is None else 1
