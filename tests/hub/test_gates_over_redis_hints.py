"""The gate's conformance suite with state in SQLite and hints over Redis."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, GateSuite, ProcessDriver

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver, ProcessDriver])
def driver(request, tmp_path_factory, backstay_redis):
    file = tmp_path_factory.mktemp("hub") / "gates.db"
    with request.param(f"sqlite:///{file}?synchronous=normal", hub=backstay_redis.url) as driver:
        yield driver


class TestGates(GateSuite):
    pass
