"""The hub's conformance suite on every hub, in one process and in three."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, HubSuite, ProcessDriver
from support.conformance import POSTGRES, REDIS, engine_url, every_engine

BOTH = [REDIS, POSTGRES]
#: `sqlite+redis`: the engine is SQLite, the hub is Redis.
SETUPS = [
    *every_engine(AsyncDriver, BlockingDriver, ProcessDriver),
    pytest.param(("postgres+redis", AsyncDriver), id="postgres-redis-async", marks=BOTH),
    pytest.param(("postgres+redis", ProcessDriver), id="postgres-redis-processes", marks=BOTH),
    pytest.param(("sqlite+postgres", AsyncDriver), id="sqlite-postgres-async", marks=POSTGRES),
    pytest.param(("sqlite+redis", AsyncDriver), id="sqlite-redis-async", marks=REDIS),
    pytest.param(("sqlite+redis", BlockingDriver), id="sqlite-redis-blocking", marks=REDIS),
    pytest.param(("sqlite+redis", ProcessDriver), id="sqlite-redis-processes", marks=REDIS),
]


@pytest.fixture(scope="module", params=SETUPS)
def driver(request):
    kinds, make = request.param
    engine, _, hub = kinds.partition("+")
    with make(engine_url(engine, request), hub=engine_url(hub, request) if hub else None) as driver:
        yield driver


class TestHub(HubSuite):
    pass
