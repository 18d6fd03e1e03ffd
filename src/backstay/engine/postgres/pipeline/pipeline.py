"""Run store operations (of jobs, for example) on connections of their own; machine commands (of locks, for example)
use other connections.

A store operation is a procedure: a generator that yields round trips of statements and is sent their rows. A round trip
with `commit` is a whole transaction, or the end of a transaction, and is sent in one write. Several queued procedures
whose next round trip has `commit` share a transaction. If the server rolls the transaction back, all its procedures
restart. This is safe, because store operations are idempotent.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import psycopg
from psycopg import errors as pg

from backstay.engine.base import Micros, Op, StoreOperation, Wake, steady
from backstay.engine.commit_thread import QueuedOp
from backstay.engine.jitter import RANDOM
from backstay.engine.postgres.connection.pooled_session import PooledSession
from backstay.engine.postgres.connection.session import Session, translate
from backstay.engine.postgres.connection.wire import COMMIT, Pipeline, PipelineTrip, Rows, Statement, StatementResult
from backstay.errors import EngineError

if TYPE_CHECKING:
    from backstay.engine.postgres.engine import PostgresEngine

#: Errors after which procedures restart: the server rolled the transaction back, or a row stayed locked longer than
#: `lock_timeout`. A division by zero is deliberate: a procedure first tries a fast path, whose last statement divides
#: by zero if a concurrent transaction has made the result wrong. Then the procedure restarts without the fast path.
RETRIED = (pg.DeadlockDetected, pg.SerializationFailure, pg.LockNotAvailable, pg.DivisionByZero)
#: Random pause (seconds) before a restart, so that the conflicting transaction can end.
RETRY_PAUSE = (0.001, 0.02)
#: One transaction takes at most this many procedures.
MAX_BATCH = 100
#: PostgreSQL plans a prepared statement once, for any parameters, possibly while the tables are still empty. A plan
#: made for empty tables might scan them, and would be kept after they have grown. All statements look rows up by key,
#: so these settings force nested index loops instead.
PLAN_SETTINGS = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
SET = (
    "SELECT " + ", ".join(f"set_config('{name}', '{value}', %(local)s)" for name, value in PLAN_SETTINGS.items())
).encode()


class RoundTrip(NamedTuple):
    """Statements that are sent together. Without `commit`, the transaction stays open for the next round trip."""

    statements: Sequence[Statement]
    commit: bool = True
    #: Statements that are sent in the same write before `statements`, in a transaction of their own, so that they can
    #: commit asynchronously. On a pooled session (a connection of the caller's pool) they have no transaction of their
    #: own: they run at the start of that of `statements`. Each has a parameter `local`, which is true in this case.
    ahead: Sequence[Statement] = ()
    #: Statements that send hints: they follow the COMMIT in the same write, and their errors are ignored.
    behind: Sequence[Statement] = ()


#: The generator that `StoreOperation.work(now, wakes)` returns on PostgreSQL. `now` is the time of a test clock; None:
#: use the server's clock. Hints appended to `wakes` are sent after the commit.
Procedure = Generator[RoundTrip, list[Rows], Any]


class RunningProcedure:
    """A procedure that runs: its generator, its next round trip (None at its end), and then its result."""

    def __init__(self, item: QueuedOp, now: Micros | None, wakes: list[Wake]) -> None:
        self.item = item
        self._generator: Procedure = cast("StoreOperation[Any]", item.op).work(now, wakes)
        self.next_trip: RoundTrip | None = None
        self.result: Any = None
        #: The procedure has ended and its writes are committed: if the batch restarts, it does not run again.
        self.is_done = False

    def advance(self, rows: list[Rows] | None) -> None:
        """Resume the generator with the rows of its last round trip, or start it if `rows` is None."""
        try:
            self.next_trip = self._generator.send(cast("list[Rows]", rows))
        except StopIteration as end:
            self.next_trip, self.result = None, end.value
        except Exception as error:  # noqa: BLE001 - an exception becomes the result of this operation only
            self.next_trip, self.result = None, error


class SentRoundTrip(NamedTuple):
    """One write to the server: the next round trip of each of these procedures."""

    trip: PipelineTrip
    procedures: list[RunningProcedure]
    round_trips: list[RoundTrip]
    #: The index of the first statement that belongs to a procedure; before it are BEGIN and settings.
    first: int
    #: The index of the COMMIT; only if `ends`.
    commit_at: int
    #: Whether the write ends with a COMMIT.
    ends: bool


class LoopHandoff(Op[list[Any]], frozen=True):
    """Operations that an event loop has started (`loop_connection.py`) and the connection's thread finishes. If
    the loop has sent a round trip (`sent`), the thread receives the reply; if the loop got an error (`error`), the
    thread handles it. Then the thread runs the remaining round trips.
    """

    items: list[QueuedOp]
    reads: bool
    procedures: list[RunningProcedure]
    wakes: list[Wake]
    sent: SentRoundTrip | None = None
    error: Exception | None = None


class PipelineConnection:
    """One connection that runs procedures, one batch after another. All its code runs on its commit thread, or on the
    event loop that uses the connection at that moment (`loop_connection.py`).
    """

    def __init__(self, engine: PostgresEngine) -> None:
        self._engine = engine
        self._session: Session | None = None
        self._pipeline: Pipeline | None = None
        #: True from the moment a COMMIT is sent until its result arrives.
        self._committing = False

    def commit(self, items: list[QueuedOp]) -> list[Any]:
        """Run operations; return their results or exceptions, in order."""
        results: dict[int, Any] = {}
        try:
            for item in items:  # first what an event loop has started: its replies come first on this connection
                if isinstance(item.op, LoopHandoff):
                    results[id(item)] = self._run_batch(item.op.items, item.op.reads, item.op)
            for reads, some in batches([item for item in items if id(item) not in results]):
                results.update(zip(map(id, some), self._run_batch(some, reads), strict=True))
        finally:
            if not self._engine.keeps_sessions:
                self.end()
        return [results[id(item)] for item in items]

    def _run_batch(self, items: list[QueuedOp], reads: bool, handoff: LoopHandoff | None = None) -> list[Any]:
        results = self._try(items, reads, handoff)
        if len(items) > 1 and any(isinstance(r, EngineError) for r in results):
            # It is unknown which operation failed the transaction, so each one is retried alone.
            return [
                self._try([item], reads)[0] if isinstance(result, EngineError) else result
                for item, result in zip(items, results, strict=True)
            ]
        return results

    def _try(self, items: list[QueuedOp], reads: bool, handoff: LoopHandoff | None = None) -> list[Any]:
        engine = self._engine
        until = steady() + engine.address.timeout
        tries = engine.tries
        procedures: list[RunningProcedure] = []
        while True:
            used = self._session is not None or not engine.keeps_sessions
            wakes: list[Wake] = []
            try:
                if handoff is not None:
                    resumed, procedures, wakes, handoff = handoff, handoff.procedures, handoff.wakes, None
                    self._resume(resumed, until)
                    return [one.result for one in procedures]
                self._committing = False
                session = self._open(until)
                now = engine.test_now()
                procedures = [one if one.is_done else RunningProcedure(one.item, now, wakes) for one in procedures]
                procedures = procedures or self.start(items, wakes)
                self._run(session, [one for one in procedures if not one.is_done], reads)
                return [one.result for one in procedures]
            except psycopg.Error as error:
                sent = self._committing
                self._recover()
                tries -= 1
                stale = used and not sent and self._session is None and tries > 0
                if steady() < until and (stale or isinstance(error, RETRIED)):
                    if not stale:
                        time.sleep(RANDOM.uniform(*RETRY_PAUSE))
                    continue
                return _results_or_errors(
                    items, procedures, [translate(error, engine.address, sent=sent) for _ in items]
                )
            except EngineError as error:
                self.end()
                return _results_or_errors(items, procedures, [type(error)(str(error)) for _ in items])
            except Exception as error:  # noqa: BLE001 - a bug: every caller gets the error, and the thread survives
                self._break()
                return _results_or_errors(items, procedures, [error for _ in items])
            finally:
                engine.deliver_wakes(wakes)

    def _open(self, until: float) -> Session:
        session = self._session
        if session is None or session.closed:
            session = self._session = self._engine.session()
            self._pipeline = Pipeline(session)
            if session.prepares:
                session.execute(SET, {"local": False})
        else:  # `engine.session` has set the deadline of a new session
            session.until = until
        return session

    def start(self, items: list[QueuedOp], wakes: list[Wake]) -> list[RunningProcedure]:
        """Create the procedures of operations, without sending anything."""
        self._committing = False
        now = self._engine.test_now()
        return [RunningProcedure(item, now, wakes) for item in items]

    def _run(self, session: Session, procedures: list[RunningProcedure], reads: bool) -> None:
        for one in procedures:
            one.advance(None)
        started = [one for one in procedures if one.next_trip is not None]
        if all(one.next_trip.commit for one in started if one.next_trip is not None):
            self._send_round_trip(session, started, begin=True, reads=reads)
        self._run_each(session, procedures)

    def _run_each(self, session: Session, procedures: list[RunningProcedure]) -> None:
        """Run the remaining round trips of the procedures: one procedure after another, no two in one transaction."""
        for one in procedures:
            one.is_done = one.next_trip is None
        for one in procedures:
            fresh = True
            while one.next_trip is not None:
                commit = one.next_trip.commit
                self._send_round_trip(session, [one], begin=fresh, reads=False)
                fresh = commit
            if not fresh:  # the last round trip had no COMMIT, so a transaction is open
                session.execute(b"ROLLBACK")
            one.is_done = True

    def _resume(self, handoff: LoopHandoff, until: float) -> None:
        """Continue what an event loop has started: receive the reply to the round trip that it
        sent, if any, then run the remaining round trips.
        """
        session, pipeline = self._session, self._pipeline
        if session is None or pipeline is None:
            raise psycopg.OperationalError("the connection is gone")
        session.until = until
        if handoff.error is not None:
            raise handoff.error
        if handoff.sent is not None:
            self.receive_results(handoff.sent, *pipeline.receive(handoff.sent.trip))
        self._run_each(session, handoff.procedures)

    def open_pipeline(self, until: float) -> Pipeline | None:
        """Set the deadline of the open session to `until` and return its pipeline; None if no session is kept open."""
        session = self._session
        if session is None or session.closed or not self._engine.keeps_sessions:
            return None
        session.until = until
        return self._pipeline

    def _send_round_trip(
        self, session: Session, procedures: list[RunningProcedure], *, begin: bool, reads: bool
    ) -> None:
        """Run the next round trip of each procedure, all in one write."""
        if not procedures or self._pipeline is None:
            return
        sent = self.compose(session, self._pipeline, procedures, begin=begin, reads=reads)
        self.receive_results(sent, *self._pipeline.receive(sent.trip))

    def compose(
        self, session: Session, pipeline: Pipeline, procedures: list[RunningProcedure], *, begin: bool, reads: bool
    ) -> SentRoundTrip:
        """Queue the next round trip of each procedure for one write."""
        trips = [one.next_trip for one in procedures if one.next_trip is not None]
        commit = trips[0].commit
        pooled = isinstance(session, PooledSession)
        no_transaction = reads and not pooled  # a pooled session needs BEGIN: its settings last one transaction
        first: list[Statement] = []
        if begin and not no_transaction:
            ahead = [(text, {**given, "local": pooled}) for trip in trips for text, given in trip.ahead]
            if ahead and not pooled:
                first += [*session.begin_statements(), *ahead, COMMIT]
            first += session.begin_statements()
            if pooled:
                first += [(SET, {"local": True}), *ahead]
        statements = [*first, *(each for trip in trips for each in trip.statements)]
        ends = commit and not no_transaction
        session.check()  # a closed connection fails here, before COMMIT is sent: so the outcome is known
        self._committing = ends and not reads
        behind = [each for trip in trips for each in trip.behind] if ends else []
        trip = pipeline.begin([*statements, COMMIT, *behind] if ends else statements)
        return SentRoundTrip(trip, procedures, trips, len(first), len(statements), ends)

    def receive_results(
        self, sent: SentRoundTrip, results: list[StatementResult], failed: psycopg.Error | None
    ) -> None:
        """Resume the procedures with the rows of their round trips. Raises the error if the server rolled back."""
        _, procedures, trips, at, commit_at, ends = sent
        committed = ends and len(results) > commit_at and results[commit_at].command == b"COMMIT"
        if failed is not None and not committed:
            raise failed
        self._committing = False
        if ends and not committed:  # COMMIT of a failed transaction reports ROLLBACK, not an error
            raise psycopg.OperationalError("the server rolled the transaction back")
        for one, trip in zip(procedures, trips, strict=True):
            own = results[at : at + len(trip.statements)]
            at += len(own)
            one.advance([result.rows for result in own])

    def _recover(self) -> None:
        """Roll back after an error; if that fails, close the connection."""
        if self._session is not None:
            try:
                self._session.execute(b"ROLLBACK")
            except psycopg.Error:
                self._break()

    def _break(self) -> None:
        """Close a connection in an unknown state."""
        if self._session is not None:
            self._session.close()
        self.end()

    def end(self) -> None:
        """Give the session back to the engine. Safe to call twice."""
        session, self._session = self._session, None
        if session is not None:
            self._engine.release_session(session)


def _results_or_errors(
    items: list[QueuedOp], procedures: list[RunningProcedure], errors: Sequence[BaseException]
) -> list[Any]:
    """Return for each operation the result of its procedure or, if the procedure is not done, the error."""
    done = {id(one.item): one.result for one in procedures if one.is_done}
    return [done.get(id(item), error) for item, error in zip(items, errors, strict=True)]


def batches(items: list[QueuedOp]) -> Iterator[tuple[bool, list[QueuedOp]]]:
    """Split operations into transactions: reads first, then writes, at most `MAX_BATCH` each. An operation with a key
    (see `StoreOperation.key`) gets its own transaction: `items` may also contain a resent copy of it, and the copy must
    run after the first one has committed.
    """
    ops = [(cast("StoreOperation[Any]", item.op), item) for item in items]
    for reads in (True, False):
        shared = [item for op, item in ops if op.reads == reads and not op.key]
        for first in range(0, len(shared), MAX_BATCH):
            yield reads, shared[first : first + MAX_BATCH]
    for op, item in ops:
        if op.key:
            yield op.reads, [item]
