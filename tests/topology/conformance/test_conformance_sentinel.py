"""The gate's conformance suite behind Sentinels."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, GateSuite

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver], ids=["async", "blocking"])
def driver(request, quiet_sentinel):
    with request.param(quiet_sentinel.url) as driver:
        yield driver


class TestSentinel(GateSuite):
    pass
