"""The conformance suite of job stores on a Redis Cluster of three masters, with eight shards."""

from __future__ import annotations

import pytest

from backstay.testing.conformance.job import JobSuite, LocalStoreDriver
from backstay.testing.plugin import started_or_skip
from backstay.testing.servers import RedisCluster

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def cluster():
    servers = RedisCluster(replicas=0, node_timeout=5)
    try:
        yield started_or_skip(servers)
    finally:
        servers.stop()


@pytest.fixture(scope="module", params=["async", "blocking"])
def store(request, cluster):
    with LocalStoreDriver(cluster.url, api=request.param, shards=8) as driver:
        yield driver


class TestClusterJobStore(JobSuite):
    pass
