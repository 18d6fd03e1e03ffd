"""The gate's conformance suite on Redis, in one process."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, GateSuite

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver], ids=["async", "blocking"])
def driver(request, backstay_redis):
    with request.param(backstay_redis.url) as driver:
        yield driver


class TestRedis(GateSuite):
    pass
