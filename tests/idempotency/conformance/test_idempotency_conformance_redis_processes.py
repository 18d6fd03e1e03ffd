"""The conformance suite of idempotency keys on Redis, with actors in three processes."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import IdempotencyCrashSuite, IdempotencySuite, ProcessDriver

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def driver(backstay_redis):
    with ProcessDriver(backstay_redis.url) as driver:
        yield driver


class TestRedisProcesses(IdempotencySuite, IdempotencyCrashSuite):
    pass
