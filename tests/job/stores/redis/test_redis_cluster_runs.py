"""The conformance suite of workflow runs on a Redis Cluster of three masters, with eight shards."""

from __future__ import annotations

import pytest

from backstay.testing.conformance.job import LocalStoreDriver
from backstay.testing.conformance.run import RunSuite
from backstay.testing.plugin import started_or_skip
from backstay.testing.servers import RedisCluster

#: Some claims are about thousands of jobs.
pytestmark = [pytest.mark.redis, pytest.mark.timeout(600)]


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


class TestClusterRuns(RunSuite):
    pass
