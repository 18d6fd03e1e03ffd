"""The conformance suite of idempotency keys on a Cluster, with actors in three processes."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import IdempotencyCrashSuite, IdempotencySuite, ProcessDriver

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def driver(quiet_cluster):
    with ProcessDriver(quiet_cluster.url) as driver:
        yield driver


class TestClusterProcesses(IdempotencySuite, IdempotencyCrashSuite):
    pass
