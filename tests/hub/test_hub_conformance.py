"""The hub's conformance suite on every hub, in one process and in three. A new engine is one parameter more."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, HubSuite, ProcessDriver

REDIS, POSTGRES = pytest.mark.redis, pytest.mark.postgres
BOTH = [REDIS, POSTGRES]
SET_UPS = [
    pytest.param(("memory", AsyncDriver), id="memory-async"),
    pytest.param(("memory", BlockingDriver), id="memory-blocking"),
    pytest.param(("sqlite", AsyncDriver), id="sqlite-async"),
    pytest.param(("sqlite", BlockingDriver), id="sqlite-blocking"),
    pytest.param(("sqlite", ProcessDriver), id="sqlite-processes"),
    pytest.param(("redis", AsyncDriver), id="redis-async", marks=REDIS),
    pytest.param(("redis", BlockingDriver), id="redis-blocking", marks=REDIS),
    pytest.param(("redis", ProcessDriver), id="redis-processes", marks=REDIS),
    pytest.param(("postgres", AsyncDriver), id="postgres-async", marks=POSTGRES),
    pytest.param(("postgres", BlockingDriver), id="postgres-blocking", marks=POSTGRES),
    pytest.param(("postgres", ProcessDriver), id="postgres-processes", marks=POSTGRES),
    pytest.param(("postgres+redis", AsyncDriver), id="postgres-redis-async", marks=BOTH),
    pytest.param(("postgres+redis", ProcessDriver), id="postgres-redis-processes", marks=BOTH),
    pytest.param(("sqlite+postgres", AsyncDriver), id="sqlite-postgres-async", marks=POSTGRES),
    pytest.param(("sqlite+redis", AsyncDriver), id="sqlite-redis-async", marks=REDIS),
    pytest.param(("sqlite+redis", BlockingDriver), id="sqlite-redis-blocking", marks=REDIS),
    pytest.param(("sqlite+redis", ProcessDriver), id="sqlite-redis-processes", marks=REDIS),
]


@pytest.fixture(scope="module", params=SET_UPS)
def driver(request, tmp_path_factory):
    kinds, make = request.param

    def url(kind):
        if kind == "memory":
            return "memory://"
        if kind == "sqlite":
            return f"sqlite:///{tmp_path_factory.mktemp('hub') / 'hub.db'}?synchronous=normal"
        return request.getfixturevalue(f"backstay_{kind}").url

    engine, _, hub = kinds.partition("+")
    with make(url(engine), hub=url(hub) if hub else None) as driver:
        yield driver


class TestHub(HubSuite):
    pass
