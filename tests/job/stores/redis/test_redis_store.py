"""Jobs on Redis, beyond the conformance suite: keys, slots, scripts, lost data, numbers of shards, cron."""

from __future__ import annotations

import asyncio
import time

import pytest
from redis_store_client import LEASE, RedisStoreClient, keys_of

from backstay.engine.redis.topology.slots import slot_of
from backstay.errors import ConfigError
from backstay.job.exchange import Renewal
from backstay.job.model import Concurrency, Failure, StartRate, Tick, Unique, WorkerRecord
from backstay.testing.servers import RedisSentinel, RedisServer
from backstay.testing.servers.redis import say
from support.servers import running
from support.store_client import finish

pytestmark = pytest.mark.redis
DAY = 86_400_000_000


def enqueue_every_kind(client):
    """Enqueue jobs with every option, so that every kind of key exists."""
    first = client.add(labels=("gpu",), priority=5)
    client.add(after=(first,), when="all_done")
    client.add(after=(first,))
    client.add(unique=Unique("one", "until_done"))
    client.add(unique=Unique("two", "until_start"))
    client.add(unique=Unique("three", "window", 60_000_000))
    for _ in range(4):
        client.add(concurrency=Concurrency("few", 1), rate=StartRate("slow", 1, 1000))
    client.add(queue="other", delay=1000)
    client.apply("enqueue", 0, [client.job(), client.job(run="r1")])
    client.apply("limit_queue", "default", StartRate("q", 1, 1000))
    client.apply("pause", "third", paused=True)
    client.apply("heartbeat", WorkerRecord(id=client.name))
    client.apply("ticks", ["nightly"])


def finish_all(client):
    """Claim and finish jobs until none is left, and return their number."""
    finished = continued = 0
    while True:
        jobs = client.claim(3, labels=("gpu",), queues=(("default",), ("other",)))
        if not jobs:
            return finished
        for job in jobs:
            client.apply("append_log", job.id, job.fence, [(1, "stdout", "hello")], 1)
            client.apply("put_outputs", job.id, job.fence, {"key": "value"})
            client.apply("watch", job.id, chain=True)
        for job in jobs:
            following = client.job() if continued < 3 else None
            continued += 1
            kind = "fail" if job.priority else "complete"
            client.finish(job, kind, next=following if kind == "complete" else None, error=Failure("E", "x"))
            finished += 1


def test_all_keys_of_a_shard_share_its_slot(clients, backstay_redis, namespace):
    client = clients()
    enqueue_every_kind(client)
    client.claim(5, labels=("gpu",))
    found = keys_of(backstay_redis, namespace)
    assert len(found) > 15
    assert {slot_of(key.encode()) for key in found} == {slot_of(f"{{{namespace}:s0}}:".encode())}


def test_a_namespace_with_braces_keeps_its_slot(clients, backstay_redis):
    client = clients(namespace="odd{name}%")
    enqueue_every_kind(client)
    assert len({slot_of(key.encode()) for key in keys_of(backstay_redis, "odd%7Bname%7D%25")}) == 1


