"""Clients of job stores on Redis, inboxes for handoffs, and a Redis Cluster."""

from __future__ import annotations

import itertools

import pytest
import redis
from redis_store_client import START, Inbox, RedisStoreClient

from backstay.testing.conformance.job import LocalStoreDriver
from backstay.testing.servers import RedisCluster
from support.servers import running

#: The shards of each store on the Cluster.
SHARDS = 8


@pytest.fixture
def clients(backstay_redis, namespace):
    """Create clients, and close them after the test: `clients(url, shards=8)`."""
    made = []

    def make(url=backstay_redis.url, **options):
        made.append(RedisStoreClient(url, options.pop("namespace", namespace), **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(clients):
    """A client whose store announces jobs, on a clock that the test sets. Its exchanges have numbers above those that a
    test passes explicitly.
    """
    client = clients(announces=True, now=START)
    client.seqs = itertools.count(100)
    return client


@pytest.fixture
def inboxes(client, backstay_redis):
    """Create inboxes, each subscribed to its own channel."""
    with redis.Redis.from_url(backstay_redis.url) as raw:
        subscriptions = []

        def make():
            subscription = raw.pubsub()
            subscriptions.append(subscription)
            channel = f"{client.engine.namespace}:hand:{len(subscriptions)}"
            subscription.subscribe(channel)
            assert subscription.get_message(timeout=5)["type"] == "subscribe"
            return Inbox(client, subscription, channel)

        yield make
        for subscription in subscriptions:
            subscription.close()


@pytest.fixture
def inbox(inboxes):
    return inboxes()


@pytest.fixture(scope="session")
def cluster():
    """Three masters without replicas. Tests share them in different namespaces, and may move slots."""
    with running(RedisCluster(replicas=0, node_timeout=5)) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["async", "blocking"])
def cluster_store(request, cluster):
    """The driver of a conformance suite on the Cluster."""
    with LocalStoreDriver(cluster.url, api=request.param, shards=SHARDS) as driver:
        yield driver
