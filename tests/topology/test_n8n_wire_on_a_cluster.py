"""`wire="n8n"` on a real Cluster: the keys of a scope must share a slot, and n8n uses the scope unchanged in them."""

from __future__ import annotations

import asyncio

import pytest
from redis.cluster import RedisCluster as Client

import backstay
from backstay import ConfigError
from backstay.engine.redis.topology.slots import slot_of
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.gate.machine import lock_keys

pytestmark = pytest.mark.redis


@pytest.fixture
def stay(quiet_cluster, connect):
    return connect(quiet_cluster.url)


@pytest.mark.parametrize("scope", ["excel-42", "a{}b", "a{b", "}a{", "{}"])
def test_a_scope_without_a_hash_tag_is_refused(stay, scope):
    with pytest.raises(ConfigError, match="hash tag"):
        stay.lock(scope, wire="n8n")
    with pytest.raises(ConfigError, match="hash tag"):
        stay.locks.cleanup("1", [scope], wire="n8n")


@pytest.mark.parametrize("scope", ["{a}", "excel-{42}", "{{a}", "{a}{b}", "x{a}:meta", "{a\n}ü"])
def test_all_keys_of_a_tagged_scope_share_a_slot(scope):
    assert len({slot_of(key.encode()) for key in lock_keys("backstay", scope)}) == 1


def test_a_tagged_scope_is_locked_on_each_node(stay, quiet_cluster, namespace):
    client = Client.from_url(quiet_cluster.url.replace("redis+cluster", "redis").split(",")[0], decode_responses=True)
    for number in range(12):
        scope = f"{{{namespace}-{number}}}"
        with stay.lock(scope, wire="n8n", ttl=60) as lease:
            assert client.get(keys.lock_key(scope)) == "1"
            assert lease.id in client.get(keys.meta_key(scope))
            assert stay.lock(scope, wire="n8n").try_acquire() is None
        assert client.get(keys.lock_key(scope)) is None
    client.close()


def test_a_limit_needs_no_tag(quiet_cluster, namespace):
    async def main():
        async with backstay.Backstay(quiet_cluster.url, namespace=namespace) as stay:
            for number in range(12):
                limit = stay.limit("api", "1/10000000s", wire="n8n")
                assert (await limit.hit(f"{namespace}-{number}")).count == 1
                assert (await limit.hit(f"{namespace}-{number}")).count == 2

    asyncio.run(main())
