"""Jobs over eight shards of a Redis Cluster: blockers in other shards, and recovery when a client dies midway."""

from __future__ import annotations

import threading
import time

import pytest
from redis_store_client import RedisStoreClient, dying

from backstay.engine.redis.topology.slots import slot_of
from backstay.errors import ConfigError
from backstay.job.exchange import Delivery
from backstay.job.ids import hash_shard, shard_of
from backstay.job.model import Concurrency, Tick, Unique
from backstay.job.stores.redis import keys
from backstay.testing.servers.redis import say
from backstay.testing.waiting import WITHIN

pytestmark = pytest.mark.redis

SHARDS = 8
#: In µs: longer than the time in which an enqueuer must register its job at the blockers' shards.
LATER = 6_000_000


@pytest.fixture
def client(cluster, namespace):
    client = RedisStoreClient(cluster.url, namespace, shards=SHARDS, now=time.time_ns() // 1000)
    yield client
    client.close()


def deliver_outbox(client, reply):
    """Deliver the outbox of a reply to the other shards, as a worker does, and return the reply."""
    for each in reply.outbox:
        client.apply("deliver", shard_of(each.job), [each])
        client.apply("ack_deliveries", shard_of(each.chain), [each])
    return reply


def state(client, job):
    return client.apply("get", job).state


def test_shards_are_spread_over_several_nodes(cluster, namespace):
    ranges = say(cluster.nodes[0], "CLUSTER", "SLOTS")
    slots = [slot_of(keys.shard(namespace, number).encode()) for number in range(SHARDS)]
    nodes = {next(entry[2][1] for entry in ranges if entry[0] <= slot <= entry[1]) for slot in slots}
    assert len(set(slots)) == SHARDS
    assert len(nodes) > 1


def test_a_job_waits_for_a_chain_of_another_shard(client):
    first, second = client.add(1), client.add(2)
    waiting = client.add(5, after=(first, second))
    assert client.apply("get", waiting).waits_for == tuple(sorted((first, second)))
    for shard, result in ((1, b"one"), (2, b"two")):
        (job,) = client.claim(shard=shard)
        assert state(client, waiting) == "blocked"
        deliver_outbox(client, client.finish(job, result=result))
    (job,) = client.claim(shard=5)
    assert (job.id, job.upstream) == (waiting, {first: b"one", second: b"two"})
    assert client.apply("read_outbox", 1) == []


def test_a_finished_chain_in_another_shard_does_not_block(client):
    first = client.add(1)
    client.finish(client.claim(shard=1)[0], result=b"one")
    waiting = client.add(5, after=(first,))
    (job,) = client.claim(shard=5)
    assert (job.id, job.upstream) == (waiting, {first: b"one"})


def test_a_continued_chain_in_another_shard_still_blocks(client):
    first = client.add(1)
    waiting = client.add(5, after=(first,))
    reply = client.finish(client.claim(shard=1)[0], next=client.job(1))
    assert reply.outbox == ()
    (last,) = client.claim(shard=1)
    deliver_outbox(client, client.finish(last, result=b"last"))
    assert client.claim(shard=5)[0].upstream == {first: b"last"}
    assert state(client, waiting) == "running"


def test_an_unknown_blocker_in_another_shard_is_a_config_error_and_nothing_is_stored(client):
    known, unknown = client.add(1), client.ids.new(2)
    with pytest.raises(ConfigError, match=unknown):
        client.add(5, after=(known, unknown))
    with pytest.raises(ConfigError, match="nonsense"):
        client.add(5, after=("nonsense",))
    assert client.apply("list_jobs", limit=10)[0].id == known
    assert len(client.apply("list_jobs", limit=10)) == 1


def test_a_failure_skips_dependents_over_all_shards(client):
    first = client.add(1)
    second = client.add(2, after=(first,))
    third = client.add(3, after=(second,))
    always = client.add(4, after=(third,), when="all_done")
    deliver_outbox(client, client.finish(client.claim(shard=1)[0], "fail"))
    assert [state(client, job) for job in (first, second, third, always)] == ["failed", "skipped", "skipped", "pending"]
    assert client.claim(shard=4)[0].upstream == {third: None}


def test_a_cancellation_reaches_dependents_in_other_shards(client):
    first = client.add(1)
    waiting = client.add(2, after=(first,))
    assert client.apply("cancel", first, "no need") == "cancelled"
    assert state(client, waiting) == "skipped"


def test_a_manual_retry_blocks_dependents_in_other_shards_again(client):
    first = client.add(1)
    second = client.add(2, after=(first,))
    third = client.add(3, after=(second,))
    deliver_outbox(client, client.finish(client.claim(shard=1)[0], "fail"))
    assert client.apply("trigger", first) == "pending"
    assert [state(client, second), state(client, third)] == ["blocked", "blocked"]
    for shard in (1, 2, 3):
        deliver_outbox(client, client.finish(client.claim(shard=shard)[0]))
    assert [state(client, job) for job in (first, second, third)] == ["completed"] * 3


@pytest.mark.parametrize("died", [1, 2, 3])
def test_an_interrupted_manual_retry_resumes(client, died):
    """Whichever shard's reply was lost, the same call repeated reaches all shards."""
    first = client.add(1)
    near = client.add(1, after=(first,))
    far = client.add(5, after=(near,))
    farther = client.add(2, after=(far,))
    farthest = client.add(4, after=(farther,))
    deliver_outbox(client, client.finish(client.claim(shard=1)[0], "fail"))
    waiting = (near, far, farther, farthest)
    assert [state(client, job) for job in waiting] == ["skipped"] * 4
    client.engine.apply(dying(client.store.trigger(first), before="reopen_waits", nth=died))
    assert client.apply("trigger", first) == "pending"
    assert [state(client, job) for job in waiting] == ["blocked"] * 4
    assert client.apply("trigger", first) == "pending"
    for shard in (1, 1, 5, 2, 4):
        deliver_outbox(client, client.finish(client.claim(shard=shard)[0]))
    assert [state(client, job) for job in waiting] == ["completed"] * 4


# ── a client dies in the middle of an operation ──


@pytest.mark.parametrize("healer", ["reap", "exchange"])
@pytest.mark.parametrize("ends", ["before", "after"])
def test_a_job_whose_enqueuer_died_before_registering_it_still_starts(client, healer, ends):
    first = client.add(1)
    waiting = client.job(5, after=(first,))
    # The enqueuer has stored the job, and dies before it registers the job at the shard of the blocker.
    client.engine.apply(dying(client.store.enqueue(5, [waiting]), before="register_dependents"))
    assert state(client, waiting.id) == "blocked"
    if ends == "before":
        assert client.finish(client.claim(shard=1)[0], result=b"r").outbox == ()
    client.now += LATER
    client.apply("reap", 5) if healer == "reap" else client.claim(0, shard=5)
    if ends == "after":
        assert state(client, waiting.id) == "blocked"
        deliver_outbox(client, client.finish(client.claim(shard=1)[0], result=b"r"))
    (job,) = client.claim(shard=5)
    assert (job.id, job.upstream) == (waiting.id, {first: b"r"})
    assert client.claim(shard=5) == ()


def test_an_enqueuer_that_died_after_registering_leaves_nothing_stuck(client):
    first = client.add(1)
    waiting = client.job(5, after=(first,))
    client.engine.apply(dying(client.store.enqueue(5, [waiting]), before="ack_registrations"))
    deliver_outbox(client, client.finish(client.claim(shard=1)[0]))
    assert client.claim(shard=5)[0].id == waiting.id
    client.now += LATER
    client.apply("reap", 5)
    assert client.claim(shard=5) == ()
    assert state(client, waiting.id) == "running"


def test_a_resent_enqueue_creates_and_registers_one_job(client):
    first = client.add(1)
    waiting = client.job(5, after=(first,))
    for verb in ("register_dependents", "ack_registrations", "register_dependents"):
        client.engine.apply(dying(client.store.enqueue(5, [waiting]), before=verb))
    assert client.apply("enqueue", 5, [waiting])[0].id == waiting.id
    deliver_outbox(client, client.finish(client.claim(shard=1)[0]))
    assert [job.id for job in client.claim(5, shard=5)] == [waiting.id]


def test_an_undelivered_outbox_of_a_dead_worker_is_delivered_by_the_next(client):
    first = client.add(1)
    waiting = client.add(5, after=(first,))
    reply = client.finish(client.claim(shard=1)[0], result=b"r")
    assert reply.outbox == (Delivery(waiting, first, b"r"),)
    assert state(client, waiting) == "blocked"
    assert client.apply("read_outbox", 1) == [Delivery(waiting, first, b"r")]
    assert client.apply("deliver", 5, client.apply("read_outbox", 1)) == {"work": 1}
    client.apply("ack_deliveries", 1, reply.outbox)
    assert client.apply("read_outbox", 1) == []
    assert state(client, waiting) == "pending"


def test_a_delivery_that_comes_twice_starts_a_job_once(client):
    first = client.add(1)
    client.add(5, after=(first,))
    reply = client.finish(client.claim(shard=1)[0])
    assert client.apply("deliver", 5, reply.outbox) == {"work": 1}
    (job,) = client.claim(shard=5)
    assert client.apply("deliver", 5, reply.outbox) == {}
    assert client.claim(shard=5) == ()
    client.finish(job)
    assert client.apply("deliver", 5, reply.outbox) == {}
    assert state(client, job.id) == "completed"


def test_the_reaper_notifies_dependents_in_other_shards(client):
    first = client.add(1)
    waiting = client.add(5, after=(first,), when="all_done")
    client.claim(shard=1)
    client.now += 31_000_000
    client.apply("reap", 1)
    assert state(client, first) == "failed"
    assert state(client, waiting) == "pending"


def test_a_tick_whose_scheduler_died_midway_is_made_by_the_next(client):
    job = client.job(3)
    tick = Tick(name="nightly", at=client.now + 1, job=job)
    client.engine.apply(dying(client.store.tick(tick), before="enqueue"))
    assert client.apply("get", job.id) is None
    assert client.apply("ticks", ["nightly"]) == {"nightly": tick.at}
    assert state(client, job.id) == "pending"
    assert client.apply("tick", Tick(name="nightly", at=tick.at, job=client.job(4))) is False
    assert len(client.apply("list_jobs")) == 1


def test_a_later_tick_does_not_hide_one_that_was_not_made_yet(client):
    first = Tick(name="nightly", at=client.now + 1, job=client.job(2))
    client.engine.apply(dying(client.store.tick(first), before="enqueue"))
    later = Tick(name="nightly", at=client.now + 2, job=client.job(3))
    assert client.apply("tick", later) is True
    client.apply("ticks", ["nightly"])
    assert [client.apply("get", tick.job.id).state for tick in (first, later)] == ["pending", "pending"]


def test_a_resent_tick_creates_the_job_it_recorded(client):
    tick = Tick(name="nightly", at=client.now + 1, job=client.job(2))
    client.engine.apply(dying(client.store.tick(tick), before="enqueue"))
    assert client.apply("tick", tick) is True
    assert client.apply("get", tick.job.id).state == "pending"


# ── unique and concurrency keys ──


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
        client.apply("reap", shard)
        start.wait(WITHIN)
        for _ in range(5):
            made.extend(client.apply("enqueue", shard, [client.job(shard, unique=Unique("key", "until_done"))]))
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
    while page := client.apply("list_jobs", before=before, limit=7):
        pages.append([job.id for job in page])
        before = page[-1].id
    assert [id_ for page in pages for id_ in page] == ids[::-1]
    client.apply("pause", "q", paused=True)
    (queue,) = client.apply("queues")
    assert (queue.name, queue.pending, queue.paused, queue.oldest_due) == ("q", 20, True, client.now)
    assert all(client.claim(shard=shard, queues=(("q",),)) == () for shard in range(SHARDS))
    assert client.apply("purge", "completed") == 0


def test_a_shard_is_found_where_its_slot_has_moved_to(cluster, client):
    """Exchanges and enqueues follow MOVED, and scripts are loaded into a node that does not have them."""
    ids = [client.add(6) for _ in range(3)]
    cluster.migrate(*slot_and_target(cluster, client))
    (job, *_) = client.claim(2, shard=6)
    assert job.id == ids[0]
    assert client.finish(job).verdicts == ("ok",)
    assert client.add(6)


def test_nothing_runs_on_half_a_shard_while_its_slot_moves(cluster, client):
    """A script computes the names of most keys that it uses. On a node that has only some keys of the shard, it would
    miss jobs, and would write keys that block the migration.
    """
    ids = [client.add(6) for _ in range(50)]
    slot, target = slot_and_target(cluster, client)
    move = threading.Thread(target=cluster.migrate, args=(slot, target, 0.05))
    move.start()
    done = []
    while move.is_alive() or len(done) < 50:
        for job in client.claim(2, shard=6):
            client.add(6, queue="other")
            assert client.finish(job).verdicts == ("ok",)
            done.append(job.id)
    move.join(30)
    assert cluster.master_of(slot) is target
    assert done == ids
    assert len(client.claim(100, shard=6, queues=(("other",),))) == 50


def slot_and_target(cluster, client):
    """Return the slot of shard 6, and a node that does not serve it."""
    slot = slot_of(keys.shard(client.engine.namespace, 6).encode())
    return slot, next(node for node in cluster.nodes if node is not cluster.master_of(slot))
