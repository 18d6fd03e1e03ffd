"""The model and every store are one about runs: the same commands at the same times give the same answers, the same
runs, the same jobs and the same events.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from job_histories import scripts
from run_histories import RunLockstep

from backstay.assembly.backends import open_job_store
from backstay.testing.clocked import open_clocked

#: Shrinking a failure takes longer than finding it.
pytestmark = pytest.mark.timeout(600)
#: The same histories in every run; the long runs look for new ones.
THOROUGH = settings(
    max_examples=200,
    deadline=None,
    print_blob=True,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
#: Each command is a trip to the server and a commit.
ON_A_SERVER = settings(THOROUGH, max_examples=100)
FOR_LONG = settings(THOROUGH, max_examples=3000, derandomize=False)
START = 1_790_000_000_000_000
#: A file remembers the latest time it has seen: the next history begins after it.
APART = 1_000_000_000_000


class Side:
    """A real store on a clock of ours. Each history has a namespace of its own."""

    def __init__(self, url: str) -> None:
        self._now = START
        self._engine = open_clocked(url, "property-run", lambda: self._now)
        self._spaces = itertools.count(1)

    def run(self, script: list[bytes]) -> None:
        space = next(self._spaces)
        store = open_job_store(self._engine, "property-run", 1, namespace=f"property-run-{space}")

        def ask(now, verb, args, named):
            self._now = now
            return self._engine.apply(getattr(store, verb)(*args, **named))

        RunLockstep(ask, START + space * APART, space).play(script)

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
@given(script=scripts)
def test_the_sqlite_store_agrees_with_the_run_model(on_sqlite, script):
    on_sqlite.run(script)


@pytest.mark.redis
@ON_A_SERVER
@given(script=scripts)
def test_the_redis_store_agrees_with_the_run_model(on_redis, script):
    on_redis.run(script)


@pytest.mark.postgres
@ON_A_SERVER
@given(script=scripts)
def test_the_postgres_store_agrees_with_the_run_model(on_postgres, script):
    on_postgres.run(script)


@pytest.mark.soak
@FOR_LONG
@given(script=scripts)
def test_thousands_of_histories_of_runs_on_sqlite(on_sqlite, script):
    on_sqlite.run(script)


@pytest.mark.soak
@pytest.mark.redis
@FOR_LONG
@given(script=scripts)
def test_thousands_of_histories_of_runs_on_redis(on_redis, script):
    on_redis.run(script)


@pytest.mark.soak
@pytest.mark.postgres
@FOR_LONG
@given(script=scripts)
def test_thousands_of_histories_of_runs_on_postgres(on_postgres, script):
    on_postgres.run(script)
