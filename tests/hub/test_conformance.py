"""The hub's conformance suite on every hub, in one process and in three. A new engine is one parameter more."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import AsyncDriver, BlockingDriver, HubSuite, ProcessDriver

REDIS = pytest.mark.redis
SET_UPS = [
    pytest.param(("memory", AsyncDriver), id="memory-async"),
    pytest.param(("memory", BlockingDriver), id="memory-blocking"),
    pytest.param(("sqlite", AsyncDriver), id="sqlite-async"),
    pytest.param(("sqlite", BlockingDriver), id="sqlite-blocking"),
    pytest.param(("sqlite", ProcessDriver), id="sqlite-processes"),
    pytest.param(("redis", AsyncDriver), id="redis-async", marks=REDIS),
    pytest.param(("redis", BlockingDriver), id="redis-blocking", marks=REDIS),
    pytest.param(("redis", ProcessDriver), id="redis-processes", marks=REDIS),
    pytest.param(("sqlite+redis", AsyncDriver), id="sqlite-redis-async", marks=REDIS),
    pytest.param(("sqlite+redis", BlockingDriver), id="sqlite-redis-blocking", marks=REDIS),
    pytest.param(("sqlite+redis", ProcessDriver), id="sqlite-redis-processes", marks=REDIS),
]


@pytest.fixture(scope="module", params=SET_UPS)
def driver(request, tmp_path_factory):
    kind, make = request.param
    file = f"sqlite:///{tmp_path_factory.mktemp('hub') / 'hub.db'}?synchronous=normal"
    url = {"memory": "memory://", "sqlite": file, "sqlite+redis": file}.get(kind)
    server = request.getfixturevalue("holdfast_redis").url if "redis" in kind else None
    with make(url or server, hub=server if kind == "sqlite+redis" else None) as driver:
        yield driver


class TestHub(HubSuite):
    pass
