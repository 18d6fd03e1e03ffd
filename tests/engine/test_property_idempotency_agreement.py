"""Machine, SQL and Lua are one for idempotency keys too: the same commands give the same replies, records and wakes."""

from __future__ import annotations

import pytest
from gate_scripts import BASE, Model, Moment, replay
from hypothesis import given
from idempotency_scripts import play, scripts
from test_property_gate_agreement import ON_A_SERVER, THOROUGH, Hourly, OnPostgres, OnRedis, OnSqlite

from backstay.idempotency import machine
from backstay.idempotency.machine import DAY, IDEMPOTENCY

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def on_sqlite():
    side = OnSqlite(IDEMPOTENCY)
    yield side
    side.engine.close_blocking()


@pytest.fixture(scope="module")
def on_postgres(backstay_postgres):
    side = OnPostgres(backstay_postgres.url, IDEMPOTENCY)
    yield side
    side.engine.close_blocking()


@pytest.fixture(scope="module")
def on_redis(backstay_redis):
    side = OnRedis(backstay_redis.url, IDEMPOTENCY)
    past = [
        machine.Begin(0, "t", "b", "", 1, ""),
        machine.Renew(0, "t", 0, 1),
        machine.Complete(0, "t", 0, 1, False, b""),
        machine.Abandon(0, "t", 0),
        machine.Forget(0),
    ]
    side.run([Moment(BASE, command) for command in past])  # the server knows the scripts from now on
    side.heard()
    yield side
    side.close()


@THOROUGH
@given(script=scripts)
def test_sql_says_what_the_idempotency_machine_says(on_sqlite, script):
    history = play(script)
    assert on_sqlite.run(history) == replay(history, Model(monotone=True, room=IDEMPOTENCY))


@pytest.mark.postgres
@ON_A_SERVER
@given(script=scripts)
def test_sql_on_postgres_says_what_the_idempotency_machine_says(on_postgres, script):
    history = play(script)
    told = on_postgres.run(history)
    assert told == replay(history, Hourly(room=IDEMPOTENCY))
    assert [(m.reply, m.wakes) for m in told] == [(m.reply, m.wakes) for m in history]  # however long rows are kept


@pytest.mark.redis
@THOROUGH
@given(script=scripts)
def test_lua_says_what_the_idempotency_machine_says(on_redis, script):
    history = play(script)
    told = on_redis.run(history)
    heard = on_redis.heard()
    assert told == [Moment(m.now, m.command, m.reply, m.state) for m in history]
    assert heard == [(wake.inbox, wake.payload) for m in history for wake in m.wakes]


@pytest.mark.redis
def test_lua_agrees_where_an_outcome_and_a_lease_end(on_redis):
    """The microsecond at which a lease or an outcome ends belongs to the end."""

    def begin(ticket, now):
        return Moment(now, machine.Begin(now + DAY, ticket, "b", "", 1_000_000, "inbox:1"))

    def complete(ticket, now):
        return Moment(now, machine.Complete(now + DAY, ticket, 0, DAY, failed=False, body=b"x"))

    drafts = [begin("a", BASE), begin("b", BASE + 999_999), begin("b", BASE + 1_000_000), complete("a", BASE)]
    drafts += [
        complete("b", BASE + 2_000_000),
        begin("c", BASE + 2_000_000 + DAY - 1),
        begin("c", BASE + 2_000_000 + DAY),
    ]
    history = replay(drafts, Model(room=IDEMPOTENCY))
    assert [type(m.reply).__name__ for m in history] == ["Begun", "Running", "Begun", "Lost", "Stored", "Done", "Begun"]
    told = on_redis.run(history)
    on_redis.heard()
    assert [(m.reply, m.state) for m in told] == [(m.reply, m.state) for m in history]
