"""Replay histories of a machine on each engine and compare the replies, the records and the wakes."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import pytest
from hypothesis import HealthCheck, settings

from backstay.engine.base import Apply, Command, Op, Ping, Read, Room
from backstay.engine.postgres.address import parse as parse_postgres
from backstay.engine.postgres.batches.statements import round_keep_until
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.redis import keys
from backstay.engine.redis.address import parse
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.engine.sweep_schedule import IDLE_LOOK, SweepSchedule
from support.agreement.machine_model import BASE, INBOXES, Model, Moment, replay

NAME = "api:s60:user:7"
SPACE = "property"
THOROUGH = settings(
    max_examples=2000,
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

#: Settings for PostgreSQL. Each command takes two round trips and a commit: a quarter of the examples takes as long as
#: all of them on another engine.
ON_A_SERVER = settings(THOROUGH, max_examples=500)


class Clock:
    """A clock that returns the given times, in order."""

    def __init__(self) -> None:
        self.times: list[int] = []

    def __call__(self) -> int:
        return self.times.pop(0)


class SweepNow(Op[None], frozen=True):
    """Run the engine's own sweep."""


class DeleteAll(Op[None], frozen=True):
    """Empty the database. The clock must return 0 for it: the transaction stores its time."""


class SweepableEngine(SqliteEngine):
    """Sweep only on `SweepNow`: a look for expired rows would consume a time that belongs to a command."""

    def _has_expired(self, db):
        return False

    def _sweep_now(self, db, op, now, wakes):
        self._sweep(db)

    def _delete_all(self, db, op, now, wakes):
        db.execute("DELETE FROM backstay_state")
        db.execute("UPDATE backstay_clock SET now = 0")

    _handlers: ClassVar[dict[type, Any]] = {
        **SqliteEngine._handlers,
        SweepNow: _sweep_now,
        DeleteAll: _delete_all,
    }


class NeverDue(SweepSchedule):
    """The schedule of an engine that sweeps only when a history says so."""

    def is_due(self):
        return False

    def pause(self):
        return IDLE_LOOK


class RoundingModel(Model):
    """The machine on PostgreSQL, which rounds `keep_until` up to a step.

    As in the engine, a stored `keep_until` that is up to a step too late stays.
    """

    def apply(self, command, now):
        stored, self.keep_until = self.keep_until, None
        existed = self.state is not None
        moment = super().apply(command, now)
        if self.keep_until is None:  # the record was not written
            self.keep_until = stored
            return moment
        self.keep_until, step = round_keep_until(self.keep_until, now)
        if existed and 0 <= stored - self.keep_until <= step:
            self.keep_until = stored
        return moment


