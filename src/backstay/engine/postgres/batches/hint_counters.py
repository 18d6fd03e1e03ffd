"""Hints and their counters as a group of their own: one round trip, and nobody waits for the disk.

What a crash takes with it was a hint: whoever finds no counter looks for itself. Everything else in a group is true and
must last (`batch.py`), and hints that come together with it travel as it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from backstay.engine.base import Micros, Op, Publish, PublishHint, TakeHint, Wake
from backstay.engine.postgres.connection.arrays import Numbers, Texts
from backstay.engine.postgres.connection.wire import COMMIT, Answer, Statement, Wire
from backstay.engine.postgres.notify import encode, note, wire_channel

NOW = b"coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
CLOCK = b"SELECT " + NOW
LAZY: Statement = (b"SET LOCAL synchronous_commit = off", {})
HINT = (
    b"INSERT INTO backstay_hint_counter (hint, remaining, keep_until) SELECT %(hint)s, %(count)s, %(life)s + "
    + NOW
    + b" ON CONFLICT (hint) DO UPDATE SET remaining = excluded.remaining, keep_until = excluded.keep_until"
)
#: `before` waits for whoever takes at the same time, and then sees what is left.
TAKE = (
    b"WITH before AS (SELECT remaining FROM backstay_hint_counter WHERE hint = %(hint)s AND keep_until > "
    + NOW
    + b" FOR UPDATE) UPDATE backstay_hint_counter"
    b" SET remaining = backstay_hint_counter.remaining - least(before.remaining, %(n)s)"
    b" FROM before WHERE hint = %(hint)s RETURNING least(before.remaining, %(n)s)"
)

#: A counter and the message that tells of it, as one statement. Alone behind a COMMIT: it is a transaction by itself,
#: which nobody waits for on disk, and whose failure undoes nothing else.
ANNOUNCE = (
    b"WITH lazy AS (SELECT set_config('synchronous_commit', 'off', true)), made AS ("
    b"INSERT INTO backstay_hint_counter (hint, remaining, keep_until) SELECT n.hint, n.count, %(life)s + "
    + NOW
    + b" FROM unnest(%(hints)b, %(counts)b) AS n (hint, count), lazy)"
    b" SELECT pg_notify(%(channel)s, payload) FROM unnest(%(payloads)b) AS n (payload)"
)

#: What may be lost.
HINTS = (Publish, PublishHint, TakeHint)


class HintBatch:
    """Hints on their way through one transaction; what is published leaves right behind it."""

    def __init__(self, wire: Wire, ops: Sequence[Op[Any]], *, now: Micros | None) -> None:
        self._wire = wire
        self._ops = ops
        self._test_now = now
        self._statements: list[Statement] = []
        #: Operations that are answered by a statement's row.
        self._takes: list[tuple[int, TakeHint]] = []
        self._published: list[Wake] = []
        #: The server's clock.
        self.now: Micros = 0
        #: True from the moment at which the COMMIT is on its way.
        self.committing = False
        #: Nobody waits for these.
        self.wakes: list[Wake] = []

    def run(self) -> list[Any]:
        """Results or exceptions, in order. Raises psycopg's errors."""
        results: list[Any] = [None] * len(self._ops)
        # Counters are waited for while others are held: in one order, or two wait in a circle.
        for place, op in sorted(enumerate(self._ops), key=order):
            try:
                self._add(place, op)
            except Exception as error:  # noqa: BLE001 - one operation's trouble is its own
                results[place] = error
        self._send(results)
        return results

    def _add(self, place: int, op: Op[Any]) -> None:
        if isinstance(op, (Publish, PublishHint)):
            wake = Wake(op.channel, op.payload)
            encode(wake)  # too long: this one's own trouble, and now
            self._published.append(wake)
        if isinstance(op, PublishHint):
            given = {"hint": op.hint, "count": op.count, "life": op.life, "now": self._test_now}
            self._statements.append((HINT, given))
        elif isinstance(op, TakeHint):
            self._takes.append((len(self._statements), op))
            self._statements.append((TAKE, {"hint": op.hint, "n": op.n, "now": self._test_now}))

    def _send(self, results: list[Any]) -> None:
        first = [*self._wire.session.beginning(), LAZY]
        statements = [*first, *self._statements, (CLOCK, {"now": self._test_now}), COMMIT]
        commit = len(statements)
        if self._published:
            statements.append(note(self._published))
        self._wire.session.check()  # what was not sent cannot have an unknown outcome
        self.committing = True
        answers, failed = self._wire.send(statements)
        if len(answers) < commit or answers[commit - 1].done != COMMIT[0]:
            if failed is not None:
                raise failed
            self.committing = False  # a failed transaction ends so without an error
            raise psycopg.OperationalError("the server rolled the transaction back")
        ((now,),) = answers[commit - 2].rows
        self.now = int(now)
        self._answer(results, answers[len(first) :], failed)

    def _answer(self, results: list[Any], answers: list[Answer], untold: psycopg.Error | None) -> None:
        places = {id(op): place for place, op in enumerate(self._ops)}
        for at, take in self._takes:
            rows = answers[at].rows
            results[places[id(take)]] = int(rows[0][0]) if rows else take.n
        if untold is not None:
            for place, op in enumerate(self._ops):
                if isinstance(op, (Publish, PublishHint)):
                    results[place] = untold


def order(placed: tuple[int, Op[Any]]) -> str:
    """By counter: everybody takes them in this order."""
    return placed[1].hint if isinstance(placed[1], (TakeHint, PublishHint)) else ""


def announce(hints: Sequence[PublishHint], now: Micros | None) -> Statement:
    """Several hints on one channel, for a place right behind a COMMIT."""
    return ANNOUNCE, {
        "hints": Texts([hint.hint for hint in hints]),
        "counts": Numbers([hint.count for hint in hints]),
        "payloads": Texts([encode(Wake(hint.channel, hint.payload)) for hint in hints]),
        "channel": wire_channel(hints[0].channel),
        "life": hints[0].life,
        "now": now,
    }
