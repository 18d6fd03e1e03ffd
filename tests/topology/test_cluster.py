"""A Redis Cluster: names are spread over all masters, and clients follow slots that move."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from node_names import names_on, one_on_each, slot

import backstay
import backstay.sync
from backstay import ConfigError, EngineRefused, EngineUnavailable
from backstay.engine.base import Apply, Scan
from backstay.engine.redis.topology.cluster import ClusterEngine
from backstay.engine.redis.topology.open import parse_cluster
from backstay.engine.redis.topology.slots import slot_of
from backstay.gate.commands import Acquire, CallerIdentity
from backstay.gate.machine import GATE
from backstay.testing.servers import RedisCluster, say
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import WITHIN

pytestmark = pytest.mark.redis


def exists(node, stay, name):
    """Whether this node itself stores the record. GETKEYSINSLOT never redirects to another node."""
    key = stay.engine.key("gate", name)
    return key.encode() in say(node, "CLUSTER", "GETKEYSINSLOT", slot(name), 1000)


@pytest.mark.parametrize(
    "key", ["123456789", "{}", "a{}b", "a{b}c{d}", "{{a}}", "a{b", "a}b{c}", "{a", "é{ü}", "x{y}{z"]
)
def test_slots_are_those_of_the_server(quiet_cluster, key):
    assert slot_of(key.encode()) == say(quiet_cluster.nodes[0], "CLUSTER", "KEYSLOT", key)


def test_each_master_serves_some_names(quiet_cluster, namespace):
    names = one_on_each(quiet_cluster)
    assert len(names) == 3
    with backstay.sync.Backstay(quiet_cluster.url, namespace=namespace) as stay:
        for node, name in names.items():
            with stay.lock(name, wait=0):
                assert [other for other in quiet_cluster.masters() if exists(other, stay, name)] == [node]


def test_every_kind_of_operation_finds_its_node(quiet_cluster, namespace):
    """The index of an execution's locks is in another slot than the locks."""
    names = list(one_on_each(quiet_cluster).values())

    async def use_async():
        async with backstay.Backstay(quiet_cluster.url, namespace=namespace) as stay:
            for name in names:
                await stay.lock(name).acquire(wait=0, execution_id="run-1")
            assert {found.name for found in await stay.locks.list()} == set(names)
            cleaned = await stay.locks.cleanup("run-1")
            assert set(cleaned.scopes) == set(names)

    asyncio.run(use_async())
    with backstay.sync.Backstay(quiet_cluster.url, namespace=namespace) as stay:
        for name in names:
            stay.lock(name).acquire(wait=0, execution_id="run-2")
        assert [found.name for found in stay.locks.list("name-")] == sorted(names)
        assert stay.locks.cleanup("run-2").cleaned_count == 3
        assert stay.locks.force_release(names[0]) is not None


def test_any_reachable_seed_is_enough(take, quiet_cluster):
    """The seed may be a replica."""
    replica = next(node for node in quiet_cluster.nodes if node not in quiet_cluster.masters())
    for scheme in ("redis", "valkey"):
        assert take(f"{scheme}+cluster://127.0.0.1:{reserve_port()},127.0.0.1:{replica.port}") > 0


def test_a_cluster_works_over_tls(take, certificates):
    with RedisCluster(replicas=0, tls=certificates) as group:
        for name in one_on_each(group).values():
            assert take(group.url, name) > 0


def test_unreachable_seeds_are_named_at_once(take):
    ports = reserve_port(), reserve_port()
    with pytest.raises(EngineUnavailable, match=f"127.0.0.1:{ports[0]}.*127.0.0.1:{ports[1]}"):
        take(f"redis+cluster://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")


def test_a_single_server_is_not_taken_for_a_cluster(take, backstay_redis):
    with pytest.raises(EngineRefused, match="use redis://"):
        take(f"redis+cluster://127.0.0.1:{backstay_redis.port}")


def test_a_cluster_is_not_taken_for_a_single_server(take, quiet_cluster):
    node = quiet_cluster.masters()[0]
    name = next(name for other, name in one_on_each(quiet_cluster).items() if other is not node)
    with pytest.raises(EngineRefused, match=r"use redis\+cluster://"):
        take(node.url, name)


@pytest.mark.parametrize(
    "url",
    ["redis+cluster://127.0.0.1:1/1", "redis+cluster://127.0.0.1:1/?sentinel_password=x", "redis+ring://127.0.0.1:1"],
)
def test_an_option_a_cluster_does_not_support_is_a_config_error(url):
    with pytest.raises(ConfigError):
        backstay.sync.Backstay(url)


