"""Hints on a Cluster: counters in any slot, and messages to the listeners of every node."""

from __future__ import annotations

import contextlib
import functools
import re
import secrets

import pytest
from node_names import one_on_each

from backstay import OutcomeUnknown
from backstay.engine.base import PublishHint, TakeHint
from backstay.engine.redis.address import Address
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.testing.conformance import AsyncDriver, BlockingDriver, HubSuite, ProcessDriver
from backstay.testing.conformance.hub.hints import announce_to_listeners
from backstay.testing.servers import say
from backstay.testing.waiting import eventually

pytestmark = pytest.mark.redis


@pytest.fixture(
    scope="module", params=[AsyncDriver, BlockingDriver, ProcessDriver], ids=["async", "blocking", "processes"]
)
def driver(request, quiet_cluster):
    with request.param(quiet_cluster.url) as driver:
        yield driver


class TestHubOnACluster(HubSuite):
    pass


def _append_payload(payloads, push):
    if push[0] == b"message":
        payloads.append(push[2])


@pytest.fixture
def received(quiet_cluster, namespace):
    """Subscribe to the channel `news` at each node. `received()` returns the payloads that have arrived, by node."""
    links = [BlockingLink(Address(port=node.port), "subscriber", None) for node in quiet_cluster.nodes]
    payloads = {node: [] for node in quiet_cluster.nodes}
    for node, link in zip(payloads, links, strict=True):
        link.subscribe(f"{namespace}:news", functools.partial(_append_payload, payloads[node]))

    def receive():
        for link in links:
            link.take_pushes()
        return payloads

    yield receive
    for link in links:
        link.close()


@pytest.mark.parametrize("via", ["publish", "hint"])
def test_a_message_sent_to_any_node_reaches_the_listeners_of_every_node(
    quiet_cluster, connect, namespace, received, via
):
    stay = connect(quiet_cluster.url)
    sent, nodes = [], set()
    for node, name in one_on_each(quiet_cluster, prefix="hint").items():
        payload = name.encode()
        if via == "publish":
            say(node, "PUBLISH", f"{namespace}:news", payload)
        else:
            key = f"{namespace}:hint:{{{name}}}"
            stay.engine.apply(PublishHint(key, 3, 60_000_000, f"{namespace}:news", name))
            assert say(node, "GET", key) == b"3"
            assert stay.engine.apply(TakeHint(key, 2, 60_000_000)) == 2
        sent.append(payload)
        nodes.add(node)
    assert nodes == set(quiet_cluster.masters())
    assert eventually(lambda: all(len(payloads) == len(sent) for payloads in received().values()))
    assert all(sorted(payloads) == sorted(sent) for payloads in received().values())


def test_one_process_publishes_through_one_node(quiet_cluster, connect):
    """Messages that are published through two nodes could arrive in another order."""
    stay = connect(quiet_cluster.url)
    before = {node: _published(node) for node in quiet_cluster.masters()}
    for turn in range(20):
        stay.hub.publish("news", str(turn))
    sent = {node: _published(node) - count for node, count in before.items()}
    assert sorted(sent.values()) == [0, 0, 20]


def _published(node):
    stats = say(node, "INFO", "commandstats").decode()
    found = re.search(r"cmdstat_publish:calls=(\d+)", stats)
    return int(found[1]) if found else 0


def test_publishing_moves_to_another_node_when_the_first_is_gone(cluster, connect):
    stay = connect(cluster.url)
    stay.hub.publish("news", "before")
    place = stay.engine.any_master()
    next(node for node in cluster.nodes if node.port == place.port).kill()
    with contextlib.suppress(OutcomeUnknown):  # the client detects the dead connection; a message is not sent again
        stay.hub.publish("news", "lost")
    stay.hub.publish("news", "after")
    assert stay.engine.any_master() != place


@pytest.mark.race
@pytest.mark.parametrize(("jobs", "slots"), [(3, 1), (7, 4)])
def test_listeners_take_each_hint_as_often_as_it_allows_on_every_node(quiet_cluster, jobs, slots):
    prefix = f"listeners-{secrets.token_hex(6)}"
    with ProcessDriver(quiet_cluster.url, namespace=prefix) as driver:
        driver.play(functools.partial(announce_to_listeners, listeners=9, jobs=jobs, slots=slots, rounds=30))
    found = {node: say(node, "KEYS", f"{prefix}-*:hint:*") for node in quiet_cluster.masters()}
    assert sum(map(len, found.values())) == 30
    assert all(found.values()), "every master has hints"
    for node, keys in found.items():
        assert {say(node, "GET", key) for key in keys} == {b"0"}, "each hint was used up"
        assert all(0 < say(node, "PTTL", key) <= 60_000 for key in keys), "every key expires"
