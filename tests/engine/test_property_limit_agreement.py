"""Machine, SQL and Lua are one: the same hits at the same times give the same decisions and records."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limit_scripts import BASE, Model, Moment, play, replay, scripts

from backstay.engine.base import Apply, Op, Ping, Read
from backstay.engine.postgres.address import parse as parse_postgres
from backstay.engine.postgres.batches.batch import HOUR
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.redis import keys
from backstay.engine.redis.address import parse
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link.protocol import pack
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.limit import machine
from backstay.limit.algorithms import Rule
from backstay.limit.machine import LIMIT

NAME = "api:s60:user:7"
#: Shrinking a failure takes longer than finding it.
pytestmark = pytest.mark.timeout(600)
THOROUGH = settings(
    max_examples=2000,
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
#: Each command is two trips to the server and a commit.
ON_A_SERVER = settings(THOROUGH, max_examples=300)


class Clock:
    """Gives out the times it was told, in order."""

    def __init__(self) -> None:
        self.times: list[int] = []

    def __call__(self) -> int:
        return self.times.pop(0)


class SweepNow(Op[None], frozen=True):
    """Run the engine's own sweep."""


class Forget(Op[None], frozen=True):
    """Make the database as good as new. The clock must say 0 then, or the transaction notes its own time."""


class SweepableEngine(SqliteEngine):
    """Carries out those two as well. Does not sweep by itself: that would take a time that is meant for another."""

    def _sweep(self, db):
        pass

    def _sweep_now(self, db, op, now, wakes):
        super()._sweep(db)

    def _forget(self, db, op, now, wakes):
        db.execute("DELETE FROM backstay_state")
        db.execute("UPDATE backstay_clock SET now = 0")

    _handlers: ClassVar[dict[type, Any]] = {**SqliteEngine._handlers, SweepNow: _sweep_now, Forget: _forget}


