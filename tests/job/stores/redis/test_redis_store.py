"""What only a Redis store can get wrong: keys, slots, lost replies, scripts it has not seen, data that is gone."""

from __future__ import annotations

import asyncio
import time

import pytest
from redis_store_client import LEASE, RedisStoreClient

from backstay.engine.redis.topology.slots import slot_of
from backstay.errors import ConfigError, EngineError, OutcomeUnknown
from backstay.job.model import Concurrency, Failure, Finish, Rate, Renewal, Tick, Unique, Worker
from backstay.testing.plugin import started_or_skip
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisSentinel, RedisServer
from backstay.testing.servers.redis import say

pytestmark = pytest.mark.redis

DAY = 86_400_000_000


@pytest.fixture
def clients(backstay_redis, namespace):
    made = []

    def make(url=backstay_redis.url, **options):
        made.append(RedisStoreClient(url, options.pop("namespace", namespace), **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


def keys_of(server, namespace):
    return {key.decode() for key in say(server, "KEYS", f"*{namespace}*")}


def everything(client):
    """One of each: what jobs can leave behind in Redis."""
    first = client.add(labels=("gpu",), priority=5)
    client.add(after=(first,), when="all_done")
    client.add(after=(first,))
    client.add(unique=Unique("one", "until_done"))
    client.add(unique=Unique("two", "until_start"))
    client.add(unique=Unique("three", "window", 60_000_000))
    for _ in range(4):
        client.add(concurrency=Concurrency("few", 1), rate=Rate("slow", 1, 1000))
    client.add(queue="other", delay=1000)
    client.ask("enqueue", 0, [client.job(), client.job(run="r1")])
    client.ask("limit_queue", "default", Rate("q", 1, 1000))
    client.ask("pause", "third", paused=True)
    client.ask("heartbeat", Worker(id=client.name))
    client.ask("ticks", ["nightly"])


def finish_all(client):
    """Work until nothing is left to be taken."""
    ended = continued = 0
    while True:
        jobs = client.take(3, labels=("gpu",), queues=(("default",), ("other",)))
        if not jobs:
            return ended
        for job in jobs:
            client.ask("append_log", job.id, job.fence, [(1, "stdout", "hello")], 1)
            client.ask("put_outputs", job.id, job.fence, {"key": "value"})
            client.ask("watch", job.id, chain=True)
        for job in jobs:
            following = client.job() if continued < 3 else None
            continued += 1
            kind = "fail" if job.priority else "complete"
            client.end(job, kind, next=following if kind == "complete" else None, error=Failure("E", "x"))
            ended += 1


def test_all_keys_of_a_shard_share_its_slot(clients, backstay_redis, namespace):
    client = clients()
    everything(client)
    client.take(5, labels=("gpu",))
    found = keys_of(backstay_redis, namespace)
    assert len(found) > 15
    assert {slot_of(key.encode()) for key in found} == {slot_of(f"{{{namespace}:s0}}:".encode())}


def test_a_namespace_with_braces_keeps_its_slot(clients, backstay_redis):
    client = clients(namespace="odd{name}%")
    everything(client)
    assert len({slot_of(key.encode()) for key in keys_of(backstay_redis, "odd%7Bname%7D%25")}) == 1


def test_every_key_expires_or_has_an_owner(clients, backstay_redis, namespace):
    """When all jobs have ended and their time is over, only settings, cron and the shard's own record stay."""
    client = clients(now=time.time_ns() // 1000)
    everything(client)
    client.now += 2000
    assert finish_all(client) > 10
    assert not {key for key in keys_of(backstay_redis, namespace) if ":lane" in key or ":park" in key}
    client.ask("unregister_worker", client.name)
    client.now += 31 * DAY
    while client.ask("prune", 0, 0):
        pass
    kept = keys_of(backstay_redis, namespace)
    lasting = {key.partition("}:")[2] for key in kept if say(backstay_redis, "PTTL", key) < 0}
    assert lasting == {"meta", "queues", "cron"}


def test_the_channel_state_expires_after_two_leases(clients, backstay_redis, namespace):
    client = clients()
    client.take(1, lease=5_000_000)
    (key,) = [key for key in keys_of(backstay_redis, namespace) if ":memory:" in key]
    assert 9_000 < say(backstay_redis, "PTTL", key) <= 10_000


def test_scripts_that_the_server_lost_are_reloaded(clients, backstay_redis):
    client = clients()
    for _ in range(2):
        say(backstay_redis, "SCRIPT", "FLUSH")
        client.add()
        say(backstay_redis, "SCRIPT", "FLUSH")
        (job,) = client.take()
        say(backstay_redis, "SCRIPT", "FLUSH")
        assert client.ask("renew", 0, client.name, LEASE, [Renewal(job.id, job.fence)]) == ["ok"]
        assert client.end(job).verdicts == ("ok",)


def test_fences_and_times_keep_full_precision(clients):
    """Numbers of this size lose their last digits where Lua prints them its own way."""
    client = clients(now=1_794_814_854_384_821)
    ids = [client.add() for _ in range(3)]
    jobs = client.take(3)
    assert [job.id for job in jobs] == ids
    assert [job.fence for job in jobs] == [client.now, client.now + 1, client.now + 2]
    client.add()
    (last,) = client.take()
    assert last.fence == client.now + 3
    seen = client.ask("get", last.id)
    assert (seen.lease_until, seen.due, seen.started) == (client.now + LEASE, client.now, client.now)


# ── lost replies ──


@pytest.fixture
def proxied(backstay_redis, clients):
    with FaultProxy(backstay_redis.port) as proxy:
        yield proxy, clients(f"{proxy.url}?timeout=0.5")


def test_a_resent_exchange_gets_the_same_reply(proxied, clients):
    proxy, client = proxied
    ids = [client.add() for _ in range(3)]
    first = client.take(1)[0]
    command = client.command([Finish(job=first.id, fence=first.fence, kind="complete", result=b"r")], want=5)
    proxy.once("cut-after", b"EVALSHA")
    with pytest.raises(OutcomeUnknown):
        client.ask("exchange", command)
    assert clients(name="other").take(5) == ()
    reply = client.ask("exchange", command)
    assert reply.verdicts == ("ok",)
    assert [job.id for job in reply.jobs] == ids[1:]
    assert [client.ask("get", id_).attempt for id_ in ids] == [1, 1, 1]


def test_an_enqueue_whose_reply_was_lost_creates_one_job(proxied):
    proxy, client = proxied
    client.add()
    job, other = client.job(unique=Unique("key", "until_done")), client.job()
    for _ in range(2):
        proxy.once("cut-after", b"EVALSHA")
        with pytest.raises(OutcomeUnknown):
            client.ask("enqueue", 0, [job, other])
    made = client.ask("enqueue", 0, [job, other])
    assert [(each.id, each.deduplicated) for each in made] == [(job.id, False), (other.id, False)]
    assert len(client.ask("list_jobs")) == 3


def test_a_late_exchange_from_an_abandoned_connection_changes_nothing(proxied, clients):
    proxy, client = proxied
    id_ = client.add()
    held = proxy.once("hold", b"EVALSHA")
    command = client.command(want=1)
    with pytest.raises(OutcomeUnknown):
        client.ask("exchange", command)
    assert held.struck.is_set()
    (job,) = client.ask("exchange", command).jobs
    client.end(job)
    proxy.deliver_held()
    seen = client.ask("get", id_)
    assert (seen.state, seen.attempt) == ("completed", 1)


def test_no_job_runs_twice_when_most_replies_are_lost(proxied, clients):
    proxy, client = proxied
    ids = [made.id for made in client.ask("enqueue", 0, [client.job() for _ in range(60)])]
    proxy.rule("cut-after", b"EVALSHA", chance=0.6)
    finishes, runs = [], []
    while True:
        command = client.command(finishes, want=4)
        for _ in range(40):
            try:
                reply = client.ask("exchange", command)
                break
            except EngineError:
                continue
        else:
            pytest.fail("no step got through")
        assert set(reply.verdicts) <= {"ok"}
        if not reply.jobs:
            break
        runs += [job.id for job in reply.jobs]
        finishes = [Finish(job=job.id, fence=job.fence, kind="complete") for job in reply.jobs]
    assert proxy.struck["cut-after"] > 5
    assert sorted(runs) == sorted(ids)
    assert {job.state for job in clients().ask("list_jobs", limit=100)} == {"completed"}


# ── data that is gone ──


def test_a_server_that_lost_everything_neither_hangs_nor_confuses_workers(namespace):
    with RedisServer() as server:
        client = RedisStoreClient(server.url, namespace)
        client.add()
        (job,) = client.take()
        server.restart()
        command = client.command([Finish(job=job.id, fence=job.fence, kind="complete")], want=5)
        with pytest.raises(EngineError):
            client.ask("renew", 0, client.name, LEASE, [Renewal(job.id, job.fence)])
        assert client.ask("renew", 0, client.name, LEASE, [Renewal(job.id, job.fence)]) == ["lost"]
        reply = client.ask("exchange", command)
        assert (reply.verdicts, reply.jobs, reply.next_in) == (("stale",), (), None)
        assert client.ask("get", job.id) is None
        assert client.ask("watch", job.id, chain=True) is None
        client.add()
        (again,) = client.take()
        assert again.fence > job.fence
        assert client.end(again).verdicts == ("ok",)
        client.close()


def test_index_entries_without_a_record_hide_no_job(clients, backstay_redis, namespace):
    client = clients()
    lost = [client.add() for _ in range(5)]
    kept = client.add()
    say(backstay_redis, "HDEL", f"{{{namespace}:s0}}:job", *lost)
    assert [job.id for job in client.take(3)] == [kept]


# ── shards ──


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
    for ask in (client.add, client.take):
        with pytest.raises(ConfigError, match=r"in 8 shards, .* configured for 1"):
            ask()


def test_the_number_of_shards_is_fixed_whichever_shard_comes_first(clients):
    clients(shards=8).add(7)
    with pytest.raises(ConfigError, match="pass shards=8"):
        clients(shards=1).take()


@pytest.mark.parametrize("shards", [0, -1, 257])
def test_a_bad_number_of_shards_is_a_config_error(clients, shards):
    with pytest.raises(ConfigError, match="shards"):
        clients(shards=shards)


def test_a_nonexistent_shard_is_a_config_error(clients):
    with pytest.raises(ConfigError, match="shard 8 does not exist"):
        clients(shards=8).ask("reap", 8)


def test_a_job_of_another_shard_is_a_config_error(clients):
    client = clients(shards=8)
    with pytest.raises(ConfigError, match="does not belong to shard 3"):
        client.ask("enqueue", 3, [client.job(4)])
    with pytest.raises(ConfigError, match="does not belong to shard 3"):
        client.ask("enqueue", 3, [client.job(4), client.job(3)])


# ── one loop's enqueues travel together ──


def test_enqueues_of_many_tasks_take_few_scripts(clients, backstay_redis):
    client = clients()
    client.add()
    before = int(say(backstay_redis, "INFO", "commandstats").partition(b"evalsha:calls=")[2].partition(b",")[0])

    async def all_at_once():
        jobs = [client.job() for _ in range(500)]
        made = await asyncio.gather(*[client.engine.submit(client.store.enqueue(0, [job])) for job in jobs])
        assert [each.id for (each,) in made] == [job.id for job in jobs]
        await client.engine.close()

    asyncio.run(all_at_once())
    after = int(say(backstay_redis, "INFO", "commandstats").partition(b"evalsha:calls=")[2].partition(b",")[0])
    assert after - before < 100


def test_a_cancelled_task_does_not_cancel_others_of_its_batch(clients):
    client = clients()

    async def some_give_up():
        jobs = [client.job() for _ in range(100)]
        tasks = [asyncio.ensure_future(client.engine.submit(client.store.enqueue(0, [job]))) for job in jobs]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        await client.engine.close()
        return [job.id for job, answer in zip(jobs, done, strict=True) if not isinstance(answer, BaseException)]

    kept = asyncio.run(some_give_up())
    assert len(kept) >= 66
    look = clients()
    assert all(look.ask("get", id_) for id_ in kept)


def test_every_waiting_task_fails_when_the_server_is_gone(namespace):
    with RedisServer() as server:
        client = RedisStoreClient(server.url, namespace)

        async def into_the_void():
            await client.engine.submit(client.store.enqueue(0, [client.job()]))
            server.kill()
            tasks = [client.engine.submit(client.store.enqueue(0, [client.job()])) for _ in range(100)]
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            server.start()
            (made,) = await client.engine.submit(client.store.enqueue(0, [client.job()]))
            await client.engine.close()
            return answers, made

        answers, made = asyncio.run(into_the_void())
        assert all(isinstance(answer, EngineError) for answer in answers)
        assert made.state == "pending"


# ── many, and through Sentinels ──


@pytest.mark.parametrize("fields", [{}, {"run": "r"}], ids=["plain", "with a run"])
def test_more_jobs_than_a_script_call_takes_arguments(clients, fields):
    client = clients()
    jobs = [client.job(**fields) for _ in range(7001)]
    made = client.ask("enqueue", 0, [*jobs, jobs[0]])
    assert [each.id for each in made] == [job.id for job in jobs] + [jobs[0].id]
    assert [job.id for job in client.take(7001)] == [job.id for job in jobs]
    (queue,) = client.ask("queues")
    assert (queue.pending, queue.running) == (0, 7001)


def test_a_thousand_wait_for_one_and_one_for_a_thousand(clients):
    client = clients()
    first = client.add()
    waiting = [client.job(after=(first,)) for _ in range(1000)]
    client.ask("enqueue", 0, waiting)
    client.end(client.take()[0], result=b"r")
    jobs = client.take(1000)
    assert [job.id for job in jobs] == [job.id for job in waiting]
    assert all(job.upstream == {first: b"r"} for job in jobs)
    last = client.add(after=tuple(job.id for job in jobs), queue="last")
    client.exchange([Finish(job=job.id, fence=job.fence, kind="complete") for job in jobs])
    (job,) = client.take(queues=(("last",),))
    assert (job.id, len(job.upstream)) == (last, 1000)


def test_jobs_go_through_sentinels(namespace):
    group = RedisSentinel(down_after=5)
    try:
        started_or_skip(group)
        client = RedisStoreClient(group.url, namespace)
        client.add()
        assert client.end(client.take()[0]).verdicts == ("ok",)

        async def by_the_loop():
            (made,) = await client.engine.submit(client.store.enqueue(0, [client.job()]))
            reply = await client.engine.submit(client.store.exchange(client.command(want=1)))
            assert [job.id for job in reply.jobs] == [made.id]
            await client.engine.close()

        asyncio.run(by_the_loop())
    finally:
        group.stop()


# ── cron ──


def test_a_repeated_tick_creates_one_job(clients):
    client = clients()
    job = client.job()
    tick = Tick(name="nightly", at=client.engine.now() + 1, job=job)
    assert client.ask("tick", tick) is True
    assert client.ask("tick", tick) is True
    assert client.ask("tick", Tick(name="nightly", at=tick.at, job=client.job())) is False
    assert [each.id for each in client.ask("list_jobs")] == [job.id]


def test_a_chain_successor_takes_no_unique_key_from_another_job(clients):
    """The chain goes on all the same."""
    client = clients()
    unique = Unique("u", "until_done")
    holder = client.add(unique=unique, labels=("elsewhere",))
    first = client.add()
    (job,) = client.take()
    follower = client.job(unique=unique, chain=first)
    client.end(job, next=follower)
    (job,) = client.take()
    assert (job.id, job.chain) == (follower.id, first)
    client.end(job, result=b"R")
    assert client.ask("watch", first, chain=True).result == b"R"
    (again,) = client.ask("enqueue", 0, [client.job(unique=unique)])
    assert (again.id, again.deduplicated) == (holder, True)


def test_waiting_for_a_chain_successor_is_a_config_error(clients):
    """Only the end of its chain is announced, so a job that waited for the successor alone would wait forever."""
    client = clients()
    first = client.add()
    (job,) = client.take()
    follower = client.job(chain=first)
    client.end(job, next=follower)
    (job,) = client.take()
    with pytest.raises(ConfigError, match=follower.id):
        client.add(after=(follower.id,))
    client.end(job)
    with pytest.raises(ConfigError, match=follower.id):
        client.add(after=(follower.id,))
    assert client.ask("get", client.add(after=(first,))).state == "pending"
