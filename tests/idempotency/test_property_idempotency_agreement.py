"""Idempotency keys on every engine agree with the machine: equal commands give equal replies, records and wakes."""

from __future__ import annotations

import pytest
from hypothesis import given
from idempotency_strategies import run_script, scripts

from backstay.idempotency import machine
from backstay.idempotency.machine import DAY, IDEMPOTENCY
from support.agreement.engine_agreement import ON_A_SERVER, THOROUGH, engine_fixtures
from support.agreement.machine_model import BASE, Model, Moment, replay

#: Shrinking a failure takes longer than finding it.
pytestmark = pytest.mark.timeout(600)

on_sqlite, on_postgres, on_redis = engine_fixtures(
    IDEMPOTENCY,
    [
        machine.Begin(0, "t", "b", "", 1, ""),
        machine.Renew(0, "t", 0, 1),
        machine.Complete(0, "t", 0, 1, False, b""),
        machine.Abandon(0, "t", 0),
        machine.Forget(0),
    ],
)


@THOROUGH
@given(script=scripts)
def test_sqlite_agrees_with_the_idempotency_machine(on_sqlite, script):
    on_sqlite.assert_agrees(run_script(script))


@pytest.mark.postgres
@ON_A_SERVER
@given(script=scripts)
def test_postgres_agrees_with_the_idempotency_machine(on_postgres, script):
    on_postgres.assert_agrees(run_script(script), at_any_retention=True)


@pytest.mark.redis
@THOROUGH
@given(script=scripts)
def test_redis_agrees_with_the_idempotency_machine(on_redis, script):
    on_redis.assert_agrees(run_script(script))


@pytest.mark.redis
def test_redis_agrees_at_the_microsecond_when_an_outcome_or_a_lease_ends(on_redis):
    """At the exact microsecond of its end, a lease or an outcome has ended."""

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
    history = replay(drafts, Model(IDEMPOTENCY))
    assert [type(m.reply).__name__ for m in history] == ["Begun", "Running", "Begun", "Lost", "Stored", "Done", "Begun"]
    on_redis.assert_agrees(history)
