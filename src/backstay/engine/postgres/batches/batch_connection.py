"""One connection that runs batches of machine commands, one transaction after another."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors as pg

from backstay.engine.base import READS, Apply, steady
from backstay.engine.commit_thread import DEFERRED, QueuedOp
from backstay.engine.jitter import RANDOM
from backstay.engine.postgres.batches.batch import Batch, Key
from backstay.engine.postgres.batches.hint_counters import HINTS, LAZY, HintBatch
from backstay.engine.postgres.connection.session import FINAL, translate
from backstay.engine.postgres.connection.wire import COMMIT, Pipeline
from backstay.engine.sweep_schedule import IDLE_LOOK, STEP_ROWS, SweepSchedule
from backstay.errors import EngineError, EngineUnavailable

if TYPE_CHECKING:
    from backstay.engine.postgres.engine import PostgresEngine

#: An operation is deferred if another transaction has locked the row of its name. After this many times, it moves to
#: the connection that waits for locked rows.
SKIPS = 2
#: How many seconds an operation waits for a locked row before it fails. This is longer than
#: `idle_in_transaction_session_timeout`, after which the server ends a stalled session of Backstay and frees its locks.
PATIENCE = 3.0
#: Transient errors: the server rolled the batch back, and the batch is retried.
TRANSIENT = (pg.DeadlockDetected, pg.SerializationFailure)
#: Random pause (seconds) before the retry, so that the conflicting transaction commits first.
RETRY_PAUSE = (0.005, 0.05)
#: Seconds that a sweep waits for a pooled connection: operations have priority.
SWEEP_PATIENCE = 0.1
#: The swept tables and their primary keys.
SWEPT = {
    "backstay_state": "space, room, name",
    "backstay_tag": "space, room, tag, name",
    "backstay_hint_counter": "hint",
}
#: Each deletes one step's rows (see `sweep_schedule`). Rows that another transaction has locked are skipped, so
#: processes that sweep at the same time delete different rows. statement_timestamp, not clock_timestamp: a volatile
#: function would prevent the use of the index.
SWEEPS = [
    f"""
    DELETE FROM {table} WHERE ({key}) IN (
        SELECT {key} FROM {table}
        WHERE keep_until < coalesce(%(now)s::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
        LIMIT {STEP_ROWS} FOR UPDATE SKIP LOCKED)
    """.encode()  # noqa: S608 - table and columns are the constants above
    for table, key in SWEPT.items()
]


class BatchConnection:
    """One connection and the batches that a `CommitThread` runs on it. With `wait`, it waits for rows that other
    transactions have locked, instead of deferring the operations on them. With `spare`, it may open a connection
    outside the user's pool if the pool has none free; the connection that renews leases does this.
    """

    def __init__(self, engine: PostgresEngine, *, wait: bool = False, spare: bool = False) -> None:
        self._engine = engine
        self._wait = wait
        self._spare = spare
        #: Whether a batch has succeeded, so that the tables exist and can be swept.
        self._has_committed = False
        #: A cache of the names that have a row, which `Batch` keeps up to date. None with `wait`: to `Batch`, None also
        #: means that it waits for locked rows.
        self._known: set[Key] | None = None if wait else set()
        self._pipeline: Pipeline | None = None
        self.sweep_schedule = SweepSchedule()

    def commit(self, items: list[QueuedOp]) -> list[Any]:
        """Run operations and return their results or exceptions, in order. The result DEFERRED means that another
        transaction has locked the row of the operation's name.
        """
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
        """Return the result. If it is DEFERRED and the operation has waited for longer than `PATIENCE`, return an error
        instead: another session keeps the row locked, or a row-level security policy hides it.
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
                else:  # a reused session; a new one gets its deadline in `engine.session`
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
                        time.sleep(RANDOM.uniform(*RETRY_PAUSE))
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
            except Exception as error:  # noqa: BLE001 - a bug: every caller gets the error, and the thread survives
                self._break()
                return [error for _ in ops]
            self._has_committed = True
            self.sweep_schedule.count(sum([type(op) not in READS for op in ops]))
            engine.correct_clock(batch.now)
            engine.deliver_wakes(batch.wakes)
            return [translate(r, engine.address, sent=True) if isinstance(r, psycopg.Error) else r for r in results]

    def _run_by_kind(self, items: list[QueuedOp]) -> list[Any]:
        """Run the operations of each type in a transaction of their own. This follows a permanent error of the whole
        batch, such as a missing privilege on one table: now only the types that use that table fail.
        """
        kinds: dict[type, list[QueuedOp]] = {}
        for item in items:
            kinds.setdefault(type(item.op), []).append(item)
        results = {id(item): result for same in kinds.values() for item, result in self._pairs(same)}
        return [results[id(item)] for item in items]

    def _defer(self, item: QueuedOp, error: psycopg.Error) -> Any:
        """Return DEFERRED for an operation of a batch that failed with `lock_timeout`, or an error if the operation has
        waited long enough. It is unknown which row was locked, so the operation moves to the connection that waits for
        locked rows, which runs each name in a transaction of its own.
        """
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

    def tick(self) -> float:
        """Delete some of the expired rows, if that is due. Returns the seconds until it is due again."""
        if not self._has_committed:
            return IDLE_LOOK
        while self.sweep_schedule.is_due():
            self.sweep()
        return self.sweep_schedule.pause()

    def sweep(self) -> None:
        """Delete expired rows of all tables: one step (see `sweep_schedule`). It changes no reply: a missing row means
        the same as an expired one.
        """
        began = steady()
        try:
            deleted = self._delete_expired()
        except psycopg.Error:
            self._recover()  # a later step deletes the rows
            self.sweep_schedule.record_failure()
        except EngineError:
            self.end()
            self.sweep_schedule.record_failure()
        else:
            self.sweep_schedule.record(took=steady() - began, has_more=max(deleted) == STEP_ROWS)
            if self._known is not None and any(deleted):
                self._known.clear()
        finally:
            self._release_pooled()

    def _delete_expired(self) -> list[int]:
        """Return the number of rows that were deleted from each table."""
        if self._pipeline is None or self._pipeline.session.closed:
            self._pipeline = Pipeline(self._engine.session(SWEEP_PATIENCE))
        session = self._pipeline.session
        session.until = steady() + self._engine.address.timeout
        first = [*session.begin_statements(), LAZY]  # a crash that undoes the deletion is harmless
        given = {"now": self._engine.test_now()}
        results, failed = self._pipeline.send([*first, *((statement, given) for statement in SWEEPS), COMMIT])
        if failed is not None:
            raise failed
        return [int(result.command.split()[-1]) for result in results[len(first) : -1]]

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
