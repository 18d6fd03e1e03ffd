"""The conformance suite of job stores on a Redis Cluster of three masters, with eight shards."""

from __future__ import annotations

import pytest

from backstay.testing.conformance.job import JobSuite

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def store(cluster_store):
    return cluster_store


class TestClusterJobStore(JobSuite):
    pass
