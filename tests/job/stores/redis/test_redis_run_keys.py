"""Keys of runs on Redis: slots, deletion, documentation, rights, precision of numbers."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from redis_store_client import RedisStoreClient, keys_of

from backstay.engine.redis.topology.slots import slot_of
from backstay.job.ids import shard_of
from backstay.job.model import Concurrency, Unique
from backstay.job.run_model import Artifact, TokenRecord
from backstay.testing.servers import RedisServer
from backstay.testing.servers.redis import say

pytestmark = pytest.mark.redis
DAY = 86_400_000_000
BIG_NOW = 1_794_814_854_384_821


def start_every_kind(client, shard=0):
    """Start a run that uses every feature, so that every kind of key exists. Returns its id."""
    run, ids = client.start_run(
        {
            "a": ([],),
            "late": ([], {"delay": 1000}),
            **{f"b{nth}": (["a"],) for nth in range(12)},
            "many": ([f"b{nth}" for nth in range(12)], {"when": "all_done"}),
            "wide": (["a", "late", *(f"b{nth}" for nth in range(12)), "many"], {"when": "any_failure"}),
            "most": (["a", "late", *(f"b{nth}" for nth in range(12)), "many", "wide"], {"when": "all_done"}),
        },
        shard,
        timeout=60_000_000,
    )
    job = next(job for job in client.claim(2, shard=shard) if job.id == ids["a"])
    client.apply("append_log", job.id, job.fence, [(1, "stdout", "hello")], 1)
    for part, last in ((0, False), (1, True)):
        client.apply(
            "put_artifact", Artifact(job=job.id, name="f", size=2, digest="d"), job.fence, part, b"x", last=last
        )
    client.apply("put_artifact", Artifact(job=job.id, name="half", size=9, digest="e"), job.fence, 0, b"x", last=False)
    added, following = client.job(shard, after=(job.id,)), client.job(shard)
    client.finish(job, result=b"r", adds=(added,), next=following, outputs={"k": "v"})
    return run


def test_all_keys_of_a_run_share_its_shards_slot(clients, backstay_redis, namespace):
    client = clients(shards=8)
    for shard in range(8):
        run = start_every_kind(client, shard)
        assert shard_of(run) == shard
    found = keys_of(backstay_redis, namespace)
    for shard in range(8):
        tag = f"{{{namespace}:s{shard}}}:"
        mine = {key for key in found if key.startswith(tag)}
        assert len(mine) > 20
        assert len({slot_of(key.encode()) for key in mine}) == 1
        found -= mine
    assert not found


def test_definitions_and_tokens_are_stored_in_the_first_shard(clients, backstay_redis, namespace):
    client = clients(shards=8)
    client.apply("put_definition", "flow", "d", b"doc")
    client.apply("put_token", TokenRecord(id="t", digest=b"hash", role="admin"))
    assert {key.partition("}:")[0] for key in keys_of(backstay_redis, namespace)} == {f"{{{namespace}:s0"}


def test_pruning_a_run_deletes_all_its_keys(clients, backstay_redis, namespace):
    client = clients(now=time.time_ns() // 1000)
    run = start_every_kind(client)
    client.now += 2000
    client.drain()
    assert client.apply("get_run", run).status == "success"
    client.now += 8 * DAY
    assert client.apply("prune", 0, 0) > 10
    lasting = {key for key in keys_of(backstay_redis, namespace) if say(backstay_redis, "PTTL", key) < 0}
    assert {key.partition("}:")[2] for key in lasting} == {"meta"}
    assert client.apply("list_runs") == []
    assert client.apply("list_jobs") == []


def test_every_key_is_documented():
    page = (Path(__file__).parents[4] / "docs/reference/redis-keys.md").read_text("utf-8")
    named = set(re.findall(r"`([a-z-]+)[:`]", page.partition("## Where")[0]))
    used = set()
    for path in (Path(__file__).parents[4] / "src/backstay/job/stores/redis/lua").rglob("*.lua"):
        text = path.read_text("utf-8")
        used |= set(re.findall(r"(?:SHARD \.\. |call_batched\('[A-Z]+', |get_fields\()'([a-z-]+)", text))
    assert len(used) > 40
    assert used - named == set()


def test_the_documented_rights_are_sufficient_for_runs():
    page = (Path(__file__).parents[4] / "docs/reference/redis-keys.md").read_text("utf-8")
    rights = page.partition("## Rights")[2].partition("```")[2].partition("```")[0].split()
    base = ["resetchannels", "&backstay:*", "-@all", "+hello", "+auth", "+client|setname", "+info", "+eval", "+evalsha"]
    with RedisServer() as server:
        say(server, "ACL", "SETUSER", "app", "on", ">word", "resetkeys", *base, *rights)
        url = server.url.replace("redis://", "redis://app:word@")
        client = RedisStoreClient(url, "backstay", now=time.time_ns() // 1000)
        run = start_every_kind(client)
        client.apply("put_definition", "flow", "d", b"doc")
        client.apply("list_definitions")
        client.apply("put_token", TokenRecord(id="t", digest=b"hash", role="admin"))
        assert client.apply("drop_token", "t")
        client.apply("cancel_run", run, "why")
        client.now += 2000
        client.drain()
        client.apply("rerun_failed", run)
        client.drain()
        assert client.apply("check_runs", 0) == []
        for concurrency in (Concurrency("few", 1), None):
            for _ in range(3):
                client.add(concurrency=concurrency, unique=Unique(f"{len(client.apply('list_jobs'))}", "until_done"))
        client.drain(at_once=2)
        client.apply("read_outbox", 0)
        client.apply("queues")
        assert client.apply("events", 0, "$").cursor == client.apply("events", 0).cursor
        client.now += 40 * DAY
        assert client.apply("prune", 0, 0) > 10
        client.close()


def test_times_and_numbers_of_a_run_keep_full_precision(clients):
    """Lua's own formatting would drop the last digits of numbers of this size."""
    client = clients(now=BIG_NOW)
    run, ids = client.start_run({"a": ([],)}, timeout=7_000_000)
    client.now += 1
    (job,) = client.claim()
    client.now += 2
    client.finish(job)
    found = client.apply("get_run", run)
    assert (found.created, found.started, found.finished) == (BIG_NOW, BIG_NOW + 1, BIG_NOW + 3)
    assert found.deadline == BIG_NOW + 7_000_000
    assert [event.at - BIG_NOW for event in client.apply("run_events", run)] == [0, 0, 1, 3, 3]
    assert client.apply("list_jobs", run=run)[0].id == ids["a"]
