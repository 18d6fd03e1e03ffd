"""Limits on every engine agree with the machine: equal hits at equal times give equal decisions and records."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limit_strategies import run_script, scripts

from backstay.limit import machine
from backstay.limit.algorithms import Rule
from backstay.limit.machine import LIMIT
from support.agreement.engine_agreement import ON_A_SERVER, THOROUGH, engine_fixtures
from support.agreement.machine_model import BASE, Model

#: Shrinking a failure takes longer than finding it.
pytestmark = pytest.mark.timeout(600)

on_sqlite, on_postgres, on_redis = engine_fixtures(
    LIMIT,
    [
        machine.Hit(0, 0, (), 1),
        machine.Peek(0, 0, (), 1),
        machine.Charge(0, 0, (), ()),
        machine.Refund(0, 0, (), 1),
        machine.Reset(0),
    ],
)


@THOROUGH
@given(script=scripts)
def test_sqlite_agrees_with_the_limit_machine(on_sqlite, script):
    on_sqlite.assert_agrees(run_script(script))


@pytest.mark.postgres
@settings(ON_A_SERVER, max_examples=300)
@given(script=scripts)
def test_postgres_agrees_with_the_limit_machine(on_postgres, script):
    on_postgres.assert_agrees(run_script(script))


@pytest.mark.redis
@THOROUGH
@given(script=scripts)
def test_redis_agrees_with_the_limit_machine(on_redis, script):
    on_redis.assert_agrees(run_script(script))


_gaps = st.sampled_from((1000, 1000, 1000, 1500, 2000, 0, 300, 7000, 60_000, 250_000, -5000))
_actions = st.sampled_from(("hit",) * 60 + ("dear", "wait", "refund", "back", "charge", "peek"))


@pytest.mark.redis
@settings(THOROUGH, max_examples=60)
@given(
    actions=st.lists(st.tuples(_gaps, _actions), min_size=150, max_size=400),
    limit=st.sampled_from((30, 100, 150, 1000)),
    windows=st.sampled_from(((100,), (250,), (400,), (300, 100))),
)
def test_redis_agrees_on_hit_logs_too_long_to_read_as_a_whole(on_redis, actions, limit, windows):
    model, now, reserved, history = Model(LIMIT), BASE, 0, []
    rules = tuple(Rule(limit, window, limit) for window in windows)
    for gap, action in actions:
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
        }[action]
        history.append(model.apply(command, now))
        if isinstance(reply := history[-1].reply, machine.Admitted) and reply.delay:
            reserved = reply.at
    on_redis.assert_agrees(history)


#: One run of the hit log holds a cost below 2**24.
_loads = st.sampled_from((1, 5_000_000, 2**24 - 1, 2**24, 40_000_000))


@pytest.mark.redis
@settings(THOROUGH, max_examples=200)
@given(
    actions=st.lists(
        st.tuples(st.sampled_from((0, 300, 1000, 90_000)), st.sampled_from(("hit", "wait", "back", "charge")), _loads),
        min_size=5,
        max_size=40,
    )
)
def test_redis_agrees_on_costs_beyond_one_run_of_the_log(on_redis, actions):
    model, now, taken, history = Model(LIMIT), BASE, [], []
    rules = (Rule(100_000_000, 1000, 100_000_000),)
    for gap, action, cost in actions:
        now += gap
        args = (now + 10_000_000, 3, rules)
        at, had = taken.pop() if action == "back" and taken else (0, cost)
        command = {
            "hit": machine.Hit(*args, cost),
            "wait": machine.Hit(*args, cost, 2_000_000),
            "back": machine.Refund(*args, had, at),
            "charge": machine.Charge(*args, (cost,)),
        }[action]
        history.append(model.apply(command, now))
        if isinstance(reply := history[-1].reply, machine.Admitted) and action == "wait":
            taken.append((reply.at, cost))
    on_redis.assert_agrees(history)
