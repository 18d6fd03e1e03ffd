"""The gate on every engine agrees with the machine: equal commands at equal times give equal replies, records and
wakes.
"""

from __future__ import annotations

import pytest
from hypothesis import given

from backstay.gate import machine
from backstay.gate.machine import DAY, GATE, OFFER
from support.agreement.engine_agreement import ON_A_SERVER, THOROUGH, engine_fixtures
from support.agreement.gate_strategies import run_script, scripts
from support.agreement.machine_model import BASE, Model, Moment, replay

#: Shrinking a failure takes longer than finding it.
pytestmark = pytest.mark.timeout(600)

on_sqlite, on_postgres, on_redis = engine_fixtures(
    GATE,
    [
        machine.Acquire(0, "t", "l", True, 1, 1, "i", 0, machine.CallerIdentity()),
        machine.Renew(0, "t", 0, 1),
        machine.Release(0, "t", "l", 0, 0),
        machine.Withdraw(0, "t", 0),
        machine.ForceRelease(0),
        machine.Evict(0, "e"),
    ],
)


@THOROUGH
@given(script=scripts)
def test_sqlite_agrees_with_the_gate_machine(on_sqlite, script):
    on_sqlite.assert_agrees(run_script(script))


@pytest.mark.postgres
@ON_A_SERVER
@given(script=scripts)
def test_postgres_agrees_with_the_gate_machine(on_postgres, script):
    on_postgres.assert_agrees(run_script(script), at_any_retention=True)


@pytest.mark.redis
@THOROUGH
@given(script=scripts)
def test_redis_agrees_with_the_gate_machine(on_redis, script):
    on_redis.assert_agrees(run_script(script))


@pytest.mark.redis
def test_redis_agrees_at_the_microsecond_when_an_offer_or_a_lease_ends(on_redis):
    """At the exact microsecond of its end, an offer, a lease or a ticket has ended."""

    def acquire(ticket, now, ttl=1_000_000):
        return Moment(
            now, machine.Acquire(now + DAY, ticket, ticket, True, 1, ttl, "inbox:1", 9, machine.CallerIdentity())
        )

    at = BASE
    drafts = [acquire("a", at), acquire("b", at), acquire("c", at)]
    drafts += [acquire("c", at + 1_000_000), acquire("c", at + 1_000_000 + OFFER)]
    history = replay(drafts, Model(GATE))
    assert [type(m.reply).__name__ for m in history] == ["Granted", "Queued", "Queued", "Queued", "Granted"]
    on_redis.assert_agrees(history)
