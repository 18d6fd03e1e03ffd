"""What only a Redis store can get wrong: keys, slots, lost replies, scripts it has not seen, data that is gone."""

from __future__ import annotations

import asyncio
import time

import pytest
from redis_desk import LEASE, RedisDesk

from backstay.engine.redis.topology.slots import slot_of
from backstay.errors import ConfigError, EngineError, OutcomeUnknown
from backstay.job.model import Concurrency, Failure, Finish, Rate, Renewal, Tick, Unique, Worker
from backstay.testing.plugin import started_or_skip
from backstay.testing.proxy import FaultProxy
from backstay.testing.redis_server import say
from backstay.testing.servers import RedisSentinel, RedisServer

pytestmark = pytest.mark.redis

DAY = 86_400_000_000


@pytest.fixture
def desks(backstay_redis, namespace):
    made = []

    def make(url=backstay_redis.url, **options):
        made.append(RedisDesk(url, options.pop("namespace", namespace), **options))
        return made[-1]

    yield make
    for desk in made:
        desk.close()


def keys_of(server, namespace):
    return {key.decode() for key in say(server, "KEYS", f"*{namespace}*")}


def everything(desk):
    """One of each: what jobs can leave behind in Redis."""
    first = desk.add(labels=("gpu",), priority=5)
    desk.add(after=(first,), when="all_done")
    desk.add(after=(first,))
    desk.add(unique=Unique("one", "until_done"))
    desk.add(unique=Unique("two", "until_start"))
    desk.add(unique=Unique("three", "window", 60_000_000))
    for _ in range(4):
        desk.add(concurrency=Concurrency("few", 1), rate=Rate("slow", 1, 1000))
    desk.add(queue="other", delay=1000)
    desk.ask("enqueue", 0, [desk.job(), desk.job(run="r1")])
    desk.ask("limit_queue", "default", Rate("q", 1, 1000))
    desk.ask("pause", "third", paused=True)
    desk.ask("beat", Worker(id=desk.name))
    desk.ask("ticks", ["nightly"])


def finish_all(desk):
    """Work until nothing is left to be taken."""
    ended = continued = 0
    while True:
        jobs = desk.take(3, labels=("gpu",), queues=(("default",), ("other",)))
        if not jobs:
            return ended
        for job in jobs:
            desk.ask("append_log", job.id, job.fence, [(1, "stdout", "hello")], 1)
            desk.ask("put_outputs", job.id, job.fence, {"key": "value"})
            desk.ask("watch", job.id, chain=True)
        for job in jobs:
            following = desk.job() if continued < 3 else None
            continued += 1
            kind = "fail" if job.priority else "complete"
            desk.end(job, kind, next=following if kind == "complete" else None, error=Failure("E", "x"))
            ended += 1


def test_all_keys_of_a_shard_share_its_slot(desks, backstay_redis, namespace):
    desk = desks()
    everything(desk)
    desk.take(5, labels=("gpu",))
    found = keys_of(backstay_redis, namespace)
    assert len(found) > 15
    assert {slot_of(key.encode()) for key in found} == {slot_of(f"{{{namespace}:s0}}:".encode())}


def test_a_namespace_with_braces_keeps_its_slot(desks, backstay_redis):
    desk = desks(namespace="odd{name}%")
    everything(desk)
    assert len({slot_of(key.encode()) for key in keys_of(backstay_redis, "odd%7Bname%7D%25")}) == 1


