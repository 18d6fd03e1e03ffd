"""The conformance suite of limits on every engine, in one process and in three."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, LimitSuite, ProcessDriver

REDIS, POSTGRES = pytest.mark.redis, pytest.mark.postgres
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
]


@pytest.fixture(scope="module", params=SET_UPS)
def driver(request, tmp_path_factory):
    kind, make = request.param
    if kind == "memory":
        url = "memory://"
    elif kind == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('limit') / 'limit.db'}?synchronous=normal"
    else:
        url = request.getfixturevalue(f"backstay_{kind}").url
    with make(url) as driver:
        yield driver


class TestLimits(LimitSuite):
    pass
