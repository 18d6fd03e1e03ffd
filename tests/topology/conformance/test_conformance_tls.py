"""The gate's conformance suite over TLS."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, GateSuite

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver], ids=["async", "blocking"])
def driver(request, tls_redis):
    with request.param(tls_redis.url) as driver:
        yield driver


class TestTls(GateSuite):
    pass
