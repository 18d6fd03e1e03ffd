"""Hints on a Cluster: counters in whatever slot they fall, messages to the listeners of every node."""

from __future__ import annotations

import contextlib
import functools
import re
import secrets

import pytest
from placing import one_on_each

from backstay import OutcomeUnknown
from backstay.engine.base import PublishHint, TakeHint
from backstay.engine.redis.address import Address
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.testing.conformance import AsyncDriver, BlockingDriver, HubSuite, ProcessDriver
from backstay.testing.conformance.hub.hints import call_a_crowd
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


def _note(said, push):
    if push[0] == b"message":
        said.append(push[2])


@pytest.fixture
def everywhere(quiet_cluster, namespace):
    """A listener at each node, masters and replicas: what it receives on the channel `news`."""
    links = [BlockingLink(Address(port=node.port), "ear", None) for node in quiet_cluster.nodes]
    heard = {node: [] for node in quiet_cluster.nodes}
    for node, link in zip(heard, links, strict=True):
        link.subscribe(f"{namespace}:news", functools.partial(_note, heard[node]))

    def listen():
        for link in links:
            link.take_pushes()
        return heard

    yield listen
    for link in links:
        link.close()


@pytest.mark.parametrize("via", ["publish", "hint"])
def test_a_message_sent_to_any_node_reaches_the_listeners_of_every_node(
    quiet_cluster, connect, namespace, everywhere, via
):
    stay = connect(quiet_cluster.url)
    sent, told = [], set()
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
        told.add(node)
    assert told == set(quiet_cluster.masters())
    assert eventually(lambda: all(len(said) == len(sent) for said in everywhere().values()))
    assert all(sorted(said) == sorted(sent) for said in everywhere().values())


def test_one_process_publishes_through_one_node(quiet_cluster, connect):
    """Two nodes would pass messages on in any order."""
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
    with contextlib.suppress(OutcomeUnknown):  # the dead link may only show itself now; a hint is sent once
        stay.hub.publish("news", "lost")
    stay.hub.publish("news", "after")
    assert stay.engine.any_master() != place


@pytest.mark.race
@pytest.mark.parametrize(("jobs", "slots"), [(3, 1), (7, 4)])
def test_listeners_take_each_hint_as_often_as_it_allows_on_every_node(quiet_cluster, jobs, slots):
    crowd = f"crowd-{secrets.token_hex(6)}"
    with ProcessDriver(quiet_cluster.url, namespace=crowd) as driver:
        driver.play(functools.partial(call_a_crowd, listeners=9, jobs=jobs, slots=slots, rounds=30))
    found = {node: say(node, "KEYS", f"{crowd}-*:hint:*") for node in quiet_cluster.masters()}
    assert sum(map(len, found.values())) == 30
    assert all(found.values()), "hints lie on every master"
    for node, keys in found.items():
        assert {say(node, "GET", key) for key in keys} == {b"0"}, "each was taken to its end"
        assert all(0 < say(node, "PTTL", key) <= 60_000 for key in keys), "a key without an end"
