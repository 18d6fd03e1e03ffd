"""Machine, SQL and Lua are one: the same commands at the same times give the same replies, records and wakes."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from gate_scripts import BASE, INBOXES, Model, Moment, play, replay, scripts
from hypothesis import HealthCheck, given, settings

from backstay.engine.base import Apply, Op, Ping, Read, Room
from backstay.engine.postgres.address import parse as parse_postgres
from backstay.engine.postgres.batches.batch import HOUR
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.redis import keys
from backstay.engine.redis.address import parse
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.gate.machine import DAY, GATE, OFFER

NAME = "gate"
#: Shrinking a failure takes longer than finding it.
pytestmark = pytest.mark.timeout(600)
THOROUGH = settings(
    max_examples=2000,
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

#: Each command is two trips to the server and a commit: a quarter of the examples takes as long as the others.
ON_A_SERVER = settings(THOROUGH, max_examples=500)


class Clock:
    """Gives out the times it was told, in order; then 0, when an engine that was left alone sweeps by itself."""

    def __init__(self) -> None:
        self.times: list[int] = []

    def __call__(self) -> int:
        return self.times.pop(0) if self.times else 0


class SweepNow(Op[None], frozen=True):
    """Run the engine's own sweep."""


class Forget(Op[None], frozen=True):
    """Make the database as good as new. The clock must say 0 then, or the transaction notes its own time."""


class SweepableEngine(SqliteEngine):
    """Carries out those two as well."""

    def _sweep(self, db):
        if self._clock.times:  # else it is the engine's own, after an idle minute: no time was given out for it
            super()._sweep(db)

    def _sweep_now(self, db, op, now, wakes):
        self._sweep(db)

    def _forget(self, db, op, now, wakes):
        db.execute("DELETE FROM backstay_state")
        db.execute("UPDATE backstay_clock SET now = 0")

    _handlers: ClassVar[dict[type, Any]] = {
        **SqliteEngine._handlers,
        SweepNow: _sweep_now,
        Forget: _forget,
    }


class OnSqlite:
    """The SQL engine in memory, driven one command at a time."""

    def __init__(self, room: Room[Any] = GATE) -> None:
        self.room = room
        self.clock = Clock()
        self.engine = SweepableEngine(":memory:", clock=self.clock)
        self.wakes = []
        self.engine.attach("test", self.wakes.extend)

    def run(self, history: list[Moment]) -> list[Moment]:
        self._do(Forget(), 0)
        told = []
        for moment in history:
            self.wakes.clear()
            if moment.command is None:
                self._do(SweepNow(), moment.now, moment.now)
                reply = None
            else:
                reply = self._do(Apply(self.room, NAME, moment.command), moment.now)
            wakes = tuple(self.wakes)
            reading = self._do(Read(self.room, NAME), moment.now)
            told.append(Moment(reading.now, moment.command, reply, reading.state, wakes))
        return told

    def _do(self, op, *times):
        self.clock.times = list(times)
        (answer,) = self.engine.apply_many([op])
        if isinstance(answer, BaseException):
            raise answer
        return answer


class OnPostgres:
    """The SQL engine on a server, driven one command at a time."""

    def __init__(self, url: str, room: Room[Any] = GATE) -> None:
        self.room = room
        self.now = 0
        self.engine = PostgresEngine(parse_postgres(url), namespace="property", clock=lambda: self.now)
        self.engine.apply(Ping())
        # What is asked here is what is said, not how soon: a busy machine may stand still inside a transaction.
        self.engine._lanes[0]._wire.session.execute("SET idle_in_transaction_session_timeout = '1min'")
        self.wakes = []
        self.engine.attach("test", self.wakes.extend)

    def run(self, history: list[Moment]) -> list[Moment]:
        lane, _ = self.engine._lanes
        lane._wire.session.execute("DELETE FROM backstay_state WHERE space = 'property'")
        lane._known.clear()
        told = []
        for moment in history:
            self.now = moment.now
            self.wakes.clear()
            if moment.command is None:
                lane.sweep()
                answers = [None, *self.engine.apply_many([Read(self.room, NAME)])]
            else:
                answers = self.engine.apply_many([Apply(self.room, NAME, moment.command), Read(self.room, NAME)])
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            reply, reading = answers
            told.append(Moment(reading.now, moment.command, reply, reading.state, tuple(self.wakes)))
        return told


