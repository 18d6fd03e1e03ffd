"""Verbs of rooms with tables of their own: each a talk with the server, on connections apart from the gates'.

A talk yields rounds of statements and is sent their rows. A round with `commit` is a whole transaction, or the end of
one, and leaves in one write; those of several talks that gather share a transaction. When the server undid something,
the talk is begun anew: verbs are made to be sent twice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import psycopg
from psycopg import errors as pg

from backstay.engine.base import Micros, Op, Wake, Within, steady
from backstay.engine.commit_thread import Item
from backstay.engine.postgres.connection.pooled_session import Borrowed
from backstay.engine.postgres.connection.session import Session, translate
from backstay.engine.postgres.connection.wire import COMMIT, Answer, Exchange, Rows, Statement, Wire
from backstay.errors import EngineError

if TYPE_CHECKING:
    from backstay.engine.postgres.engine import PostgresEngine

#: The server undid everything, or somebody holds a row for longer than a statement waits: from the beginning. So does a
#: talk whose last statement finds, right before its COMMIT, that it should have gone another way: it divides by zero.
AGAIN = (pg.DeadlockDetected, pg.SerializationFailure, pg.LockNotAvailable, pg.DivisionByZero)
#: Seconds of pause before that, at random: whoever was in the way has gone by then.
PAUSE = (0.001, 0.02)
#: One transaction takes at most this many talks.
LARGEST = 100
#: Everything here goes by a key, in nested loops: whatever a plan made for empty tables guesses, it must not read all
#: of them once they are full. Plans are made once, for any parameters.
PLANS = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
SET = ("SELECT " + ", ".join(f"set_config('{name}', '{value}', %(local)s)" for name, value in PLANS.items())).encode()


class Round(NamedTuple):
    """Statements that travel together. Without `commit`, the transaction stays open for the next round."""

    statements: Sequence[Statement]
    commit: bool = True
    #: A transaction by itself, ahead of this one in the same write. Whether it is waited for on disk is its own affair.
    #: On a session that is not ours (`local`), where nothing may be left behind, it is the beginning of this one.
    ahead: Sequence[Statement] = ()
    #: Hints that leave right behind the COMMIT, in the same write. Their trouble is nobody's.
    behind: Sequence[Statement] = ()


#: What `Within.work(now, wakes)` makes here: `now` is the time of a test's clock, else None and the server's counts;
#: hints put into `wakes` go out after the commit that they follow.
Talk = Generator[Round, list[Rows], Any]


class Talking:
    """A talk under way: what it wants next, or what it came to."""

    def __init__(self, item: Item, now: Micros | None, wakes: list[Wake]) -> None:
        self.item = item
        self.talk: Talk = cast("Within[Any]", item.op).work(now, wakes)
        self.round: Round | None = None
        self.result: Any = None
        #: It has come to something, and that is committed: whatever happens to others, it is not begun anew.
        self.over = False

    def go_on(self, rows: list[Rows] | None) -> None:
        try:
            self.round = self.talk.send(cast("list[Rows]", rows))  # None begins it
        except StopIteration as end:
            self.round, self.result = None, end.value
        except Exception as error:  # noqa: BLE001 - one verb's trouble is its own
            self.round, self.result = None, error


class Sending(NamedTuple):
    """One round of some talks on its way. `at`: where their own statements begin; `before`: how many leave before the
    COMMIT that `ends` it.
    """

    exchange: Exchange
    talks: list[Talking]
    rounds: list[Round]
    at: int
    before: int
    ends: bool


class Handed(Op[list[Any]], frozen=True):
    """Operations that were begun on a loop (`brisk.py`), and go on here: with a round that is on its way, or with those
    that follow it; or with what undid it, as if it had been met here.
    """

    items: list[Item]
    reads: bool
    talks: list[Talking]
    wakes: list[Wake]
    sending: Sending | None = None
    trouble: Exception | None = None


class WithinLane:
    """One connection for talks, one group after another. Everything runs on its group's thread, or
    on the loop of whoever holds it meanwhile (`brisk.py`).
    """

    def __init__(self, engine: PostgresEngine) -> None:
        self._engine = engine
        self._session: Session | None = None
        self._wire: Wire | None = None
        #: True from the moment at which a COMMIT is on its way until its answer.
        self._committing = False

    def commit(self, items: list[Item]) -> list[Any]:
        """Results or exceptions, in order."""
        results: dict[int, Any] = {}
        try:
            for item in items:  # those first: they have begun
                if isinstance(item.op, Handed):
                    results[id(item)] = self._together(item.op.items, item.op.reads, item.op)
            for reads, some in batches([item for item in items if id(item) not in results]):
                results.update(zip(map(id, some), self._together(some, reads), strict=True))
        finally:
            if not self._engine.keeps_sessions:
                self.end()
        return [results[id(item)] for item in items]

    def _together(self, items: list[Item], reads: bool, handed: Handed | None = None) -> list[Any]:
        results = self._try(items, reads, handed)
        if len(items) > 1 and any(isinstance(r, EngineError) for r in results):
            # Whose fault it was is not known: each by itself.
            return [
                self._try([item], reads)[0] if isinstance(result, EngineError) else result
                for item, result in zip(items, results, strict=True)
            ]
        return results

    def _try(self, items: list[Item], reads: bool, handed: Handed | None = None) -> list[Any]:
        engine = self._engine
        until = steady() + engine.address.timeout
        tries = engine.tries
        talks: list[Talking] = []
        while True:
            used = self._session is not None or not engine.keeps_sessions
            wakes: list[Wake] = []
            try:
                if handed is not None:
                    begun, talks, wakes, handed = handed, handed.talks, handed.wakes, None
                    self._go_on(begun, until)
                    return [one.result for one in talks]
                self._committing = False
                session = self._open(until)
                now = engine.test_now()
                talks = [one if one.over else Talking(one.item, now, wakes) for one in talks]
                talks = talks or self.talks(items, wakes)
                self._converse(session, [one for one in talks if not one.over], reads)
                return [one.result for one in talks]
            except psycopg.Error as error:
                sent = self._committing
                self._recover()
                tries -= 1
                stale = used and not sent and self._session is None and tries > 0
                if steady() < until and (stale or isinstance(error, AGAIN)):
                    if not stale:
                        time.sleep(random.uniform(*PAUSE))
                    continue
                return _told(items, talks, [translate(error, engine.address, sent=sent) for _ in items])
            except EngineError as error:
                self.end()
                return _told(items, talks, [type(error)(str(error)) for _ in items])
            except Exception as error:  # noqa: BLE001 - a bug: every caller gets it; the thread must live on
                self._break()
                return _told(items, talks, [error for _ in items])
            finally:
                engine.tell(wakes)

    def _open(self, until: float) -> Session:
        session = self._session
        if session is None or session.closed:
            session = self._session = self._engine.session()
            self._wire = Wire(session)
            if session.prepares:
                session.execute(SET, {"local": False})
        else:  # a new one counts from the moment at which it was there
            session.until = until
        return session

    def talks(self, items: list[Item], wakes: list[Wake]) -> list[Talking]:
        """They begin: nothing of theirs is on its way."""
        self._committing = False
        now = self._engine.test_now()
        return [Talking(item, now, wakes) for item in items]

    def _converse(self, session: Session, talks: list[Talking], reads: bool) -> None:
        for one in talks:
            one.go_on(None)
        begun = [one for one in talks if one.round is not None]
        if all(one.round.commit for one in begun if one.round is not None):
            self._round(session, begun, begin=True, reads=reads)
        self._each(session, talks)

    def _each(self, session: Session, talks: list[Talking]) -> None:
        """What has more to say is alone from here on."""
        for one in talks:
            one.over = one.round is None
        for one in talks:
            fresh = True
            while one.round is not None:
                commit = one.round.commit
                self._round(session, [one], begin=fresh, reads=False)
                fresh = commit
            if not fresh:  # it gave up inside its transaction
                session.execute(b"ROLLBACK")
            one.over = True

    def _go_on(self, handed: Handed, until: float) -> None:
        """What was begun elsewhere: its first round, if that is not over, and then the others."""
        session, wire = self._session, self._wire
        if session is None or wire is None:
            raise psycopg.OperationalError("the connection is gone")
        session.until = until
        if handed.trouble is not None:
            raise handed.trouble
        if handed.sending is not None:
            self.heard(handed.sending, *wire.receive(handed.sending.exchange))
        self._each(session, handed.talks)

    def ready(self, until: float) -> Wire | None:
        """The way to the server, if it is open."""
        session = self._session
        if session is None or session.closed or not self._engine.keeps_sessions:
            return None
        session.until = until
        return self._wire

    def _round(self, session: Session, talks: list[Talking], *, begin: bool, reads: bool) -> None:
        """One round of each, in one write."""
        if not talks or self._wire is None:
            return
        sending = self.compose(session, self._wire, talks, begin=begin, reads=reads)
        self.heard(sending, *self._wire.receive(sending.exchange))

    def compose(self, session: Session, wire: Wire, talks: list[Talking], *, begin: bool, reads: bool) -> Sending:
        """One round of each, ready to leave in one write."""
        rounds = [one.round for one in talks if one.round is not None]
        commit = rounds[0].commit
        borrowed = isinstance(session, Borrowed)
        alone = reads and not borrowed  # who only looks needs no transaction
        first: list[Statement] = []
        if begin and not alone:
            ahead = [(text, {**given, "local": borrowed}) for wanted in rounds for text, given in wanted.ahead]
            if ahead and not borrowed:
                first += [*session.beginning(), *ahead, COMMIT]
            first += session.beginning()
            if borrowed:
                first += [(SET, {"local": True}), *ahead]
        statements = [*first, *(each for wanted in rounds for each in wanted.statements)]
        ends = commit and not alone
        session.check()  # what was not sent cannot have an unknown outcome
        self._committing = ends and not reads
        behind = [each for wanted in rounds for each in wanted.behind] if ends else []
        exchange = wire.begin([*statements, COMMIT, *behind] if ends else statements)
        return Sending(exchange, talks, rounds, len(first), len(statements), ends)

    def heard(self, sending: Sending, answers: list[Answer], failed: psycopg.Error | None) -> None:
        """What a round came to: its talks go on. Raises what undid it."""
        _, talks, rounds, at, before, ends = sending
        done = ends and len(answers) > before and answers[before].done == b"COMMIT"
        if failed is not None and not done:
            raise failed
        self._committing = False
        if ends and not done:  # a failed transaction ends so without an error
            raise psycopg.OperationalError("the server rolled the transaction back")
        for one, wanted in zip(talks, rounds, strict=True):
            mine = answers[at : at + len(wanted.statements)]
            at += len(mine)
            one.go_on([answer.rows for answer in mine])

    def _recover(self) -> None:
        """After an error: out of the transaction, or out of the connection."""
        if self._session is not None:
            try:
                self._session.execute(b"ROLLBACK")
            except psycopg.Error:
                self._break()

    def _break(self) -> None:
        """The connection is of no more use to anybody."""
        if self._session is not None:
            self._session.close()
        self.end()

    def end(self) -> None:
        """Let go of the connection. Safe twice."""
        session, self._session = self._session, None
        if session is not None:
            self._engine.let_go(session)


def _told(items: list[Item], talks: list[Talking], errors: Sequence[BaseException]) -> list[Any]:
    """What each came to; its error, where that is nothing."""
    done = {id(one.item): one.result for one in talks if one.over}
    return [done.get(id(item), error) for item, error in zip(items, errors, strict=True)]


def batches(items: list[Item]) -> Iterator[tuple[bool, list[Item]]]:
    """Those that only look, then the others, a hundred at a time. What has a key has a transaction of its own: whoever
    sends it twice must not meet itself there.
    """
    ops = [(cast("Within[Any]", item.op), item) for item in items]
    for reads in (True, False):
        alike = [item for op, item in ops if op.reads == reads and not op.key]
        for first in range(0, len(alike), LARGEST):
            yield reads, alike[first : first + LARGEST]
    for op, item in ops:
        if op.key:
            yield op.reads, [item]
