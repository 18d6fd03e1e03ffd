"""Hint counters of Redis, Redis Cluster, both SQL engines and a small model agree."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backstay.assembly.engines import open_engine
from backstay.engine.base import PublishHint, TakeHint
from backstay.testing.servers import RedisCluster
from support.servers import running

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
def backstay_cluster():
    """A Cluster of three masters, so that the counters of one example are spread over several."""
    with running(RedisCluster(replicas=0, node_timeout=5)) as group:
        yield group


@pytest.fixture(scope="module")
def engines(backstay_redis, backstay_postgres, backstay_cluster):
    urls = "memory://", backstay_redis.url, backstay_postgres.url, backstay_cluster.url
    found = [open_engine(url, "test") for url in urls]
    yield found
    for engine in found:
        engine.close_blocking()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_every_engine_agrees_on_hint_counters(engines, steps):
    run = secrets.token_hex(6)
    left: dict[int, int] = {}
    for verb, nth, number in steps:
        hint = f"{run}:hint:{nth}"
        if verb == "publish":
            left[nth] = number
            replies = [engine.apply(PublishHint(hint, number, LIFE, f"{run}:sched", "x")) for engine in engines]
            assert replies == [None] * len(engines)
            continue
        expected = min(number, left.get(nth, number))
        if nth in left:
            left[nth] -= expected
        assert [engine.apply(TakeHint(hint, number, LIFE)) for engine in engines] == [expected] * len(engines)
