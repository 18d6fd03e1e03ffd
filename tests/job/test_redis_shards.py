"""Jobs over eight shards of a Redis Cluster: blockers that live elsewhere, and what heals when somebody dies midway."""

from __future__ import annotations

import threading
import time

import pytest
from redis_desk import RedisDesk, dying

from backstay.engine.redis.topology.slots import slot_of
from backstay.errors import ConfigError
from backstay.job.ids import home, shard_of
from backstay.job.model import Concurrency, Delivery, Tick, Unique
from backstay.job.stores.redis import keys
from backstay.testing.plugin import started_or_skip
from backstay.testing.redis_server import say
from backstay.testing.servers import RedisCluster
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
def desk(cluster, namespace):
    desk = RedisDesk(cluster.url, namespace, shards=SHARDS, now=time.time_ns() // 1000)
    yield desk
    desk.close()


def tell(desk, reply):
    """What a worker does with an outbox."""
    for each in reply.outbox:
        desk.ask("deliver", shard_of(each.job), [each])
        desk.ask("delivered", shard_of(each.chain), [each])
    return reply


def state(desk, job):
    return desk.ask("get", job).state


def test_the_shards_lie_on_several_nodes(cluster, namespace):
    ranges = say(cluster.nodes[0], "CLUSTER", "SLOTS")
    slots = [slot_of(keys.shard(namespace, number).encode()) for number in range(SHARDS)]
    nodes = {next(entry[2][1] for entry in ranges if entry[0] <= slot <= entry[1]) for slot in slots}
    assert len(set(slots)) == SHARDS
    assert len(nodes) > 1


def test_a_job_waits_for_a_chain_of_another_shard(desk):
    first, second = desk.add(1), desk.add(2)
    waiting = desk.add(5, after=(first, second))
    assert desk.ask("get", waiting).waits_for == tuple(sorted((first, second)))
    for shard, result in ((1, b"one"), (2, b"two")):
        (job,) = desk.take(shard=shard)
        assert state(desk, waiting) == "blocked"
        tell(desk, desk.end(job, result=result))
    (job,) = desk.take(shard=5)
    assert (job.id, job.upstream) == (waiting, {first: b"one", second: b"two"})
    assert desk.ask("undelivered", 1) == []


def test_a_chain_elsewhere_that_has_ended_blocks_nobody(desk):
    first = desk.add(1)
    desk.end(desk.take(shard=1)[0], result=b"one")
    waiting = desk.add(5, after=(first,))
    (job,) = desk.take(shard=5)
    assert (job.id, job.upstream) == (waiting, {first: b"one"})


def test_a_chain_elsewhere_that_goes_on_has_not_ended(desk):
    first = desk.add(1)
    waiting = desk.add(5, after=(first,))
    reply = desk.end(desk.take(shard=1)[0], next=desk.job(1))
    assert reply.outbox == ()
    (last,) = desk.take(shard=1)
    tell(desk, desk.end(last, result=b"last"))
    assert desk.take(shard=5)[0].upstream == {first: b"last"}
    assert state(desk, waiting) == "running"


def test_an_unknown_blocker_elsewhere_is_a_config_error_and_nothing_is_stored(desk):
    known, unknown = desk.add(1), desk.ids.new(2)
    with pytest.raises(ConfigError, match=unknown):
        desk.add(5, after=(known, unknown))
    with pytest.raises(ConfigError, match="nonsense"):
        desk.add(5, after=("nonsense",))
    assert desk.ask("list_jobs", limit=10)[0].id == known
    assert len(desk.ask("list_jobs", limit=10)) == 1


def test_a_failure_skips_dependents_over_all_shards(desk):
    first = desk.add(1)
    second = desk.add(2, after=(first,))
    third = desk.add(3, after=(second,))
    always = desk.add(4, after=(third,), when="all_done")
    tell(desk, desk.end(desk.take(shard=1)[0], "fail"))
    assert [state(desk, job) for job in (first, second, third, always)] == ["failed", "skipped", "skipped", "pending"]
    assert desk.take(shard=4)[0].upstream == {third: None}


def test_cancelling_tells_dependents_elsewhere(desk):
    first = desk.add(1)
    waiting = desk.add(2, after=(first,))
    assert desk.ask("cancel", first, "no need") == "cancelled"
    assert state(desk, waiting) == "skipped"


def test_trying_again_makes_dependents_elsewhere_wait_again(desk):
    first = desk.add(1)
    second = desk.add(2, after=(first,))
    third = desk.add(3, after=(second,))
    tell(desk, desk.end(desk.take(shard=1)[0], "fail"))
    assert desk.ask("trigger", first) == "pending"
    assert [state(desk, second), state(desk, third)] == ["blocked", "blocked"]
    for shard in (1, 2, 3):
        tell(desk, desk.end(desk.take(shard=shard)[0]))
    assert [state(desk, job) for job in (first, second, third)] == ["completed"] * 3


@pytest.mark.parametrize("died", [1, 2, 3])
def test_trying_again_goes_on_where_it_was_broken_off(desk, died):
    """Whichever shard was told, and did not answer: the same call tells all of them."""
    first = desk.add(1)
    near = desk.add(1, after=(first,))
    far = desk.add(5, after=(near,))
    farther = desk.add(2, after=(far,))
    farthest = desk.add(4, after=(farther,))
    tell(desk, desk.end(desk.take(shard=1)[0], "fail"))
    waiting = (near, far, farther, farthest)
    assert [state(desk, job) for job in waiting] == ["skipped"] * 4
    desk.engine.apply(dying(desk.store.trigger(first), before="rewait", nth=died))
    assert desk.ask("trigger", first) == "pending"
    assert [state(desk, job) for job in waiting] == ["blocked"] * 4
    assert desk.ask("trigger", first) == "pending"
    for shard in (1, 1, 5, 2, 4):
        tell(desk, desk.end(desk.take(shard=shard)[0]))
    assert [state(desk, job) for job in waiting] == ["completed"] * 4


# ── somebody dies midway ──


@pytest.mark.parametrize("healer", ["reap", "step"])
@pytest.mark.parametrize("ends", ["before", "after"])
def test_a_job_whose_enqueuer_died_before_it_was_registered_starts_all_the_same(desk, healer, ends):
    first = desk.add(1)
    waiting = desk.job(5, after=(first,))
    # It has looked at the blocker and stored the job; the blocker does not know.
    desk.engine.apply(dying(desk.store.enqueue(5, [waiting]), before="register"))
    assert state(desk, waiting.id) == "blocked"
    if ends == "before":
        assert desk.end(desk.take(shard=1)[0], result=b"r").outbox == ()
    desk.now += LATER
    desk.ask("reap", 5) if healer == "reap" else desk.take(0, shard=5)
    if ends == "after":
        assert state(desk, waiting.id) == "blocked"
        tell(desk, desk.end(desk.take(shard=1)[0], result=b"r"))
    (job,) = desk.take(shard=5)
    assert (job.id, job.upstream) == (waiting.id, {first: b"r"})
    assert desk.take(shard=5) == ()


def test_an_enqueuer_that_died_after_registering_leaves_nothing_stuck(desk):
    first = desk.add(1)
    waiting = desk.job(5, after=(first,))
    desk.engine.apply(dying(desk.store.enqueue(5, [waiting]), before="registered"))
    tell(desk, desk.end(desk.take(shard=1)[0]))
    assert desk.take(shard=5)[0].id == waiting.id
    desk.now += LATER
    desk.ask("reap", 5)
    assert desk.take(shard=5) == ()
    assert state(desk, waiting.id) == "running"


def test_an_enqueue_that_is_sent_again_makes_and_registers_one_job(desk):
    first = desk.add(1)
    waiting = desk.job(5, after=(first,))
    for verb in ("register", "registered", "register"):
        desk.engine.apply(dying(desk.store.enqueue(5, [waiting]), before=verb))
    assert desk.ask("enqueue", 5, [waiting])[0].id == waiting.id
    tell(desk, desk.end(desk.take(shard=1)[0]))
    assert [job.id for job in desk.take(5, shard=5)] == [waiting.id]


def test_what_a_dead_finisher_did_not_deliver_is_delivered_by_the_next(desk):
    first = desk.add(1)
    waiting = desk.add(5, after=(first,))
    reply = desk.end(desk.take(shard=1)[0], result=b"r")
    assert reply.outbox == (Delivery(waiting, first, b"r"),)
    assert state(desk, waiting) == "blocked"
    assert desk.ask("undelivered", 1) == [Delivery(waiting, first, b"r")]
    assert desk.ask("deliver", 5, desk.ask("undelivered", 1)) == {"work": 1}
    desk.ask("delivered", 1, reply.outbox)
    assert desk.ask("undelivered", 1) == []
    assert state(desk, waiting) == "pending"


def test_a_delivery_that_comes_twice_starts_a_job_once(desk):
    first = desk.add(1)
    desk.add(5, after=(first,))
    reply = desk.end(desk.take(shard=1)[0])
    assert desk.ask("deliver", 5, reply.outbox) == {"work": 1}
    (job,) = desk.take(shard=5)
    assert desk.ask("deliver", 5, reply.outbox) == {}
    assert desk.take(shard=5) == ()
    desk.end(job)
    assert desk.ask("deliver", 5, reply.outbox) == {}
    assert state(desk, job.id) == "completed"


def test_a_reaper_tells_dependents_elsewhere_of_a_job_that_killed_its_worker(desk):
    first = desk.add(1)
    waiting = desk.add(5, after=(first,), when="all_done")
    desk.take(shard=1)
    desk.now += 31_000_000
    desk.ask("reap", 1)
    assert state(desk, first) == "failed"
    assert state(desk, waiting) == "pending"


def test_a_tick_whose_scheduler_died_midway_is_made_by_the_next(desk):
    job = desk.job(3)
    tick = Tick(name="nightly", at=desk.now + 1, job=job)
    desk.engine.apply(dying(desk.store.tick(tick), before="enqueue"))
    assert desk.ask("get", job.id) is None
    assert desk.ask("ticks", ["nightly"]) == {"nightly": tick.at}
    assert state(desk, job.id) == "pending"
    assert desk.ask("tick", Tick(name="nightly", at=tick.at, job=desk.job(4))) is False
    assert len(desk.ask("list_jobs")) == 1


def test_a_later_tick_does_not_hide_one_that_was_not_made_yet(desk):
    first = Tick(name="nightly", at=desk.now + 1, job=desk.job(2))
    desk.engine.apply(dying(desk.store.tick(first), before="enqueue"))
    later = Tick(name="nightly", at=desk.now + 2, job=desk.job(3))
    assert desk.ask("tick", later) is True
    desk.ask("ticks", ["nightly"])
    assert [desk.ask("get", tick.job.id).state for tick in (first, later)] == ["pending", "pending"]


def test_a_tick_that_is_sent_again_makes_the_job_that_it_noted(desk):
    tick = Tick(name="nightly", at=desk.now + 1, job=desk.job(2))
    desk.engine.apply(dying(desk.store.tick(tick), before="enqueue"))
    assert desk.ask("tick", tick) is True
    assert desk.ask("get", tick.job.id).state == "pending"


# ── keys that belong to a shard ──


def test_a_key_that_lives_in_another_shard_is_a_config_error(desk):
    for key in ("alpha", "beta"):
        elsewhere = (home(key, SHARDS) + 1) % SHARDS
        with pytest.raises(ConfigError, match="lives in shard"):
            desk.add(elsewhere, unique=Unique(key, "until_done"))
        with pytest.raises(ConfigError, match="lives in shard"):
            desk.add(elsewhere, concurrency=Concurrency(key, 1))


def test_of_fifty_callers_with_one_unique_key_one_makes_its_job(cluster, namespace):
    shard = home("key", SHARDS)
    made, start = [], threading.Barrier(10)

    def call():
        desk = RedisDesk(cluster.url, namespace, shards=SHARDS)
        desk.ask("reap", shard)
        start.wait(WITHIN)
        for _ in range(5):
            made.extend(desk.ask("enqueue", shard, [desk.job(shard, unique=Unique("key", "until_done"))]))
        desk.close()

    threads = [threading.Thread(target=call) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == 50
    assert len({each.id for each in made}) == 1
    assert sum(not each.deduplicated for each in made) == 1


def test_lists_and_queues_are_over_all_shards(desk):
    ids = [desk.add(shard % SHARDS, queue="q") for shard in range(20)]
    pages, before = [], ""
    while page := desk.ask("list_jobs", before=before, limit=7):
        pages.append([job.id for job in page])
        before = page[-1].id
    assert [id_ for page in pages for id_ in page] == ids[::-1]
    desk.ask("pause", "q", paused=True)
    (queue,) = desk.ask("queues")
    assert (queue.name, queue.pending, queue.paused, queue.oldest_due) == ("q", 20, True, desk.now)
    assert all(desk.take(shard=shard, queues=(("q",),)) == () for shard in range(SHARDS))
    assert desk.ask("purge", "completed") == 0


def test_a_shard_is_found_where_its_slot_has_moved_to(cluster, desk):
    """Steps and enqueues follow MOVED, and scripts are sent again to a node that has not seen them."""
    ids = [desk.add(6) for _ in range(3)]
    cluster.migrate(*elsewhere(cluster, desk))
    (job, *_) = desk.take(2, shard=6)
    assert job.id == ids[0]
    assert desk.end(job).verdicts == ("ok",)
    assert desk.add(6)


def test_nothing_runs_on_half_a_shard_while_its_slot_moves(cluster, desk):
    """Scripts find the other keys of a shard by themselves: on a node that has some of them only, they would see jobs
    that are not there and write keys that stop the move.
    """
    ids = [desk.add(6) for _ in range(50)]
    slot, target = elsewhere(cluster, desk)
    move = threading.Thread(target=cluster.migrate, args=(slot, target, 0.05))
    move.start()
    done = []
    while move.is_alive() or len(done) < 50:
        for job in desk.take(2, shard=6):
            desk.add(6, queue="other")
            assert desk.end(job).verdicts == ("ok",)
            done.append(job.id)
    move.join(30)
    assert cluster.master_of(slot) is target
    assert done == ids
    assert len(desk.take(100, shard=6, queues=(("other",),))) == 50


def elsewhere(cluster, desk):
    """The slot of shard 6, and a node that does not serve it."""
    slot = slot_of(keys.shard(desk.engine.namespace, 6).encode())
    return slot, next(node for node in cluster.nodes if node is not cluster.master_of(slot))
