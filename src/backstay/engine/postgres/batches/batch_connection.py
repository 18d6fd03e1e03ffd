"""One connection that runs batches of machine commands, one transaction after another."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors as pg

from backstay.engine.base import Apply, steady
from backstay.engine.commit_thread import DEFERRED, QueuedOp
from backstay.engine.postgres.batches.batch import Batch, Key
from backstay.engine.postgres.batches.hint_counters import HINTS, HintBatch
from backstay.engine.postgres.connection.session import FINAL, translate
from backstay.engine.postgres.connection.wire import Pipeline
from backstay.errors import EngineError, EngineUnavailable

if TYPE_CHECKING:
    from backstay.engine.postgres.engine import PostgresEngine

#: An operation that was deferred this often moves to the connection that waits for locked names.
SKIPS = 2
#: Seconds to wait for a name in all: longer than `idle_in_transaction_session_timeout` of a stalled session of ours.
PATIENCE = 3.0
#: Transient errors: the server rolled the batch back, and the batch is retried.
TRANSIENT = (pg.DeadlockDetected, pg.SerializationFailure)
#: Random pause (seconds) before the retry: the conflicting transaction commits first and does not conflict again.
RETRY_PAUSE = (0.005, 0.05)
#: Seconds between two sweeps of this process, at random. All processes sweep, so each one does it rarely.
SWEEP = (60.0, 180.0)
#: Seconds that a sweep waits for a pooled connection: operations have priority.
SWEEP_PATIENCE = 0.1
#: One sweep deletes at most this many rows per table, which bounds how long operations wait behind it.
SWEEP_ROWS = 1000
#: The swept tables and their primary keys.
SWEPT = {
    "backstay_state": "space, room, name",
    "backstay_tag": "space, room, tag, name",
    "backstay_hint_counter": "hint",
}
#: statement_timestamp, not clock_timestamp: a volatile function would prevent the use of the index.
SWEEPS = [
    f"""
    DELETE FROM {table} WHERE ({key}) IN (
        SELECT {key} FROM {table}
        WHERE keep_until < coalesce(%s, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
        LIMIT {SWEEP_ROWS} FOR UPDATE SKIP LOCKED)
    """.encode()  # noqa: S608 - names from the lines above
    for table, key in SWEPT.items()
]


class BatchConnection:
    """Runs batches on its commit thread. `wait`: it waits for names that other transactions hold. `spare`: it renews
    leases, so it opens its own connection if the user's pool has none free.
    """

    def __init__(self, engine: PostgresEngine, *, wait: bool = False, spare: bool = False) -> None:
        self._engine = engine
        self._wait = wait
        self._spare = spare
        #: Whether a batch has succeeded, so that the tables exist and can be swept.
        self._served = False
        #: A cache of the names that have a row. None: wait for locked names instead of skipping them.
        self._known: set[Key] | None = None if wait else set()
        self._pipeline: Pipeline | None = None
        self._sweep_at = steady() + random.uniform(*SWEEP)

    def commit(self, items: list[QueuedOp]) -> list[Any]:
        """Return results or exceptions, in order. DEFERRED: another transaction holds the name."""
        try:
            return self._commit(items)
        finally:
            self._release_pooled()

    def _commit(self, items: list[QueuedOp]) -> list[Any]:
        if not self._wait:
            return self._transact(items)
        # One transaction per name: waiting for one lock while holding another could deadlock.
        names: dict[tuple[str, str] | None, list[QueuedOp]] = {}
        for item in items:
            names.setdefault((item.op.room.name, item.op.name) if isinstance(item.op, Apply) else None, []).append(item)
        results = {id(item): result for group in names.values() for item, result in self._pairs(group)}
        return [self._result_or_timeout(item, results[id(item)]) for item in items]

    def _result_or_timeout(self, item: QueuedOp, result: Any) -> Any:
        """Return the result, or an error when the operation was deferred to later batches for too long: another session
        may keep its row locked, or a policy may hide the row.
        """
        op = item.op
        if result is not DEFERRED or not isinstance(op, Apply) or steady() <= item.waiting_since + PATIENCE:
            return result
        return EngineUnavailable(
            f"{self._engine.address}: the row of {op.room.name} {op.name!r} could not be locked within {PATIENCE:g} s:"
            " another session keeps it locked, or a trigger or policy on backstay_state hides it"
        )

    def _pairs(self, items: list[QueuedOp]) -> list[tuple[QueuedOp, Any]]:
        return list(zip(items, self._transact(items), strict=True))

    def _transact(self, items: list[QueuedOp]) -> list[Any]:
        engine = self._engine
        ops = [item.op for item in items]
        until = steady() + engine.address.timeout
        left = engine.tries
        while True:
            left -= 1
            used = self._pipeline is not None or not engine.keeps_sessions
            batch: Batch | HintBatch | None = None
            try:
                if self._pipeline is None or self._pipeline.session.closed:
                    self._pipeline = Pipeline(engine.session(spare=self._spare))
                else:  # the deadline of a new session starts when it is connected
                    self._pipeline.session.until = until
                if all(isinstance(op, HINTS) for op in ops):
                    batch = HintBatch(self._pipeline, ops, now=engine.test_now())
                else:
                    batch = Batch(self._pipeline, engine.namespace, ops, known=self._known, now=engine.test_now())
                results = batch.run()
            except psycopg.Error as error:
                sent = batch is not None and batch.committing
                self._recover()
                stale = used and not sent and self._pipeline is None
                if steady() < until:
                    if isinstance(error, TRANSIENT):
                        time.sleep(random.uniform(*RETRY_PAUSE))
                        continue
                    if left and stale:
                        continue
                if isinstance(error, pg.LockNotAvailable):
                    return [self._defer(item, error) for item in items]
                if isinstance(error, FINAL) and len({type(op) for op in ops}) > 1:
                    return self._run_by_kind(items)
                return [translate(error, engine.address, sent=sent) for _ in ops]
            except EngineError as error:
                self.end()
                return [type(error)(str(error)) for _ in ops]
            except Exception as error:  # noqa: BLE001 - a bug: every caller gets it, and the thread must survive it
                self._break()
                return [error for _ in ops]
            self._served = True
            engine.correct_clock(batch.now)
            engine.deliver_wakes(batch.wakes)
            return [translate(r, engine.address, sent=True) if isinstance(r, psycopg.Error) else r for r in results]

    def _run_by_kind(self, items: list[QueuedOp]) -> list[Any]:
        """Run each kind of operation in its own transaction, after a permanent refusal (a missing privilege, for
        example): the refusal then fails only its own kind.
        """
        kinds: dict[type, list[QueuedOp]] = {}
        for item in items:
            kinds.setdefault(type(item.op), []).append(item)
        results = {id(item): result for same in kinds.values() for item, result in self._pairs(same)}
        return [results[id(item)] for item in items]

    def _defer(self, item: QueuedOp, error: psycopg.Error) -> Any:
        """Defer an operation after `lock_timeout`. The locked row is unknown, so each name is then tried alone."""
        if item.waiting_since and steady() > item.waiting_since + PATIENCE:
            return translate(error, self._engine.address)
        item.skips = max(item.skips, SKIPS)
        return DEFERRED

    def _recover(self) -> None:
        """Roll back after an error; if that fails, close the connection."""
        if self._pipeline is not None:
            try:
                self._pipeline.session.execute(b"ROLLBACK")
            except Exception:  # noqa: BLE001 - after any error here the connection is unusable
                self._break()

    def tick(self) -> None:
        """Delete expired rows from time to time. It changes no reply: a missing row means the same as an expired
        one.
        """
        if not self._served or steady() < self._sweep_at:
            return
        self._sweep_at = steady() + random.uniform(*SWEEP)
        self.sweep()

    def sweep(self) -> None:
        if self._known is not None:
            self._known.clear()
        try:
            if self._pipeline is None or self._pipeline.session.closed:
                self._pipeline = Pipeline(self._engine.session(SWEEP_PATIENCE))
            session = self._pipeline.session
            session.until = steady() + self._engine.address.timeout
            for statement in SWEEPS:
                session.begin()
                session.execute(statement, (self._engine.test_now(),))
                session.execute(b"COMMIT")
        except psycopg.Error:
            self._break()  # the next sweep deletes the rows
        except EngineError:
            self.end()
        finally:
            self._release_pooled()

    def _release_pooled(self) -> None:
        """Return a pooled session to its pool between batches."""
        if not self._engine.keeps_sessions:
            self.end()

    def _break(self) -> None:
        """Close a connection in an unknown state."""
        if self._pipeline is not None:
            self._pipeline.session.close()
        self.end()

    def end(self) -> None:
        """Release the session. Safe to call twice."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            self._engine.release_session(pipeline.session)
