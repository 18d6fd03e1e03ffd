"""The conformance suite of workflow runs on a Redis Cluster of three masters, with eight shards."""

from __future__ import annotations

import pytest

from backstay.testing.conformance.run import RunSuite

#: Some tests have thousands of jobs.
pytestmark = [pytest.mark.redis, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def store(cluster_store):
    return cluster_store


class TestClusterRuns(RunSuite):
    pass
