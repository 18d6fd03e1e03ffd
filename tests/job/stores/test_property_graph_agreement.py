"""Every store agrees with the pure graph: random graphs, random outcomes, cancellations and manual retries."""

from __future__ import annotations

import itertools

import pytest
from graph_walks import Walk, walks
from hypothesis import HealthCheck, given, settings

from backstay.assembly.backends import open_job_store
from backstay.testing.clocked import open_clocked
from support.job_model.store import ModelEngine, ModelStore

pytestmark = pytest.mark.timeout(600)
#: The same walks in every run; the long runs look for new ones.
THOROUGH = settings(
    max_examples=300,
    deadline=None,
    print_blob=True,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
#: Each command is a trip to the server and a commit.
ON_A_SERVER = settings(THOROUGH, max_examples=100)
FOR_LONG = settings(THOROUGH, max_examples=3000, derandomize=False)
START = 1_790_000_000_000_000
#: A file remembers the latest time it has seen: the next walk begins after it.
APART = 1_000_000_000_000


class Side:
    """A real store on a clock of ours. Each walk has a namespace of its own."""

    def __init__(self, url: str) -> None:
        self._now = START
        self._engine = open_clocked(url, "property-graph", lambda: self._now)
        self._spaces = itertools.count(1)

    def walk(self, plan: bytes, script: list[bytes]) -> None:
        space = next(self._spaces)
        store = open_job_store(self._engine, "property-graph", 1, namespace=f"property-graph-{space}")

        def ask(now, verb, args, named):
            self._now = now
            return self._engine.apply(getattr(store, verb)(*args, **named))

        Walk(ask, START + space * APART, space).play(plan, script)

    def close(self) -> None:
        self._engine.close_blocking()


def _side(url):
    side = Side(url)
    yield side
    side.close()


@pytest.fixture(scope="module")
def on_sqlite():
    yield from _side("memory://")


@pytest.fixture(scope="module")
def on_redis(backstay_redis):
    yield from _side(backstay_redis.url)


@pytest.fixture(scope="module")
def on_postgres(backstay_postgres):
    yield from _side(backstay_postgres.url)


@THOROUGH
@given(walk=walks)
def test_the_model_agrees_with_the_graph(walk):
    now = [START]
    store = ModelStore()
    engine = ModelEngine(store, lambda: now[0])

    def ask(moment, verb, args, named):
        now[0] = moment
        return engine.apply(getattr(store, verb)(*args, **named))

    Walk(ask, START, 0).play(*walk)


@THOROUGH
@given(walk=walks)
def test_the_sqlite_store_agrees_with_the_graph(on_sqlite, walk):
    on_sqlite.walk(*walk)


@pytest.mark.redis
@ON_A_SERVER
@given(walk=walks)
def test_the_redis_store_agrees_with_the_graph(on_redis, walk):
    on_redis.walk(*walk)


@pytest.mark.postgres
@ON_A_SERVER
@given(walk=walks)
def test_the_postgres_store_agrees_with_the_graph(on_postgres, walk):
    on_postgres.walk(*walk)


@pytest.mark.soak
@FOR_LONG
@given(walk=walks)
def test_thousands_of_walks_on_sqlite(on_sqlite, walk):
    on_sqlite.walk(*walk)


@pytest.mark.soak
@pytest.mark.redis
@FOR_LONG
@given(walk=walks)
def test_thousands_of_walks_on_redis(on_redis, walk):
    on_redis.walk(*walk)


@pytest.mark.soak
@pytest.mark.postgres
@FOR_LONG
@given(walk=walks)
def test_thousands_of_walks_on_postgres(on_postgres, walk):
    on_postgres.walk(*walk)
