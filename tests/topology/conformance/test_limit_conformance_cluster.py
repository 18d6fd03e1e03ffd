"""The conformance suite of limits on a Cluster."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, LimitSuite

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver], ids=["async", "blocking"])
def driver(request, quiet_cluster):
    with request.param(quiet_cluster.url) as driver:
        yield driver


class TestClusterLimits(LimitSuite):
    pass
