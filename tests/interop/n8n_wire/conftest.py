"""A scope on Redis for tests of `wire="n8n"`, and the nodes of n8n that use it."""

from __future__ import annotations

import pytest
from redis import Redis

from support.n8n.nodes import Nodes


@pytest.fixture
def url(backstay_redis):
    return backstay_redis.url


@pytest.fixture
def scope(namespace):
    return f"{namespace}-scope"


@pytest.fixture
def redis(url):
    """A plain client, to read the keys."""
    with Redis.from_url(url, decode_responses=True) as client:
        yield client


@pytest.fixture
def nodes(url):
    """The Redis nodes of one n8n execution."""
    nodes = Nodes(url, execution_id="77", workflow_id="wf-7", workflow_name="Invoices")
    yield nodes
    nodes.redis.close()


@pytest.fixture
def stay(url, connect):
    return connect(url)