class Hourly(Model):
    """The machine on PostgreSQL, which keeps a row to the end of the hour."""

    def apply(self, command, now):
        moment = super().apply(command, now)
        self.keep_until = -(-self.keep_until // HOUR) * HOUR
        return moment


class OnRedis:
    """The Lua scripts, a whole history in one trip where no row is removed in between."""

    def __init__(self, url: str, room: Room[Any] = GATE) -> None:
        self.room = room
        self.clock = Clock()
        self.engine = RedisEngine(parse(url), namespace="property", clock=self.clock)
        self.ear = BlockingLink(parse(url), "ear", None)
        self.ear.call_many([pack("SUBSCRIBE", inbox) for inbox in (*INBOXES, "end")])

    def run(self, history: list[Moment]) -> list[Moment]:
        link = self.engine._thread_link()
        both = (keys.state("property", self.room.name, NAME), keys.wire_body("property", self.room.name, NAME))
        link.call_many([pack("DEL", *both)])
        answers, batch = [], []
        for moment in history:
            if moment.command is None:
                answers += self._trip(batch)
                batch = []
                if moment.state is None:
                    link.call_many([pack("DEL", *both)])
                (reading,) = self._trip([(Read(self.room, NAME), moment.now)])
                answers += [None, reading]
            else:
                batch += [(Apply(self.room, NAME, moment.command), moment.now), (Read(self.room, NAME), moment.now)]
        answers += self._trip(batch)
        link.call_many([pack("PUBLISH", "end", "")])
        return [
            Moment(moment.now, moment.command, answers[2 * i], answers[2 * i + 1].state)
            for i, moment in enumerate(history)
        ]

    def heard(self) -> list[tuple[str, str]]:
        """All hints since the last call, in order."""
        messages = []
        while True:
            for _, channel, payload in self.ear.receive(10.0) or pytest.fail("the hints stopped coming"):
                if channel == b"end":
                    return messages
                messages.append((channel.decode(), payload.decode()))

    def _trip(self, batch):
        self.clock.times = [now for _, now in batch]
        answers = self.engine.apply_many([op for op, _ in batch]) if batch else []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def close(self) -> None:
        self.ear.close()
        self.engine.close_blocking()


@pytest.fixture(scope="module")
def on_sqlite():
    side = OnSqlite()
    yield side
    side.engine.close_blocking()


@pytest.fixture(scope="module")
def on_postgres(backstay_postgres):
    side = OnPostgres(backstay_postgres.url)
    yield side
    side.engine.close_blocking()


@pytest.fixture(scope="module")
def on_redis(backstay_redis):
    side = OnRedis(backstay_redis.url)
    load_scripts(side)
    yield side
    side.close()


def load_scripts(side: OnRedis) -> None:
    """Otherwise the first batch comes back in part (NOSCRIPT), and its second trip out of order."""
    from backstay.gate import machine

    past = [
        machine.Acquire(0, "t", "l", True, 1, 1, "i", 0, machine.Who()),
        machine.Renew(0, "t", 0, 1),
        machine.Release(0, "t", "l", 0, 0),
        machine.Withdraw(0, "t", 0),
        machine.ForceRelease(0),
        machine.Evict(0, "e"),
    ]
    side.run([Moment(BASE, command) for command in past])
    side.heard()


@THOROUGH
@given(script=scripts)
def test_sql_says_what_the_machine_says(on_sqlite, script):
    history = play(script)
    assert on_sqlite.run(history) == replay(history, Model(monotone=True))


@pytest.mark.postgres
@ON_A_SERVER
@given(script=scripts)
def test_sql_on_postgres_says_what_the_machine_says(on_postgres, script):
    history = play(script)
    told = on_postgres.run(history)
    assert told == replay(history, Hourly())
    assert [(m.reply, m.wakes) for m in told] == [(m.reply, m.wakes) for m in history]  # however long rows are kept


@pytest.mark.redis
@THOROUGH
@given(script=scripts)
def test_lua_says_what_the_machine_says(on_redis, script):
    history = play(script)
    told = on_redis.run(history)
    heard = on_redis.heard()
    assert told == [Moment(m.now, m.command, m.reply, m.state) for m in history]
    assert heard == [(wake.inbox, wake.payload) for m in history for wake in m.wakes]


@pytest.mark.redis
def test_lua_agrees_where_times_stand_at_the_edge(on_redis):
    """The microsecond at which an offer lapses, a lease ends and a ticket dies belongs to the end."""
    from backstay.gate import machine

    def acquire(ticket, now, ttl=1_000_000):
        return Moment(now, machine.Acquire(now + DAY, ticket, ticket, True, 1, ttl, "inbox:1", 9, machine.Who()))

    at = BASE
    drafts = [acquire("a", at), acquire("b", at), acquire("c", at)]
    drafts += [acquire("c", at + 1_000_000), acquire("c", at + 1_000_000 + OFFER)]
    history = replay(drafts, Model())
    assert [type(m.reply).__name__ for m in history] == ["Granted", "Queued", "Queued", "Queued", "Granted"]
    told = on_redis.run(history)
    on_redis.heard()
    assert [(m.reply, m.state) for m in told] == [(m.reply, m.state) for m in history]
