"""N jobs announced to M listeners in several processes: the takes never exceed the jobs or the slots."""

from __future__ import annotations

import functools
import secrets

import psycopg
import pytest
import redis

from backstay.testing.conformance import ProcessDriver
from backstay.testing.conformance.hub.hints import announce_to_listeners

pytestmark = [pytest.mark.race, pytest.mark.slow]
ROUNDS = [pytest.param(100, id="ci"), pytest.param(1000, id="soak", marks=[pytest.mark.soak, pytest.mark.timeout(600)])]


@pytest.fixture
def crowd_name():
    """The prefix of a driver's namespaces: other tests use the same server."""
    return f"crowd-{secrets.token_hex(6)}"


@pytest.fixture
def on_sqlite(tmp_path, crowd_name):
    with ProcessDriver(f"sqlite:///{tmp_path / 'hub.db'}?synchronous=normal", namespace=crowd_name) as driver:
        yield driver


@pytest.fixture
def on_postgres(backstay_postgres, crowd_name):
    with ProcessDriver(backstay_postgres.url, namespace=crowd_name) as driver:
        yield driver


@pytest.fixture(params=["redis", "sqlite+redis"])
def over_redis(request, backstay_redis, tmp_path, crowd_name):
    file, server = f"sqlite:///{tmp_path / 'hub.db'}?synchronous=normal", backstay_redis.url
    url, hub = (server, None) if request.param == "redis" else (file, server)
    with ProcessDriver(url, namespace=crowd_name, hub=hub) as driver:
        yield driver


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr("backstay.testing.conformance.driver.TEST_TIMEOUT", 550.0)


def crowd(jobs, slots, rounds):
    return functools.partial(announce_to_listeners, listeners=9, jobs=jobs, slots=slots, rounds=rounds)


@pytest.mark.redis
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(("jobs", "slots"), [(3, 1), (7, 4)])
def test_takes_equal_the_jobs_and_slots_over_redis(over_redis, jobs, slots, rounds, backstay_redis, crowd_name):
    over_redis.play(crowd(jobs, slots, rounds))
    with redis.Redis(port=backstay_redis.port) as plain:
        keys = list(plain.scan_iter(f"{crowd_name}-*:hint:*", count=1000))
        assert len(keys) >= 100, "within a minute none of the last ones has gone"
        ends = {plain.pttl(key) for key in keys} - {-2}
        assert all(0 < end <= 60_000 for end in ends), "a key without an end"
        assert {int(plain.get(key) or 0) for key in keys} == {0}, "each was taken to its end"


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(("jobs", "slots"), [(3, 1), (7, 4)])
def test_takes_equal_the_jobs_and_slots_on_sqlite(on_sqlite, jobs, slots, rounds):
    on_sqlite.play(crowd(jobs, slots, rounds))


@pytest.mark.postgres
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(("jobs", "slots"), [(3, 1), (7, 4)])
def test_takes_equal_the_jobs_and_slots_on_postgres(on_postgres, jobs, slots, rounds, backstay_postgres, crowd_name):
    on_postgres.play(crowd(jobs, slots, rounds))
    with psycopg.connect(backstay_postgres.url) as plain:
        left = plain.execute(
            "SELECT remaining, keep_until FROM backstay_hint_counter WHERE starts_with(hint, %s)", (f"{crowd_name}-",)
        ).fetchall()
    assert len(left) >= 100
    assert {remaining for remaining, _ in left} == {0}, "each was taken to its end"
    assert all(keep_until for _, keep_until in left), "a row without an end"


@pytest.mark.redis
def test_a_counter_keeps_the_jobs_that_exceed_the_slots(over_redis, backstay_redis, crowd_name):
    over_redis.play(crowd(50, 3, 1))
    with redis.Redis(port=backstay_redis.port) as plain:
        (key,) = plain.scan_iter(f"{crowd_name}-*:hint:*", count=1000)
        assert plain.get(key) == b"23", "50 less 9 times 3"