class OnSqlite:
    """The SQL engine in memory, driven one command at a time."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.engine = SweepableEngine(":memory:", clock=self.clock)

    def run(self, history: list[Moment]) -> list[Moment]:
        self._do(Forget(), 0)
        told = []
        for moment in history:
            if moment.command is None:
                self._do(SweepNow(), moment.now, moment.now)
                reply = None
            else:
                reply = self._do(Apply(LIMIT, NAME, moment.command), moment.now)
            reading = self._do(Read(LIMIT, NAME), moment.now)
            told.append(Moment(reading.now, moment.command, reply, reading.state))
        return told

    def _do(self, op, *times):
        self.clock.times = list(times)
        return self.engine.apply(op)


class OnPostgres:
    """The SQL engine on a server, driven one command at a time."""

    def __init__(self, url: str) -> None:
        self.now = 0
        self.engine = PostgresEngine(parse_postgres(url), namespace="property-limit", clock=lambda: self.now)
        self.engine.apply(Ping())

    def run(self, history: list[Moment]) -> list[Moment]:
        lane, _ = self.engine._lanes
        lane._wire.session.execute("DELETE FROM backstay_state WHERE space = 'property-limit'")
        lane._known.clear()
        told = []
        for moment in history:
            self.now = moment.now
            if moment.command is None:
                lane.sweep()
                answers = [None, *self.engine.apply_many([Read(LIMIT, NAME)])]
            else:
                answers = self.engine.apply_many([Apply(LIMIT, NAME, moment.command), Read(LIMIT, NAME)])
            reply, reading = map(raised, answers)
            told.append(Moment(reading.now, moment.command, reply, reading.state))
        return told


class Hourly(Model):
    """The machine on PostgreSQL, which keeps a row to the end of the hour."""

    def apply(self, command, now):
        moment = super().apply(command, now)
        self.keep_until = -(-self.keep_until // HOUR) * HOUR
        return moment


class OnRedis:
    """The Lua scripts, a whole history in one trip where no row is removed in between."""

    def __init__(self, url: str) -> None:
        self.clock = Clock()
        self.engine = RedisEngine(parse(url), namespace="property-limit", clock=self.clock)
        self.key = keys.state("property-limit", LIMIT.name, NAME)

    def run(self, history: list[Moment]) -> list[Moment]:
        link = self.engine._thread_link()
        link.call_many([pack("DEL", self.key)])
        answers, batch = [], []
        for moment in history:
            if moment.command is None:
                answers += self._trip(batch)
                batch = []
                if moment.state is None:
                    link.call_many([pack("DEL", self.key)])
                answers += [None, *self._trip([(Read(LIMIT, NAME), moment.now)])]
            else:
                batch += [(Apply(LIMIT, NAME, moment.command), moment.now), (Read(LIMIT, NAME), moment.now)]
        answers += self._trip(batch)
        return [
            Moment(moment.now, moment.command, answers[2 * i], answers[2 * i + 1].state)
            for i, moment in enumerate(history)
        ]

    def _trip(self, batch):
        self.clock.times = [now for _, now in batch]
        return [raised(answer) for answer in self.engine.apply_many([op for op, _ in batch])] if batch else []


def raised(answer):
    if isinstance(answer, BaseException):
        raise answer
    return answer


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
    # Otherwise the first batch comes back in part (NOSCRIPT), and its second trip out of order.
    past = [
        machine.Hit(0, 0, (), 1),
        machine.Peek(0, 0, (), 1),
        machine.Charge(0, 0, (), ()),
        machine.Refund(0, 0, (), 1),
        machine.Reset(0),
    ]
    side.run([Moment(BASE, command) for command in past])
    yield side
    side.engine.close_blocking()


@THOROUGH
@given(script=scripts)
def test_sql_says_of_limits_what_the_machine_says(on_sqlite, script):
    history = play(script)
    assert on_sqlite.run(history) == replay(history, Model(monotone=True))


@pytest.mark.postgres
@ON_A_SERVER
@given(script=scripts)
def test_sql_on_postgres_says_of_limits_what_the_machine_says(on_postgres, script):
    history = play(script)
    assert on_postgres.run(history) == replay(history, Hourly())


@pytest.mark.redis
@THOROUGH
@given(script=scripts)
def test_lua_says_of_limits_what_the_machine_says(on_redis, script):
    history = play(script)
    assert on_redis.run(history) == history


_gaps = st.sampled_from((1000, 1000, 1000, 1500, 2000, 0, 300, 7000, 60_000, 250_000, -5000))
_deeds = st.sampled_from(("hit",) * 60 + ("dear", "wait", "refund", "back", "charge", "peek"))


@pytest.mark.redis
@settings(THOROUGH, max_examples=60)
@given(
    deeds=st.lists(st.tuples(_gaps, _deeds), min_size=150, max_size=400),
    limit=st.sampled_from((30, 100, 150, 1000)),
    windows=st.sampled_from(((100,), (250,), (400,), (300, 100))),
)
def test_lua_agrees_on_logs_too_long_to_be_read_as_a_whole(on_redis, deeds, limit, windows):
    model, now, reserved, history = Model(), BASE, 0, []
    rules = tuple(Rule(limit, window, limit) for window in windows)
    for gap, deed in deeds:
        now += gap
        args = (now + 10_000_000, 3, rules)
        command = {
            "hit": machine.Hit(*args, 1),
            "dear": machine.Hit(*args, 20),
            "wait": machine.Hit(*args, 3, 50_000),
            "refund": machine.Refund(*args, 2),
            "back": machine.Refund(*args, 3, reserved),
            "charge": machine.Charge(*args, tuple(5 for _ in rules)),
            "peek": machine.Peek(*args, 1),
        }[deed]
        history.append(model.apply(command, now))
        if isinstance(reply := history[-1].reply, machine.Admitted) and reply.delay:
            reserved = reply.at
    assert on_redis.run(history) == history


#: One run of the log holds less than 2**24.
_loads = st.sampled_from((1, 5_000_000, 2**24 - 1, 2**24, 40_000_000))


@pytest.mark.redis
@settings(THOROUGH, max_examples=200)
@given(
    deeds=st.lists(
        st.tuples(st.sampled_from((0, 300, 1000, 90_000)), st.sampled_from(("hit", "wait", "back", "charge")), _loads),
        min_size=5,
        max_size=40,
    )
)
def test_lua_agrees_on_costs_beyond_one_run(on_redis, deeds):
    model, now, taken, history = Model(), BASE, [], []
    rules = (Rule(100_000_000, 1000, 100_000_000),)
    for gap, deed, cost in deeds:
        now += gap
        args = (now + 10_000_000, 3, rules)
        at, had = taken.pop() if deed == "back" and taken else (0, cost)
        command = {
            "hit": machine.Hit(*args, cost),
            "wait": machine.Hit(*args, cost, 2_000_000),
            "back": machine.Refund(*args, had, at),
            "charge": machine.Charge(*args, (cost,)),
        }[deed]
        history.append(model.apply(command, now))
        if isinstance(reply := history[-1].reply, machine.Admitted) and deed == "wait":
            taken.append((reply.at, cost))
    assert on_redis.run(history) == history