def raise_errors(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


class OnSqlite:
    """The SQLite engine in memory, which runs one command at a time."""

    def __init__(self, room: Room[Any]) -> None:
        self.room = room
        self.clock = Clock()
        self.engine = SweepableEngine(":memory:", clock=self.clock)
        self.wakes = []
        self.engine.attach("test", self.wakes.extend)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close_blocking()

    def assert_agrees(self, history: list[Moment]) -> None:
        assert self.run(history) == replay(history, Model(self.room, monotone=True))

    def run(self, history: list[Moment]) -> list[Moment]:
        self._apply(DeleteAll(), 0)
        results = []
        for moment in history:
            self.wakes.clear()
            if moment.command is None:
                self._apply(SweepNow(), moment.now, moment.now)
                reply = None
            else:
                reply = self._apply(Apply(self.room, NAME, moment.command), moment.now)
            wakes = tuple(self.wakes)
            reading = self._apply(Read(self.room, NAME), moment.now)
            results.append(Moment(reading.now, moment.command, reply, reading.state, wakes))
        return results

    def _apply(self, op, *times):
        self.clock.times = list(times)
        (result,) = raise_errors(self.engine.apply_many([op]))
        return result


class OnPostgres:
    """The PostgreSQL engine, which runs one command at a time."""

    def __init__(self, url: str, room: Room[Any]) -> None:
        self.room = room
        self.now = 0
        self.engine = PostgresEngine(parse_postgres(url), namespace=SPACE, clock=lambda: self.now)
        self.engine._connections[0].sweep_schedule = NeverDue()
        self.engine.apply(Ping())
        # These tests compare results, not latency: a busy host may pause inside a transaction.
        session = self.engine._connections[0]._pipeline.session
        session.execute("SET idle_in_transaction_session_timeout = '1min'")
        self.wakes = []
        self.engine.attach("test", self.wakes.extend)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close_blocking()

    def assert_agrees(self, history: list[Moment], *, at_any_retention: bool = False) -> None:
        """Compare with the machine. `at_any_retention`: also with the replies of an engine that removes rows sooner."""
        results = self.run(history)
        assert results == replay(history, RoundingModel(self.room))
        if at_any_retention:
            assert [(m.reply, m.wakes) for m in results] == [(m.reply, m.wakes) for m in history]

    def run(self, history: list[Moment]) -> list[Moment]:
        connection, _ = self.engine._connections
        connection._pipeline.session.execute("DELETE FROM backstay_state WHERE space = 'property'")
        connection._known.clear()
        results = []
        for moment in history:
            self.now = moment.now
            self.wakes.clear()
            if moment.command is None:
                connection.sweep()
                answers = [None, *self.engine.apply_many([Read(self.room, NAME)])]
            else:
                answers = self.engine.apply_many([Apply(self.room, NAME, moment.command), Read(self.room, NAME)])
            reply, reading = raise_errors(answers)
            results.append(Moment(reading.now, moment.command, reply, reading.state, tuple(self.wakes)))
        return results


class OnRedis:
    """The Lua scripts; a history takes one round trip between two removals of the record.

    `commands` has one command for each script, so that the server has loaded all scripts before the first history. A
    batch with an unknown script (NOSCRIPT) is resent in part, and the resent commands run out of order.
    """

    def __init__(self, url: str, room: Room[Any], commands: list[Command]) -> None:
        self.room = room
        self.clock = Clock()
        self.engine = RedisEngine(parse(url), namespace=SPACE, clock=self.clock)
        self.subscriber = BlockingLink(parse(url), "subscriber", None)
        self.subscriber.call_many([pack("SUBSCRIBE", inbox) for inbox in (*INBOXES, "end")])
        self.run([Moment(BASE, command) for command in commands])
        self.receive_wakes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.subscriber.close()
        self.engine.close_blocking()

    def assert_agrees(self, history: list[Moment]) -> None:
        results = self.run(history)
        wakes = self.receive_wakes()
        assert results == [Moment(m.now, m.command, m.reply, m.state) for m in history]
        assert wakes == [(wake.inbox, wake.payload) for m in history for wake in m.wakes]

    def run(self, history: list[Moment]) -> list[Moment]:
        link = self.engine._thread_link()
        both = (keys.state(SPACE, self.room.name, NAME), keys.wire_body(SPACE, self.room.name, NAME))
        link.call_many([pack("DEL", *both)])
        answers, batch = [], []
        for moment in history:
            if moment.command is None:
                answers += self._send(batch)
                batch = []
                if moment.state is None:
                    link.call_many([pack("DEL", *both)])
                answers += [None, *self._send([(Read(self.room, NAME), moment.now)])]
            else:
                batch += [(Apply(self.room, NAME, moment.command), moment.now), (Read(self.room, NAME), moment.now)]
        answers += self._send(batch)
        link.call_many([pack("PUBLISH", "end", "")])
        return [
            Moment(moment.now, moment.command, answers[2 * i], answers[2 * i + 1].state)
            for i, moment in enumerate(history)
        ]

    def receive_wakes(self) -> list[tuple[str, str]]:
        """Return the wakes of the last history, in order."""
        messages = []
        while True:
            for _, channel, payload in self.subscriber.receive(10.0) or pytest.fail("the wakes stopped arriving"):
                if channel == b"end":
                    return messages
                messages.append((channel.decode(), payload.decode()))

    def _send(self, batch):
        self.clock.times = [now for _, now in batch]
        return raise_errors(self.engine.apply_many([op for op, _ in batch])) if batch else []


def engine_fixtures(room: Room[Any], commands: list[Command]) -> tuple[Any, Any, Any]:
    """Return the fixtures `on_sqlite`, `on_postgres` and `on_redis` of a test module for one machine. `commands`: as in
    `OnRedis`.
    """

    @pytest.fixture(scope="module")
    def on_sqlite():
        with OnSqlite(room) as engine:
            yield engine

    @pytest.fixture(scope="module")
    def on_postgres(backstay_postgres):
        with OnPostgres(backstay_postgres.url, room) as engine:
            yield engine

    @pytest.fixture(scope="module")
    def on_redis(backstay_redis):
        with OnRedis(backstay_redis.url, room, commands) as engine:
            yield engine

    return on_sqlite, on_postgres, on_redis