def test_a_slot_that_moved_is_followed_and_cached(quiet_cluster, namespace):
    source, target, *_ = quiet_cluster.masters()
    name, other = names_on(quiet_cluster, source, 2, prefix="moving")
    with backstay.sync.Backstay(quiet_cluster.url, namespace=namespace) as stay:
        held = stay.lock(name).acquire(wait=0)
        stay.lock(other).acquire(wait=0).release()
        quiet_cluster.migrate(slot(name), target)
        try:
            assert stay.engine.map.node_for(slot(name)).port == source.port
            held.renew()
            assert stay.engine.map.node_for(slot(name)).port == target.port
            assert exists(target, stay, name)
            assert stay.engine.map.node_for(slot(other)).port == source.port
            assert held.release().idempotent is False
        finally:
            quiet_cluster.migrate(slot(name), source)

    async def use_async():
        async with backstay.Backstay(quiet_cluster.url, namespace=namespace) as stay:
            held = await stay.lock(name).acquire(wait=0)
            await asyncio.to_thread(quiet_cluster.migrate, slot(name), target)
            await held.renew()
            assert stay.engine.map.node_for(slot(name)).port == target.port
            assert (await held.release()).idempotent is False

    try:
        asyncio.run(use_async())
    finally:
        quiet_cluster.migrate(slot(name), source)


@pytest.mark.parametrize("api", ["async", "blocking"])
def test_a_migrating_slot_is_looked_up_at_both_nodes(quiet_cluster, namespace, api):
    """The source serves records that it still has, and the target those that are new or already moved (ASK). The
    client's slot map does not change.
    """
    source, target, *_ = quiet_cluster.masters()
    tag = names_on(quiet_cluster, source, prefix=f"ask-{api}")[0]
    # Two names in one slot are found by trying, since a name is its own hash tag.
    first_name, second_name = tag, next(n for i in range(200_000) if slot(n := f"{tag}-{i}") == slot(tag))
    ids = [say(node, "CLUSTER", "MYID").decode() for node in (source, target)]
    number = slot(tag)
    stay = backstay.sync.Backstay(quiet_cluster.url, namespace=namespace)
    say(source, "SCRIPT", "FLUSH")
    say(target, "SCRIPT", "FLUSH")  # so the client must load the script and repeat the call
    with stay:
        first = stay.lock(first_name).acquire(wait=0)
        say(target, "CLUSTER", "SETSLOT", number, "IMPORTING", ids[0])
        say(source, "CLUSTER", "SETSLOT", number, "MIGRATING", ids[1])
        try:
            if api == "blocking":
                second = stay.lock(second_name).acquire(wait=0)
                first.renew()
                assert second.release().idempotent is False
            else:

                async def use_async():
                    async with backstay.Backstay(quiet_cluster.url, namespace=namespace) as other:
                        second = await other.lock(second_name).acquire(wait=0)
                        assert exists(target, stay, second_name)
                        assert (await second.release()).idempotent is False
                        assert other.engine.map.node_for(number).port == source.port

                asyncio.run(use_async())
            assert exists(source, stay, first_name)
            assert not exists(target, stay, first_name)
            assert exists(target, stay, second_name)
            assert stay.engine.map.node_for(number).port == source.port
            say(source, "MIGRATE", "127.0.0.1", target.port, stay.engine.key("gate", first_name), 0, 5000)
            first.renew()
            assert first.release().idempotent is False
        finally:
            for node in (target, source):
                say(node, "CLUSTER", "SETSLOT", number, "STABLE")


def test_an_unserved_slot_is_named_and_the_others_keep_working(take):
    with RedisCluster(replicas=0, options=("--cluster-require-full-coverage", "no")) as group:
        source, other, _ = group.masters()
        unserved, served = names_on(group, source)[0], names_on(group, other)[0]
        for node in group.masters():
            say(node, "CLUSTER", "DELSLOTS", slot(unserved))
        with pytest.raises(EngineUnavailable, match=f"slot {slot(unserved)}"):
            take(group.url + "?failover=0.3", unserved, profile=backstay.Policy(lock_retries=0))
        assert take(group.url, served) > 0


def test_a_message_published_on_one_node_reaches_every_other(quiet_cluster, namespace):
    with backstay.sync.Backstay(quiet_cluster.url, namespace=namespace) as stay, stay.hub.listen("news") as news:
        for node in quiet_cluster.nodes:
            say(node, "PUBLISH", f"{namespace}:news", f"from {node.port}")
        payloads = {news.next(WITHIN).payload for _ in quiet_cluster.nodes}
    assert payloads == {f"from {node.port}" for node in quiet_cluster.nodes}


def test_a_batch_over_several_nodes_is_answered_in_order(quiet_cluster, namespace):
    engine = ClusterEngine(parse_cluster(quiet_cluster.url), namespace=namespace)
    try:
        names = [f"batch-{i}" for i in range(50)]
        ops = [
            Apply(GATE, name, Acquire(2**52, secrets.token_hex(8), name, True, 1, 10**7, "", 0, CallerIdentity()))
            for name in names
        ]
        granted = engine.apply_many(ops)
        assert len({reply.fence for reply in granted}) > 1
        again = engine.apply_many([*ops, Scan(GATE, "batch-")])
        assert [reply.fence for reply in again[:-1]] == [reply.fence for reply in granted]
        assert again[-1] == sorted(names)
    finally:
        engine.close_blocking()
