"""Every job store agrees with the pure graph: random graphs, random outcomes, cancellations and manual retries."""

from __future__ import annotations

import pytest
from graph_walks import Walk, walks
from hypothesis import given

from support.agreement.store_agreement import FOR_LONG, ON_A_SERVER, START, THOROUGH
from support.job_model.store import ModelEngine, ModelStore

#: Shrinking a failure takes longer than finding it.
pytestmark = pytest.mark.timeout(600)


@THOROUGH
@given(walk=walks)
def test_the_model_agrees_with_the_graph(walk):
    now = [START]
    store = ModelStore()
    engine = ModelEngine(store, lambda: now[0])

    def apply(moment, verb, args, named):
        now[0] = moment
        return engine.apply(getattr(store, verb)(*args, **named))

    Walk(apply, START, 0).play(*walk)


@THOROUGH
@given(walk=walks)
def test_the_sqlite_store_agrees_with_the_graph(on_sqlite, walk):
    on_sqlite.play(Walk, *walk)


@pytest.mark.redis
@ON_A_SERVER
@given(walk=walks)
def test_the_redis_store_agrees_with_the_graph(on_redis, walk):
    on_redis.play(Walk, *walk)


@pytest.mark.postgres
@ON_A_SERVER
@given(walk=walks)
def test_the_postgres_store_agrees_with_the_graph(on_postgres, walk):
    on_postgres.play(Walk, *walk)


@pytest.mark.soak
@FOR_LONG
@given(walk=walks)
def test_thousands_of_walks_on_sqlite(on_sqlite, walk):
    on_sqlite.play(Walk, *walk)


@pytest.mark.soak
@pytest.mark.redis
@FOR_LONG
@given(walk=walks)
def test_thousands_of_walks_on_redis(on_redis, walk):
    on_redis.play(Walk, *walk)


@pytest.mark.soak
@pytest.mark.postgres
@FOR_LONG
@given(walk=walks)
def test_thousands_of_walks_on_postgres(on_postgres, walk):
    on_postgres.play(Walk, *walk)
