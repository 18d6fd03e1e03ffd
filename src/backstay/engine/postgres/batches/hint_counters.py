"""Run a batch that contains only operations on hints and hint counters: one round trip, with an asynchronous commit.

A hint counter belongs to an announcement of pending jobs and limits how many workers try to claim them.

A crash can lose a counter, which is harmless: a worker that finds no counter claims jobs anyway. Machine commands must
be durable, so a batch that also holds commands runs in `batch.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from backstay.engine.base import Micros, Op, Publish, PublishHint, TakeHint, Wake
from backstay.engine.postgres.connection.arrays import Numbers, Texts
from backstay.engine.postgres.connection.wire import COMMIT, Pipeline, Statement, StatementResult
from backstay.engine.postgres.notify import encode, notify_statement, wire_channel

NOW = b"coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
CLOCK = b"SELECT " + NOW
LAZY: Statement = (b"SET LOCAL synchronous_commit = off", {})
HINT = (
    b"INSERT INTO backstay_hint_counter (hint, remaining, keep_until) SELECT %(hint)s, %(count)s, %(life)s + "
    + NOW
    + b" ON CONFLICT (hint) DO UPDATE SET remaining = excluded.remaining, keep_until = excluded.keep_until"
)
#: Takes up to `n` from a counter. The CTE `before` locks the counter's row. So it waits until concurrent transactions
#: have taken their part, and then reads what remains.
TAKE = (
    b"WITH before AS (SELECT remaining FROM backstay_hint_counter WHERE hint = %(hint)s AND keep_until > "
    + NOW
    + b" FOR UPDATE) UPDATE backstay_hint_counter"
    b" SET remaining = backstay_hint_counter.remaining - least(before.remaining, %(n)s)"
    b" FROM before WHERE hint = %(hint)s RETURNING least(before.remaining, %(n)s)"
)

#: Creates counters and publishes their messages in one statement. It is sent after the COMMIT of a transaction, so it
#: is a transaction of its own: it commits asynchronously, and if it fails, the first transaction stays committed.
ANNOUNCE = (
    b"WITH lazy AS (SELECT set_config('synchronous_commit', 'off', true)), made AS ("
    b"INSERT INTO backstay_hint_counter (hint, remaining, keep_until) SELECT n.hint, n.count, %(life)s + "
    + NOW
    + b" FROM unnest(%(hints)b, %(counts)b) AS n (hint, count), lazy)"
    b" SELECT pg_notify(%(channel)s, payload) FROM unnest(%(payloads)b) AS n (payload)"
)

#: The operations that a `HintBatch` may contain: a crash of the server may undo them.
HINTS = (Publish, PublishHint, TakeHint)


class HintBatch:
    """Runs hint operations in one transaction. The messages that they publish are sent right after its COMMIT."""

    def __init__(self, pipeline: Pipeline, ops: Sequence[Op[Any]], *, now: Micros | None) -> None:
        self._pipeline = pipeline
        self._ops = ops
        self._test_now = now
        self._statements: list[Statement] = []
        #: The operations that take from a counter, with the index of their statement.
        self._takes: list[tuple[int, TakeHint]] = []
        self._published: list[Wake] = []
        #: The server's time in µs during the transaction; 0 until `run` has committed.
        self.now: Micros = 0
        #: True from the moment the COMMIT is sent.
        self.committing = False
        #: The hints for waiters of locks that the caller must publish. Always empty: these operations wake no waiters.
        self.wakes: list[Wake] = []

    def run(self) -> list[Any]:
        """Return results or exceptions, in order. Raises psycopg's errors."""
        results: list[Any] = [None] * len(self._ops)
        # A transaction locks several counter rows: the fixed order prevents deadlock.
        for index, op in sorted(enumerate(self._ops), key=lock_order):
            try:
                self._add(op)
            except Exception as error:  # noqa: BLE001 - an exception becomes the result of this operation only
                results[index] = error
        self._send(results)
        return results

    def _add(self, op: Op[Any]) -> None:
        if isinstance(op, (Publish, PublishHint)):
            wake = Wake(op.channel, op.payload)
            encode(wake)  # only a check: if the message is too long, this operation fails and not the whole batch
            self._published.append(wake)
        if isinstance(op, PublishHint):
            given = {"hint": op.hint, "count": op.count, "life": op.life, "now": self._test_now}
            self._statements.append((HINT, given))
        elif isinstance(op, TakeHint):
            self._takes.append((len(self._statements), op))
            self._statements.append((TAKE, {"hint": op.hint, "n": op.n, "now": self._test_now}))

    def _send(self, results: list[Any]) -> None:
        first = [*self._pipeline.session.begin_statements(), LAZY]
        statements = [*first, *self._statements, (CLOCK, {"now": self._test_now}), COMMIT]
        commit = len(statements)
        if self._published:
            statements.append(notify_statement(self._published))
        self._pipeline.session.check()  # a closed connection fails here, before COMMIT is sent: so the outcome is known
        self.committing = True
        found, failed = self._pipeline.send(statements)
        if len(found) < commit or found[commit - 1].command != COMMIT[0]:
            if failed is not None:
                raise failed
            self.committing = False  # COMMIT of a failed transaction reports ROLLBACK, not an error
            raise psycopg.OperationalError("the server rolled the transaction back")
        ((now,),) = found[commit - 2].rows
        self.now = int(now)
        self._set_results(results, found[len(first) :], failed)

    def _set_results(self, results: list[Any], found: list[StatementResult], unpublished: psycopg.Error | None) -> None:
        indexes = {id(op): index for index, op in enumerate(self._ops)}
        for at, take in self._takes:
            rows = found[at].rows
            results[indexes[id(take)]] = int(rows[0][0]) if rows else take.n
        if unpublished is not None:
            for index, op in enumerate(self._ops):
                if isinstance(op, (Publish, PublishHint)):
                    results[index] = unpublished


def lock_order(indexed: tuple[int, Op[Any]]) -> str:
    """Return the sort key of an operation: all transactions lock counters in this order."""
    return indexed[1].hint if isinstance(indexed[1], (TakeHint, PublishHint)) else ""


def announce(hints: Sequence[PublishHint], now: Micros | None) -> Statement:
    """Return a statement that publishes several hints on one channel, to be sent right after a COMMIT."""
    return ANNOUNCE, {
        "hints": Texts([hint.hint for hint in hints]),
        "counts": Numbers([hint.count for hint in hints]),
        "payloads": Texts([encode(Wake(hint.channel, hint.payload)) for hint in hints]),
        "channel": wire_channel(hints[0].channel),
        "life": hints[0].life,
        "now": now,
    }
