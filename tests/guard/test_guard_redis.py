"""Guarded keys on a real server, through redis-py."""

from __future__ import annotations

import asyncio

import pytest
import redis
import redis.asyncio
from redis.crc import key_slot

from backstay import ConfigError, StaleFence
from backstay.guard.redis import FENCE_LIFE, fence_key, read_source

pytestmark = pytest.mark.redis


@pytest.fixture
def client(backstay_redis):
    client = redis.Redis(port=backstay_redis.port, db=8)
    client.flushdb()
    yield client
    client.close()


def test_an_older_fence_sets_and_deletes_nothing(stay, leases, client):
    older, newer = leases
    stay.guard(newer).redis(client).set("k", "second")
    for late in (
        lambda: stay.guard(older).redis(client).set("k", "late"),
        lambda: stay.guard(older).redis(client).delete("k"),
    ):
        with pytest.raises(StaleFence) as refused:
            late()
        assert (refused.value.fence, refused.value.newer) == (older.fence, newer.fence)
    assert client.get("k") == b"second"


def test_plain_readers_read_the_value(stay, leases, client):
    for value, read in ((b"\x00\xff", b"\x00\xff"), ("ümlaut", "ümlaut".encode()), (10**15, b"1000000000000000")):
        stay.guard(leases[1]).redis(client).set("k", value)
        assert client.get("k") == read


def test_the_same_holder_writes_again(stay, leases, client):
    guarded = stay.guard(leases[1]).redis(client)
    guarded.set("k", 1)
    guarded.set("k", 2)
    guarded.delete("k")
    assert client.get("k") is None
    guarded.set("k", 3)
    assert client.get("k") == b"3"


def test_a_late_write_does_not_recreate_a_deleted_key(stay, leases, client):
    older, newer = leases
    stay.guard(newer).redis(client).delete("k")
    with pytest.raises(StaleFence):
        stay.guard(older).redis(client).set("k", "late")
    assert client.get("k") is None
    assert 0 < client.pttl("{k}:fence") <= FENCE_LIFE * 1000


def test_a_fence_outlives_its_value_by_a_day(stay, leases, client):
    stay.guard(leases[1]).redis(client).set("k", "v", ttl=10)
    assert 0 < client.pttl("k") <= 10_000
    assert FENCE_LIFE * 1000 < client.pttl("{k}:fence") <= FENCE_LIFE * 1000 + 10_000


def test_the_ttl_of_a_fence_never_gets_shorter(stay, leases, client):
    guarded = stay.guard(leases[1]).redis(client)
    guarded.set("k", "v", ttl=1000)
    guarded.set("k", "v", ttl=10)
    assert client.pttl("{k}:fence") > (FENCE_LIFE + 900) * 1000
    guarded.set("k", "v")
    assert client.pttl("k") == client.pttl("{k}:fence") == -1
    guarded.set("k", "v", ttl=10)
    assert client.pttl("{k}:fence") == -1


def test_adjacent_large_fences_compare_as_different(client):
    """Lua formats numbers from 10^14 on with rounding, which would make two fences equal."""
    script = client.register_script(read_source("set"))
    newest = 2**53 - 1
    assert script(keys=["k", "{k}:fence"], args=[newest, 1, 0, 0, "new"]) == b""
    assert script(keys=["k", "{k}:fence"], args=[newest - 1, 2, 0, 0, "old"]) == str(newest).encode()
    assert client.get("{k}:fence") == f"{newest} 1".encode()
    assert client.get("k") == b"new"


def test_a_late_copy_of_an_earlier_write_changes_nothing(stay, leases, client):
    """A retrying client may leave a first copy in flight; it must not undo a later write of the same holder."""
    sent = []

    class Recording(redis.Redis):
        def execute_command(self, *args, **options):
            sent.append(args)
            return super().execute_command(*args, **options)

    recording = Recording(connection_pool=client.connection_pool)
    guarded = stay.guard(leases[1]).redis(recording)
    guarded.set("k", "first")
    copy = sent[-1]
    client.execute_command(*copy)  # a resend without a write in between succeeds
    guarded.set("k", "second")
    assert client.execute_command(*copy) == b""
    assert client.get("k") == b"second"
    guarded.delete("k")
    client.execute_command(*copy)
    assert client.get("k") is None


def test_an_invalid_stored_fence_is_an_error_and_nothing_is_written(stay, leases, client):
    client.set("{k}:fence", "soon")
    with pytest.raises(redis.ResponseError, match="not a fence"):
        stay.guard(leases[1]).redis(client).set("k", "v")
    assert client.get("k") is None


@pytest.mark.parametrize("key", ["k", "a:b", "{user:7}:cart", "x{y}z", "{x", "ünï", "a{b"])
def test_a_fence_key_shares_the_cluster_slot_of_its_key(key):
    assert key_slot(fence_key(key).encode()) == key_slot(key.encode())


@pytest.mark.parametrize("key", ["a}b", "{}x", "", "x" * 600])
def test_a_key_that_cannot_have_a_fence_key_is_refused(stay, leases, client, key):
    with pytest.raises(ConfigError):
        stay.guard(leases[1]).redis(client).set(key, "v")


def test_an_async_client_is_awaited(stay, leases, backstay_redis, client):
    older, newer = leases

    async def main():
        async with redis.asyncio.Redis(port=backstay_redis.port, db=8, decode_responses=True) as waiting:
            await stay.guard(newer).redis(waiting).set("k", "v")
            with pytest.raises(StaleFence) as refused:
                await stay.guard(older).redis(waiting).set("k", "late")
            assert refused.value.newer == newer.fence
            with pytest.raises(StaleFence):
                await stay.guard(older).redis(waiting).delete("k")

    asyncio.run(main())
    assert client.get("k") == b"v"
