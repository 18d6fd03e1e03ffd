"""The conformance suite of idempotency keys on a Cluster: records and outcomes share their slots."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, IdempotencySuite

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver], ids=["async", "blocking"])
def driver(request, quiet_cluster):
    with request.param(quiet_cluster.url) as driver:
        yield driver


class TestCluster(IdempotencySuite):
    pass