def test_every_key_expires_or_has_an_owner(clients, backstay_redis, namespace):
    """After all jobs have been finished and pruned, only settings, cron ticks and the shard's own record are left."""
    client = clients(now=time.time_ns() // 1000)
    enqueue_every_kind(client)
    client.now += 2000
    assert finish_all(client) > 10
    assert not {key for key in keys_of(backstay_redis, namespace) if ":lane" in key or ":park" in key}
    client.apply("unregister_worker", client.name)
    client.now += 31 * DAY
    while client.apply("prune", 0, 0):
        pass
    kept = keys_of(backstay_redis, namespace)
    lasting = {key.partition("}:")[2] for key in kept if say(backstay_redis, "PTTL", key) < 0}
    assert lasting == {"meta", "queues", "cron"}


def test_the_channel_state_expires_after_two_leases(clients, backstay_redis, namespace):
    client = clients()
    client.claim(1, lease=5_000_000)
    (key,) = [key for key in keys_of(backstay_redis, namespace) if ":reply:" in key]
    assert 9_000 < say(backstay_redis, "PTTL", key) <= 10_000


def test_scripts_that_the_server_lost_are_reloaded(clients, backstay_redis):
    client = clients()
    for _ in range(2):
        say(backstay_redis, "SCRIPT", "FLUSH")
        client.add()
        say(backstay_redis, "SCRIPT", "FLUSH")
        (job,) = client.claim()
        say(backstay_redis, "SCRIPT", "FLUSH")
        assert client.apply("renew", 0, client.name, LEASE, [Renewal(job.id, job.fence)]) == ["ok"]
        assert client.finish(job).verdicts == ("ok",)


def test_fences_and_times_keep_full_precision(clients):
    """Lua's own formatting would drop the last digits of numbers of this size."""
    client = clients(now=1_794_814_854_384_821)
    ids = [client.add() for _ in range(3)]
    jobs = client.claim(3)
    assert [job.id for job in jobs] == ids
    assert [job.fence for job in jobs] == [client.now, client.now + 1, client.now + 2]
    client.add()
    (last,) = client.claim()
    assert last.fence == client.now + 3
    seen = client.apply("get", last.id)
    assert (seen.lease_until, seen.due, seen.started) == (client.now + LEASE, client.now, client.now)


def test_a_server_that_lost_everything_neither_hangs_nor_confuses_workers(namespace):
    with RedisServer() as server:
        client = RedisStoreClient(server.url, namespace)
        client.add()
        (job,) = client.claim()
        server.restart()
        command = client.command([finish(job)], want=5)
        assert client.apply("renew", 0, client.name, LEASE, [Renewal(job.id, job.fence)]) == ["lost"]
        reply = client.apply("exchange", command)
        assert (reply.verdicts, reply.jobs, reply.next_in) == (("stale",), (), None)
        assert client.apply("get", job.id) is None
        assert client.apply("watch", job.id, chain=True) is None
        client.add()
        (again,) = client.claim()
        assert again.fence > job.fence
        assert client.finish(again).verdicts == ("ok",)
        client.close()


def test_index_entries_without_a_record_hide_no_job(clients, backstay_redis, namespace):
    client = clients()
    lost = [client.add() for _ in range(5)]
    kept = client.add()
    say(backstay_redis, "HDEL", f"{{{namespace}:s0}}:job", *lost)
    assert [job.id for job in client.claim(3)] == [kept]


def test_another_number_of_shards_is_a_config_error(clients):
    clients(shards=1).add()
    with pytest.raises(ConfigError, match=r"in 1 shards, .* configured for 8"):
        clients(shards=8).add(5)


def test_a_concurrently_changed_number_of_shards_is_a_config_error(clients, backstay_redis, namespace):
    """After a data loss another client set another number of shards; this process has cached the old one."""
    client = clients(shards=1)
    client.add()
    say(backstay_redis, "DEL", *keys_of(backstay_redis, namespace))
    clients(shards=8).add()
    for call in (client.add, client.claim):
        with pytest.raises(ConfigError, match=r"in 8 shards, .* configured for 1"):
            call()


def test_the_number_of_shards_is_fixed_whichever_shard_comes_first(clients):
    clients(shards=8).add(7)
    with pytest.raises(ConfigError, match="pass shards=8"):
        clients(shards=1).claim()


@pytest.mark.parametrize("shards", [0, -1, 257])
def test_a_bad_number_of_shards_is_a_config_error(clients, shards):
    with pytest.raises(ConfigError, match="shards"):
        clients(shards=shards)


def test_a_nonexistent_shard_is_a_config_error(clients):
    with pytest.raises(ConfigError, match="shard 8 does not exist"):
        clients(shards=8).apply("reap", 8)


def test_a_job_of_another_shard_is_a_config_error(clients):
    client = clients(shards=8)
    with pytest.raises(ConfigError, match="does not belong to shard 3"):
        client.apply("enqueue", 3, [client.job(4)])
    with pytest.raises(ConfigError, match="does not belong to shard 3"):
        client.apply("enqueue", 3, [client.job(4), client.job(3)])


def test_jobs_go_through_sentinels(namespace):
    with running(RedisSentinel(down_after=5)) as group:
        client = RedisStoreClient(group.url, namespace)
        client.add()
        assert client.finish(client.claim()[0]).verdicts == ("ok",)

        async def use_the_async_api():
            (made,) = await client.engine.submit(client.store.enqueue(0, [client.job()]))
            reply = await client.engine.submit(client.store.exchange(client.command(want=1)))
            assert [job.id for job in reply.jobs] == [made.id]
            await client.engine.close()

        asyncio.run(use_the_async_api())


def test_a_repeated_tick_creates_one_job(clients):
    client = clients()
    job = client.job()
    tick = Tick(name="nightly", at=client.engine.now() + 1, job=job)
    assert client.apply("tick", tick) is True
    assert client.apply("tick", tick) is True
    assert client.apply("tick", Tick(name="nightly", at=tick.at, job=client.job())) is False
    assert [each.id for each in client.apply("list_jobs")] == [job.id]


def test_a_chain_successor_takes_no_unique_key_from_another_job(clients):
    """The successor is stored without the key, since the exchange that completes its predecessor must not fail."""
    client = clients()
    unique = Unique("u", "until_done")
    holder = client.add(unique=unique, labels=("elsewhere",))
    first = client.add()
    (job,) = client.claim()
    follower = client.job(unique=unique, chain=first)
    client.finish(job, next=follower)
    (job,) = client.claim()
    assert (job.id, job.chain) == (follower.id, first)
    client.finish(job, result=b"R")
    assert client.apply("watch", first, chain=True).result == b"R"
    (again,) = client.apply("enqueue", 0, [client.job(unique=unique)])
    assert (again.id, again.deduplicated) == (holder, True)


def test_waiting_for_a_chain_successor_is_a_config_error(clients):
    """Only the end of its chain is announced, so a job that waited for the successor alone would wait forever."""
    client = clients()
    first = client.add()
    (job,) = client.claim()
    follower = client.job(chain=first)
    client.finish(job, next=follower)
    (job,) = client.claim()
    with pytest.raises(ConfigError, match=follower.id):
        client.add(after=(follower.id,))
    client.finish(job)
    with pytest.raises(ConfigError, match=follower.id):
        client.add(after=(follower.id,))
    assert client.apply("get", client.add(after=(first,))).state == "pending"
