"""The gate's conformance suite on Redis, with actors in three processes."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import CrashSuite, GateSuite, ProcessDriver

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def driver(backstay_redis):
    with ProcessDriver(backstay_redis.url) as driver:
        yield driver


class TestRedisProcesses(GateSuite, CrashSuite):
    pass
