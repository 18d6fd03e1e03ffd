"""N jobs announced to M listeners in several processes: exactly as many come as can, every time."""

from __future__ import annotations

import functools

import pytest
import redis

from holdfast.testing.conformance import ProcessDriver
from holdfast.testing.conformance.hub.hints import call_a_crowd

pytestmark = [pytest.mark.race, pytest.mark.slow]
ROUNDS = [pytest.param(100, id="ci"), pytest.param(1000, id="soak", marks=[pytest.mark.soak, pytest.mark.timeout(600)])]


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("sqlite+redis", marks=pytest.mark.redis),
    ]
)
def driver(request, tmp_path):
    file = f"sqlite:///{tmp_path / 'hub.db'}?synchronous=normal"
    server = request.getfixturevalue("holdfast_redis").url if "redis" in request.param else None
    url = server if request.param == "redis" else file
    with ProcessDriver(url, hub=server if request.param == "sqlite+redis" else None) as driver:
        yield driver


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(("jobs", "slots"), [(3, 1), (7, 4)])
def test_exactly_as_many_come_as_there_are_jobs_and_slots(driver, jobs, slots, rounds, request, monkeypatch):
    monkeypatch.setattr("holdfast.testing.conformance.driver.PATIENCE", 550.0)
    driver.play(functools.partial(call_a_crowd, listeners=9, jobs=jobs, slots=slots, rounds=rounds))
    if "sqlite]" in request.node.name or "[sqlite-" in request.node.name:
        return
    server = request.getfixturevalue("holdfast_redis")
    with redis.Redis(port=server.port) as plain:
        keys = list(plain.scan_iter("*:hint:*", count=1000))
        assert len(keys) >= min(rounds, 100)
        assert [key for key in keys if not 0 < plain.pttl(key) <= 60_000 and plain.exists(key)] == []
        assert {int(plain.get(key) or 0) for key in keys} == {0}, "each was taken to its end"


def test_too_few_slots_leave_the_rest_for_whoever_comes_later(driver):
    driver.play(functools.partial(call_a_crowd, listeners=4, jobs=50, slots=3, rounds=5))
