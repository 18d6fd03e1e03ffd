"""Lua, both SQL engines and a model of three lines give the same answers to the same announcements and takes."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.app import open_engine
from holdfast.engine.base import PublishHint, TakeHint

pytestmark = [pytest.mark.redis, pytest.mark.postgres]
LIFE = 60_000_000
HINTS = st.integers(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), HINTS, st.integers(1, 6) | st.just(1_000_000_000)),
        st.tuples(st.just("take"), HINTS, st.integers(1, 4) | st.just(1_000_000_000)),
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def engines(holdfast_redis, holdfast_postgres):
    found = [open_engine(url, "test") for url in ("memory://", holdfast_redis.url, holdfast_postgres.url)]
    yield found
    for engine in found:
        engine.close_blocking()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_every_engine_counts_alike(engines, steps):
    run = secrets.token_hex(6)
    left: dict[int, int] = {}
    for verb, nth, number in steps:
        hint = f"{run}:hint:{nth}"
        if verb == "publish":
            left[nth] = number
            answers = [engine.apply(PublishHint(hint, number, LIFE, f"{run}:sched", "x")) for engine in engines]
            assert answers == [None, None, None]
            continue
        expected = min(number, left.get(nth, number))
        if nth in left:
            left[nth] -= expected
        assert [engine.apply(TakeHint(hint, number, LIFE)) for engine in engines] == [expected] * 3