def test_every_key_ends_by_itself_or_has_an_owner(desks, backstay_redis, namespace):
    """When all jobs have ended and their time is over, only settings, cron and the shard's own record stay."""
    desk = desks(now=time.time_ns() // 1000)
    everything(desk)
    desk.now += 2000
    assert finish_all(desk) > 10
    assert not {key for key in keys_of(backstay_redis, namespace) if ":lane" in key or ":park" in key}
    desk.ask("leave", desk.name)
    desk.now += 31 * DAY
    while desk.ask("prune", 0, 0):
        pass
    kept = keys_of(backstay_redis, namespace)
    lasting = {key.partition("}:")[2] for key in kept if say(backstay_redis, "PTTL", key) < 0}
    assert lasting == {"meta", "queues", "cron"}


def test_a_lane_memory_ends_with_two_leases(desks, backstay_redis, namespace):
    desk = desks()
    desk.take(1, lease=5_000_000)
    (key,) = [key for key in keys_of(backstay_redis, namespace) if ":memory:" in key]
    assert 9_000 < say(backstay_redis, "PTTL", key) <= 10_000


def test_scripts_that_the_server_forgot_are_sent_again(desks, backstay_redis):
    desk = desks()
    for _ in range(2):
        say(backstay_redis, "SCRIPT", "FLUSH")
        desk.add()
        say(backstay_redis, "SCRIPT", "FLUSH")
        (job,) = desk.take()
        say(backstay_redis, "SCRIPT", "FLUSH")
        assert desk.ask("renew", 0, desk.name, LEASE, [Renewal(job.id, job.fence)]) == ["ok"]
        assert desk.end(job).verdicts == ("ok",)


def test_fences_and_times_keep_all_their_digits(desks):
    """Numbers of this size lose their last digits where Lua prints them its own way."""
    desk = desks(now=1_794_814_854_384_821)
    ids = [desk.add() for _ in range(3)]
    jobs = desk.take(3)
    assert [job.id for job in jobs] == ids
    assert [job.fence for job in jobs] == [desk.now, desk.now + 1, desk.now + 2]
    desk.add()
    (last,) = desk.take()
    assert last.fence == desk.now + 3
    seen = desk.ask("get", last.id)
    assert (seen.lease_until, seen.due, seen.started) == (desk.now + LEASE, desk.now, desk.now)


# ── lost replies ──


@pytest.fixture
def proxied(backstay_redis, desks):
    with FaultProxy(backstay_redis.port) as proxy:
        yield proxy, desks(f"{proxy.url}?timeout=0.5")


def test_a_step_whose_reply_was_lost_is_answered_again(proxied, desks):
    proxy, desk = proxied
    ids = [desk.add() for _ in range(3)]
    first = desk.take(1)[0]
    command = desk.command([Finish(job=first.id, fence=first.fence, kind="complete", result=b"r")], want=5)
    proxy.once("cut-after", b"EVALSHA")
    with pytest.raises(OutcomeUnknown):
        desk.ask("step", command)
    assert desks(name="other").take(5) == ()
    reply = desk.ask("step", command)
    assert reply.verdicts == ("ok",)
    assert [job.id for job in reply.jobs] == ids[1:]
    assert [desk.ask("get", id_).attempt for id_ in ids] == [1, 1, 1]


def test_an_enqueue_whose_reply_was_lost_makes_one_job(proxied):
    proxy, desk = proxied
    desk.add()
    job, other = desk.job(unique=Unique("key", "until_done")), desk.job()
    for _ in range(2):
        proxy.once("cut-after", b"EVALSHA")
        with pytest.raises(OutcomeUnknown):
            desk.ask("enqueue", 0, [job, other])
    made = desk.ask("enqueue", 0, [job, other])
    assert [(each.id, each.deduplicated) for each in made] == [(job.id, False), (other.id, False)]
    assert len(desk.ask("list_jobs")) == 3


def test_a_step_that_comes_late_on_a_connection_nobody_has_any_more_does_nothing(proxied, desks):
    proxy, desk = proxied
    id_ = desk.add()
    held = proxy.once("hold", b"EVALSHA")
    command = desk.command(want=1)
    with pytest.raises(OutcomeUnknown):
        desk.ask("step", command)
    assert held.struck.is_set()
    (job,) = desk.ask("step", command).jobs
    desk.end(job)
    proxy.deliver_held()
    seen = desk.ask("get", id_)
    assert (seen.state, seen.attempt) == ("completed", 1)


def test_most_replies_lost_and_nothing_is_run_twice(proxied, desks):
    proxy, desk = proxied
    ids = [made.id for made in desk.ask("enqueue", 0, [desk.job() for _ in range(60)])]
    proxy.rule("cut-after", b"EVALSHA", chance=0.6)
    finishes, runs = [], []
    while True:
        command = desk.command(finishes, want=4)
        for _ in range(40):
            try:
                reply = desk.ask("step", command)
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
    assert {job.state for job in desks().ask("list_jobs", limit=100)} == {"completed"}


# ── data that is gone ──


def test_a_server_that_lost_everything_neither_hangs_nor_confuses_workers(namespace):
    with RedisServer() as server:
        desk = RedisDesk(server.url, namespace)
        desk.add()
        (job,) = desk.take()
        server.restart()
        command = desk.command([Finish(job=job.id, fence=job.fence, kind="complete")], want=5)
        with pytest.raises(EngineError):
            desk.ask("renew", 0, desk.name, LEASE, [Renewal(job.id, job.fence)])
        assert desk.ask("renew", 0, desk.name, LEASE, [Renewal(job.id, job.fence)]) == ["lost"]
        reply = desk.ask("step", command)
        assert (reply.verdicts, reply.jobs, reply.next_in) == (("stale",), (), None)
        assert desk.ask("get", job.id) is None
        assert desk.ask("watch", job.id, chain=True) is None
        desk.add()
        (again,) = desk.take()
        assert again.fence > job.fence
        assert desk.end(again).verdicts == ("ok",)
        desk.close()


def test_entries_whose_records_are_gone_hide_nobody(desks, backstay_redis, namespace):
    desk = desks()
    lost = [desk.add() for _ in range(5)]
    kept = desk.add()
    say(backstay_redis, "HDEL", f"{{{namespace}:s0}}:job", *lost)
    assert [job.id for job in desk.take(3)] == [kept]


# ── shards ──


def test_another_number_of_shards_is_a_config_error(desks):
    desks(shards=1).add()
    with pytest.raises(ConfigError, match=r"divided into 1 shards, .* told 8"):
        desks(shards=8).add(5)


def test_a_number_of_shards_that_changed_meanwhile_is_a_config_error(desks, backstay_redis, namespace):
    """A server that lost everything was told another number by somebody else: this process has asked before."""
    desk = desks(shards=1)
    desk.add()
    say(backstay_redis, "DEL", *keys_of(backstay_redis, namespace))
    desks(shards=8).add()
    for ask in (desk.add, desk.take):
        with pytest.raises(ConfigError, match=r"divided into 8 shards, .* told 1"):
            ask()


def test_the_number_of_shards_is_fixed_whichever_shard_comes_first(desks):
    desks(shards=8).add(7)
    with pytest.raises(ConfigError, match="pass shards=8"):
        desks(shards=1).take()


@pytest.mark.parametrize("shards", [0, -1, 257])
def test_a_bad_number_of_shards_is_a_config_error(desks, shards):
    with pytest.raises(ConfigError, match="shards"):
        desks(shards=shards)


def test_a_shard_that_is_not_there_is_a_config_error(desks):
    with pytest.raises(ConfigError, match="no shard 8"):
        desks(shards=8).ask("reap", 8)


def test_a_job_of_another_shard_is_a_config_error(desks):
    desk = desks(shards=8)
    with pytest.raises(ConfigError, match="does not live in shard 3"):
        desk.ask("enqueue", 3, [desk.job(4)])
    with pytest.raises(ConfigError, match="does not live in shard 3"):
        desk.ask("enqueue", 3, [desk.job(4), desk.job(3)])


# ── one loop's enqueues travel together ──


def test_enqueues_of_many_tasks_take_few_scripts(desks, backstay_redis):
    desk = desks()
    desk.add()
    before = int(say(backstay_redis, "INFO", "commandstats").partition(b"evalsha:calls=")[2].partition(b",")[0])

    async def all_at_once():
        jobs = [desk.job() for _ in range(500)]
        made = await asyncio.gather(*[desk.engine.submit(desk.store.enqueue(0, [job])) for job in jobs])
        assert [each.id for (each,) in made] == [job.id for job in jobs]
        await desk.engine.close()

    asyncio.run(all_at_once())
    after = int(say(backstay_redis, "INFO", "commandstats").partition(b"evalsha:calls=")[2].partition(b",")[0])
    assert after - before < 100


def test_a_task_that_gives_up_does_not_take_its_neighbours_along(desks):
    desk = desks()

    async def some_give_up():
        jobs = [desk.job() for _ in range(100)]
        tasks = [asyncio.ensure_future(desk.engine.submit(desk.store.enqueue(0, [job]))) for job in jobs]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        await desk.engine.close()
        return [job.id for job, answer in zip(jobs, done, strict=True) if not isinstance(answer, BaseException)]

    kept = asyncio.run(some_give_up())
    assert len(kept) >= 66
    look = desks()
    assert all(look.ask("get", id_) for id_ in kept)


def test_when_the_server_is_gone_every_task_hears_of_it(namespace):
    with RedisServer() as server:
        desk = RedisDesk(server.url, namespace)

        async def into_the_void():
            await desk.engine.submit(desk.store.enqueue(0, [desk.job()]))
            server.kill()
            tasks = [desk.engine.submit(desk.store.enqueue(0, [desk.job()])) for _ in range(100)]
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            server.start()
            (made,) = await desk.engine.submit(desk.store.enqueue(0, [desk.job()]))
            await desk.engine.close()
            return answers, made

        answers, made = asyncio.run(into_the_void())
        assert all(isinstance(answer, EngineError) for answer in answers)
        assert made.state == "pending"


# ── many, and through Sentinels ──


@pytest.mark.parametrize("fields", [{}, {"run": "r"}], ids=["plain", "with a run"])
def test_more_jobs_than_a_script_call_takes_arguments(desks, fields):
    desk = desks()
    jobs = [desk.job(**fields) for _ in range(7001)]
    made = desk.ask("enqueue", 0, [*jobs, jobs[0]])
    assert [each.id for each in made] == [job.id for job in jobs] + [jobs[0].id]
    assert [job.id for job in desk.take(7001)] == [job.id for job in jobs]
    (queue,) = desk.ask("queues")
    assert (queue.pending, queue.running) == (0, 7001)


def test_a_thousand_wait_for_one_and_one_for_a_thousand(desks):
    desk = desks()
    first = desk.add()
    waiting = [desk.job(after=(first,)) for _ in range(1000)]
    desk.ask("enqueue", 0, waiting)
    desk.end(desk.take()[0], result=b"r")
    jobs = desk.take(1000)
    assert [job.id for job in jobs] == [job.id for job in waiting]
    assert all(job.upstream == {first: b"r"} for job in jobs)
    last = desk.add(after=tuple(job.id for job in jobs), queue="last")
    desk.step([Finish(job=job.id, fence=job.fence, kind="complete") for job in jobs])
    (job,) = desk.take(queues=(("last",),))
    assert (job.id, len(job.upstream)) == (last, 1000)


def test_jobs_go_through_sentinels(namespace):
    group = RedisSentinel(down_after=5)
    try:
        started_or_skip(group)
        desk = RedisDesk(group.url, namespace)
        desk.add()
        assert desk.end(desk.take()[0]).verdicts == ("ok",)

        async def by_the_loop():
            (made,) = await desk.engine.submit(desk.store.enqueue(0, [desk.job()]))
            reply = await desk.engine.submit(desk.store.step(desk.command(want=1)))
            assert [job.id for job in reply.jobs] == [made.id]
            await desk.engine.close()

        asyncio.run(by_the_loop())
    finally:
        group.stop()


# ── cron ──


def test_a_tick_that_was_told_twice_makes_one_job(desks):
    desk = desks()
    job = desk.job()
    tick = Tick(name="nightly", at=desk.engine.now() + 1, job=job)
    assert desk.ask("tick", tick) is True
    assert desk.ask("tick", tick) is True
    assert desk.ask("tick", Tick(name="nightly", at=tick.at, job=desk.job())) is False
    assert [each.id for each in desk.ask("list_jobs")] == [job.id]


def test_a_follower_takes_no_unique_key_from_another_job(desks):
    """The chain goes on all the same."""
    desk = desks()
    unique = Unique("u", "until_done")
    holder = desk.add(unique=unique, labels=("elsewhere",))
    first = desk.add()
    (job,) = desk.take()
    follower = desk.job(unique=unique, chain=first)
    desk.end(job, next=follower)
    (job,) = desk.take()
    assert (job.id, job.chain) == (follower.id, first)
    desk.end(job, result=b"R")
    assert desk.ask("watch", first, chain=True).result == b"R"
    (again,) = desk.ask("enqueue", 0, [desk.job(unique=unique)])
    assert (again.id, again.deduplicated) == (holder, True)


def test_nobody_waits_for_a_follower_as_if_it_were_a_chain(desks):
    """Its end is its chain's, so whoever waited for it alone would wait for ever."""
    desk = desks()
    first = desk.add()
    (job,) = desk.take()
    follower = desk.job(chain=first)
    desk.end(job, next=follower)
    (job,) = desk.take()
    with pytest.raises(ConfigError, match=follower.id):
        desk.add(after=(follower.id,))
    desk.end(job)
    with pytest.raises(ConfigError, match=follower.id):
        desk.add(after=(follower.id,))
    assert desk.ask("get", desk.add(after=(first,))).state == "pending"
