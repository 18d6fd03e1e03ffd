"""Jobs over eight shards of a Redis Cluster: blockers in other shards, and recovery when a client dies midway."""

from __future__ import annotations

import threading
import time

import pytest
from redis_store_client import RedisStoreClient, dying

from backstay.engine.redis.topology.slots import slot_of
from backstay.errors import ConfigError
from backstay.job.ids import hash_shard, shard_of
from backstay.job.model import Concurrency, Delivery, Tick, Unique
from backstay.job.stores.redis import keys
from backstay.testing.plugin import started_or_skip
from backstay.testing.servers import RedisCluster
from backstay.testing.servers.redis import say
from backstay.testing.waiting import WITHIN

pytestmark = pytest.mark.redis

SHARDS = 8
#: Longer than an enqueuer is given to register its job.
LATER = 6_000_000


@pytest.fixture(scope="module")
def cluster():
    servers = RedisCluster(replicas=0, node_timeout=5)
    try:
        yield started_or_skip(servers)
    finally:
        servers.stop()


@pytest.fixture
def client(cluster, namespace):
    client = RedisStoreClient(cluster.url, namespace, shards=SHARDS, now=time.time_ns() // 1000)
    yield client
    client.close()


def tell(client, reply):
    """What a worker does with an outbox."""
    for each in reply.outbox:
        client.ask("deliver", shard_of(each.job), [each])
        client.ask("delivered", shard_of(each.chain), [each])
    return reply


def state(client, job):
    return client.ask("get", job).state


def test_shards_are_spread_over_several_nodes(cluster, namespace):
    ranges = say(cluster.nodes[0], "CLUSTER", "SLOTS")
    slots = [slot_of(keys.shard(namespace, number).encode()) for number in range(SHARDS)]
    nodes = {next(entry[2][1] for entry in ranges if entry[0] <= slot <= entry[1]) for slot in slots}
    assert len(set(slots)) == SHARDS
    assert len(nodes) > 1


def test_a_job_waits_for_a_chain_of_another_shard(client):
    first, second = client.add(1), client.add(2)
    waiting = client.add(5, after=(first, second))
    assert client.ask("get", waiting).waits_for == tuple(sorted((first, second)))
    for shard, result in ((1, b"one"), (2, b"two")):
        (job,) = client.take(shard=shard)
        assert state(client, waiting) == "blocked"
        tell(client, client.end(job, result=result))
    (job,) = client.take(shard=5)
    assert (job.id, job.upstream) == (waiting, {first: b"one", second: b"two"})
    assert client.ask("undelivered", 1) == []


def test_a_finished_chain_in_another_shard_does_not_block(client):
    first = client.add(1)
    client.end(client.take(shard=1)[0], result=b"one")
    waiting = client.add(5, after=(first,))
    (job,) = client.take(shard=5)
    assert (job.id, job.upstream) == (waiting, {first: b"one"})


def test_a_continued_chain_in_another_shard_still_blocks(client):
    first = client.add(1)
    waiting = client.add(5, after=(first,))
    reply = client.end(client.take(shard=1)[0], next=client.job(1))
    assert reply.outbox == ()
    (last,) = client.take(shard=1)
    tell(client, client.end(last, result=b"last"))
    assert client.take(shard=5)[0].upstream == {first: b"last"}
    assert state(client, waiting) == "running"


def test_an_unknown_blocker_in_another_shard_is_a_config_error_and_nothing_is_stored(client):
    known, unknown = client.add(1), client.ids.new(2)
    with pytest.raises(ConfigError, match=unknown):
        client.add(5, after=(known, unknown))
    with pytest.raises(ConfigError, match="nonsense"):
        client.add(5, after=("nonsense",))
    assert client.ask("list_jobs", limit=10)[0].id == known
    assert len(client.ask("list_jobs", limit=10)) == 1


def test_a_failure_skips_dependents_over_all_shards(client):
    first = client.add(1)
    second = client.add(2, after=(first,))
    third = client.add(3, after=(second,))
    always = client.add(4, after=(third,), when="all_done")
    tell(client, client.end(client.take(shard=1)[0], "fail"))
    assert [state(client, job) for job in (first, second, third, always)] == ["failed", "skipped", "skipped", "pending"]
    assert client.take(shard=4)[0].upstream == {third: None}


def test_a_cancellation_reaches_dependents_in_other_shards(client):
    first = client.add(1)
    waiting = client.add(2, after=(first,))
    assert client.ask("cancel", first, "no need") == "cancelled"
    assert state(client, waiting) == "skipped"


def test_a_manual_retry_blocks_dependents_in_other_shards_again(client):
    first = client.add(1)
    second = client.add(2, after=(first,))
    third = client.add(3, after=(second,))
    tell(client, client.end(client.take(shard=1)[0], "fail"))
    assert client.ask("trigger", first) == "pending"
    assert [state(client, second), state(client, third)] == ["blocked", "blocked"]
    for shard in (1, 2, 3):
        tell(client, client.end(client.take(shard=shard)[0]))
    assert [state(client, job) for job in (first, second, third)] == ["completed"] * 3


@pytest.mark.parametrize("died", [1, 2, 3])
def test_an_interrupted_manual_retry_resumes(client, died):
    """Whichever shard's reply was lost, the same call repeated reaches all shards."""
    first = client.add(1)
    near = client.add(1, after=(first,))
    far = client.add(5, after=(near,))
    farther = client.add(2, after=(far,))
    farthest = client.add(4, after=(farther,))
    tell(client, client.end(client.take(shard=1)[0], "fail"))
    waiting = (near, far, farther, farthest)
    assert [state(client, job) for job in waiting] == ["skipped"] * 4
    client.engine.apply(dying(client.store.trigger(first), before="rewait", nth=died))
    assert client.ask("trigger", first) == "pending"
    assert [state(client, job) for job in waiting] == ["blocked"] * 4
    assert client.ask("trigger", first) == "pending"
    for shard in (1, 1, 5, 2, 4):
        tell(client, client.end(client.take(shard=shard)[0]))
    assert [state(client, job) for job in waiting] == ["completed"] * 4


# ── a client dies midway ──


@pytest.mark.parametrize("healer", ["reap", "exchange"])
@pytest.mark.parametrize("ends", ["before", "after"])
def test_a_job_whose_enqueuer_died_before_registering_it_still_starts(client, healer, ends):
    first = client.add(1)
    waiting = client.job(5, after=(first,))
    # It has looked at the blocker and stored the job; the blocker does not know.
    client.engine.apply(dying(client.store.enqueue(5, [waiting]), before="register"))
    assert state(client, waiting.id) == "blocked"
    if ends == "before":
        assert client.end(client.take(shard=1)[0], result=b"r").outbox == ()
    client.now += LATER
    client.ask("reap", 5) if healer == "reap" else client.take(0, shard=5)
    if ends == "after":
        assert state(client, waiting.id) == "blocked"
        tell(client, client.end(client.take(shard=1)[0], result=b"r"))
    (job,) = client.take(shard=5)
    assert (job.id, job.upstream) == (waiting.id, {first: b"r"})
    assert client.take(shard=5) == ()


def test_an_enqueuer_that_died_after_registering_leaves_nothing_stuck(client):
    first = client.add(1)
    waiting = client.job(5, after=(first,))
    client.engine.apply(dying(client.store.enqueue(5, [waiting]), before="registered"))
    tell(client, client.end(client.take(shard=1)[0]))
    assert client.take(shard=5)[0].id == waiting.id
    client.now += LATER
    client.ask("reap", 5)
    assert client.take(shard=5) == ()
    assert state(client, waiting.id) == "running"


def test_a_resent_enqueue_creates_and_registers_one_job(client):
    first = client.add(1)
    waiting = client.job(5, after=(first,))
    for verb in ("register", "registered", "register"):
        client.engine.apply(dying(client.store.enqueue(5, [waiting]), before=verb))
    assert client.ask("enqueue", 5, [waiting])[0].id == waiting.id
    tell(client, client.end(client.take(shard=1)[0]))
    assert [job.id for job in client.take(5, shard=5)] == [waiting.id]


def test_an_undelivered_outbox_of_a_dead_worker_is_delivered_by_the_next(client):
    first = client.add(1)
    waiting = client.add(5, after=(first,))
    reply = client.end(client.take(shard=1)[0], result=b"r")
    assert reply.outbox == (Delivery(waiting, first, b"r"),)
    assert state(client, waiting) == "blocked"
    assert client.ask("undelivered", 1) == [Delivery(waiting, first, b"r")]
    assert client.ask("deliver", 5, client.ask("undelivered", 1)) == {"work": 1}
    client.ask("delivered", 1, reply.outbox)
    assert client.ask("undelivered", 1) == []
    assert state(client, waiting) == "pending"


def test_a_delivery_that_comes_twice_starts_a_job_once(client):
    first = client.add(1)
    client.add(5, after=(first,))
    reply = client.end(client.take(shard=1)[0])
    assert client.ask("deliver", 5, reply.outbox) == {"work": 1}
    (job,) = client.take(shard=5)
    assert client.ask("deliver", 5, reply.outbox) == {}
    assert client.take(shard=5) == ()
    client.end(job)
    assert client.ask("deliver", 5, reply.outbox) == {}
    assert state(client, job.id) == "completed"


def test_the_reaper_notifies_dependents_in_other_shards(client):
    first = client.add(1)
    waiting = client.add(5, after=(first,), when="all_done")
    client.take(shard=1)
    client.now += 31_000_000
    client.ask("reap", 1)
    assert state(client, first) == "failed"
    assert state(client, waiting) == "pending"


def test_a_tick_whose_scheduler_died_midway_is_made_by_the_next(client):
    job = client.job(3)
    tick = Tick(name="nightly", at=client.now + 1, job=job)
    client.engine.apply(dying(client.store.tick(tick), before="enqueue"))
    assert client.ask("get", job.id) is None
    assert client.ask("ticks", ["nightly"]) == {"nightly": tick.at}
    assert state(client, job.id) == "pending"
    assert client.ask("tick", Tick(name="nightly", at=tick.at, job=client.job(4))) is False
    assert len(client.ask("list_jobs")) == 1


def test_a_later_tick_does_not_hide_one_that_was_not_made_yet(client):
    first = Tick(name="nightly", at=client.now + 1, job=client.job(2))
    client.engine.apply(dying(client.store.tick(first), before="enqueue"))
    later = Tick(name="nightly", at=client.now + 2, job=client.job(3))
    assert client.ask("tick", later) is True
    client.ask("ticks", ["nightly"])
    assert [client.ask("get", tick.job.id).state for tick in (first, later)] == ["pending", "pending"]


def test_a_resent_tick_creates_the_job_it_recorded(client):
    tick = Tick(name="nightly", at=client.now + 1, job=client.job(2))
    client.engine.apply(dying(client.store.tick(tick), before="enqueue"))
    assert client.ask("tick", tick) is True
    assert client.ask("get", tick.job.id).state == "pending"


# ── keys that belong to a shard ──


def test_a_key_that_lives_in_another_shard_is_a_config_error(client):
    for key in ("alpha", "beta"):
        elsewhere = (hash_shard(key, SHARDS) + 1) % SHARDS
        with pytest.raises(ConfigError, match="belongs to shard"):
            client.add(elsewhere, unique=Unique(key, "until_done"))
        with pytest.raises(ConfigError, match="belongs to shard"):
            client.add(elsewhere, concurrency=Concurrency(key, 1))


def test_of_fifty_callers_with_one_unique_key_one_makes_its_job(cluster, namespace):
    shard = hash_shard("key", SHARDS)
    made, start = [], threading.Barrier(10)

    def call():
        client = RedisStoreClient(cluster.url, namespace, shards=SHARDS)
        client.ask("reap", shard)
        start.wait(WITHIN)
        for _ in range(5):
            made.extend(client.ask("enqueue", shard, [client.job(shard, unique=Unique("key", "until_done"))]))
        client.close()

    threads = [threading.Thread(target=call) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == 50
    assert len({each.id for each in made}) == 1
    assert sum(not each.deduplicated for each in made) == 1


def test_lists_and_queues_are_over_all_shards(client):
    ids = [client.add(shard % SHARDS, queue="q") for shard in range(20)]
    pages, before = [], ""
    while page := client.ask("list_jobs", before=before, limit=7):
        pages.append([job.id for job in page])
        before = page[-1].id
    assert [id_ for page in pages for id_ in page] == ids[::-1]
    client.ask("pause", "q", paused=True)
    (queue,) = client.ask("queues")
    assert (queue.name, queue.pending, queue.paused, queue.oldest_due) == ("q", 20, True, client.now)
    assert all(client.take(shard=shard, queues=(("q",),)) == () for shard in range(SHARDS))
    assert client.ask("purge", "completed") == 0


def test_a_shard_is_found_where_its_slot_has_moved_to(cluster, client):
    """Steps and enqueues follow MOVED, and scripts are sent again to a node that has not seen them."""
    ids = [client.add(6) for _ in range(3)]
    cluster.migrate(*elsewhere(cluster, client))
    (job, *_) = client.take(2, shard=6)
    assert job.id == ids[0]
    assert client.end(job).verdicts == ("ok",)
    assert client.add(6)


def test_nothing_runs_on_half_a_shard_while_its_slot_moves(cluster, client):
    """Scripts find the other keys of a shard by themselves: on a node that has some of them only, they would see jobs
    that are not there and write keys that stop the move.
    """
    ids = [client.add(6) for _ in range(50)]
    slot, target = elsewhere(cluster, client)
    move = threading.Thread(target=cluster.migrate, args=(slot, target, 0.05))
    move.start()
    done = []
    while move.is_alive() or len(done) < 50:
        for job in client.take(2, shard=6):
            client.add(6, queue="other")
            assert client.end(job).verdicts == ("ok",)
            done.append(job.id)
    move.join(30)
    assert cluster.master_of(slot) is target
    assert done == ids
    assert len(client.take(100, shard=6, queues=(("other",),))) == 50


def elsewhere(cluster, client):
    """The slot of shard 6, and a node that does not serve it."""
    slot = slot_of(keys.shard(client.engine.namespace, 6).encode())
    return slot, next(node for node in cluster.nodes if node is not cluster.master_of(slot))
