"""A rate holds over all shards: claims in other shards than the rate's own take permits from it."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict

import pytest
from redis_store_client import START, dying

from backstay.engine.base import StoreOperation
from backstay.job.ids import hash_shard, rate_shard
from backstay.job.model import Concurrency, StartRate
from backstay.job.sharding import shard_for
from backstay.job.stores.redis.permits import LONGEST_LIFE, LONGEST_PAUSE, SHORTEST_LIFE
from support.store_client import SECOND

pytestmark = pytest.mark.redis

SHARDS = 4
MINUTE = 60 * SECOND


@pytest.fixture
def client(clients):
    return clients(shards=SHARDS, now=START)


def home_of(name):
    return rate_shard(name, SHARDS)


def elsewhere(name):
    return [shard for shard in range(SHARDS) if shard != home_of(name)]


def send_one(request):
    """Return an operation that sends one request of a procedure and returns its reply."""

    def work(_):
        return (yield request)

    return StoreOperation(work, key=request.key.decode())


def start_all(client, want=10):
    """Claim in every shard, and return how many jobs started."""
    return sum(len(client.claim(want, shard=shard)) for shard in range(SHARDS))


def assert_within(starts, interval, burst, what):
    """Check every window of a list of start times: it has at most `burst` starts, and one more for each interval."""
    for first, last in itertools.combinations(range(len(starts)), 2):
        room = burst + (starts[last] - starts[first]) / interval
        assert last - first + 1 <= room, f"{what}: {last - first + 1} starts in {starts[last] - starts[first]} µs"


# ── where jobs are ──


def test_a_job_that_may_be_in_any_shard_is_in_the_shard_of_its_rate():
    rate = StartRate("mail", SECOND, 1)
    assert shard_for(SHARDS, rate=rate) == home_of("mail")
    assert shard_for(1, rate=rate) == 0
    assert {home_of(f"type-{n}") for n in range(100)} == set(range(SHARDS))


def test_a_key_or_chain_precedes_the_rate():
    rate = StartRate("mail", SECOND, 1)
    other = elsewhere("mail")[0]
    key = next(key for n in itertools.count() if hash_shard(key := f"k{n}", SHARDS) == other)
    assert shard_for(SHARDS, concurrency=Concurrency(key, 1), rate=rate) == other
    assert shard_for(SHARDS, chain=f"{other:x}-1", rate=rate) == other
    assert shard_for(SHARDS, after=(f"{other:x}-1",), rate=rate) == other


# ── permits ──


def test_a_bucket_is_shared_by_all_shards(client):
    rate = StartRate("api", SECOND, 3)
    for shard in range(SHARDS):
        for _ in range(3):
            client.add(shard, rate=rate)
    for passed, started in ((0, 3), (SECOND - 1, 0), (1, 1), (10 * SECOND, 3)):
        client.now += passed
        assert start_all(client) == started


def test_a_queues_rate_is_shared_by_all_shards(client):
    client.apply("limit_queue", "default", StartRate("default", SECOND, 2))
    for shard in range(SHARDS):
        client.add(shard)
    assert start_all(client) == 2
    client.now += SECOND
    assert start_all(client) == 1
    client.apply("limit_queue", "default", None)
    assert start_all(client) == 1


def test_next_in_is_the_time_when_the_other_shard_admits_the_next_job(client):
    shard = elsewhere("api")[0]
    for _ in range(3):
        client.add(shard, rate=StartRate("api", 4 * SECOND, 1))
    for passed, jobs, next_in in ((0, 1, 4), (1, 0, 3), (3, 1, 4)):
        client.now += passed * SECOND
        reply = client.exchange(shard=shard, want=10, lease=MINUTE)
        assert (len(reply.jobs), reply.next_in) == (jobs, next_in * SECOND)


def test_jobs_with_and_without_permits_are_claimed_in_one_exchange(client):
    shard = elsewhere("api")[0]
    client.add(shard, rate=StartRate("api", SECOND, 1))
    client.add(shard, rate=StartRate("api", SECOND, 1))
    client.add(shard)
    jobs = client.claim(10, shard=shard)
    assert len(jobs) == 2
    assert len({job.fence for job in jobs}) == 2
    assert client.exchange(shard=shard, want=10).next_in == SECOND


def test_a_job_with_two_rates_needs_a_permit_of_each(client):
    """The permits of one rate are returned if the other rate has none."""
    bucket = next(name for n in itertools.count() if home_of(name := f"b{n}") != home_of("default"))
    shard = next(shard for shard in elsewhere(bucket) if shard != home_of("default"))
    client.apply("limit_queue", "default", StartRate("default", 10 * SECOND, 1))
    rate = StartRate(bucket, 15 * SECOND, 1)
    ids = [client.add(shard, rate=rate) for _ in range(3)]
    assert [job.id for job in client.claim(10, shard=shard)] == ids[:1]
    client.now += 10 * SECOND
    assert client.claim(10, shard=shard) == ()
    client.now += 5 * SECOND
    assert [job.id for job in client.claim(10, shard=shard)] == ids[1:2]
    client.now += 60 * SECOND
    assert [job.id for job in client.claim(10, shard=shard)] == ids[2:]


def test_unused_permits_are_returned(client, clients):
    """Another worker claims the job between the two requests of an exchange. Its permit goes back to the rate."""
    shard, rate = elsewhere("api")[0], StartRate("api", MINUTE, 3)
    client.add(shard, rate=rate)
    other = clients(shards=SHARDS, now=START, name="other")
    procedure = client.store.exchange(client.command(want=10, shard=shard)).work(b"%d" % client.now)
    first = client.engine.apply(send_one(next(procedure)))
    permits = client.engine.apply(send_one(procedure.send(first)))
    second = procedure.send(permits)
    assert len(other.claim(1, shard=shard)) == 1
    settle = procedure.send(client.engine.apply(send_one(second)))
    with pytest.raises(StopIteration) as end:
        procedure.send(client.engine.apply(send_one(settle)))
    assert end.value.value.jobs == ()
    for _ in range(3):
        client.add(home_of("api"), rate=rate)
    assert len(client.claim(10, shard=home_of("api"))) == 2


# ── lost replies and deaths ──


@pytest.mark.parametrize("before", ["exchange", "settle_permits"])
def test_permits_of_a_worker_that_died_are_lost_and_then_the_rate_goes_on(client, before):
    """`exchange`: it dies with permits that it has not used. `settle_permits`: it has used them."""
    shard, rate = elsewhere("api")[0], StartRate("api", 10 * SECOND, 1)
    for _ in range(3):
        client.add(shard, rate=rate)
    op = client.store.exchange(client.command(want=10, shard=shard))
    client.engine.apply(dying(op, before=before, nth=2 if before == "exchange" else 1))
    started = 1 if before == "settle_permits" else 0
    assert len(client.apply("list_jobs", state="running")) == started
    assert client.claim(10, shard=shard) == ()
    assert client.claim(10, shard=home_of("api")) == ()
    client.now += LONGEST_LIFE + 10 * SECOND
    assert len(client.claim(10, shard=shard)) == 1
    assert client.claim(10, shard=shard) == ()


@pytest.mark.parametrize("before", ["take_permits", "exchange", "settle_permits"])
def test_an_exchange_that_is_sent_again_gets_the_same_jobs(client, before):
    """The exchange is cut before one of its requests, and is sent again with the same number."""
    shard, rate = elsewhere("api")[0], StartRate("api", SECOND, 2)
    plain = client.add(shard)
    ids = [client.add(shard, rate=rate) for _ in range(4)]
    command = client.command(want=10, shard=shard)
    op = client.store.exchange(command)
    client.engine.apply(dying(op, before=before, nth=2 if before == "exchange" else 1))
    for _ in range(2):
        reply = client.engine.apply(client.store.exchange(command))
        expected = [plain, *ids[:2]] if before == "settle_permits" else [plain]
        assert [job.id for job in reply.jobs] == expected
    assert len(client.apply("list_jobs", state="running")) == len(expected)


def test_permits_are_not_used_after_their_end(client):
    """A process is stopped between taking permits and using them."""
    shard, rate = elsewhere("api")[0], StartRate("api", 2 * SECOND, 1)
    client.add(shard, rate=rate)
    client.add(home_of("api"), rate=rate)
    clock = b"%d" % client.now
    procedure = client.store.exchange(client.command(want=10, shard=shard)).work(clock)
    first = client.engine.apply(send_one(next(procedure)))
    permits = client.engine.apply(send_one(procedure.send(first)))
    second = procedure.send(permits)
    client.now += SHORTEST_LIFE + 2 * SECOND
    assert len(client.claim(10, shard=home_of("api"))) == 1
    late = second._replace(request=second.request.replace(clock, b"%d" % client.now))
    client.engine.apply(send_one(late))
    assert len(client.apply("list_jobs", state="running")) == 1


# ── any window ──


@pytest.mark.parametrize("seed", range(12))
def test_starts_never_exceed_the_rates_in_any_window(clients, seed):
    """Four workers claim in random shards at random times, some die on the way. The starts of each bucket and of the
    queue stay within their rates in every window, and all jobs start in the end.
    """
    dice = random.Random(seed)
    workers = [clients(shards=SHARDS, now=START, name=f"w{n}") for n in range(4)]
    rates = [StartRate(f"bucket-{n}", dice.choice((50_000, 200_000, SECOND)), dice.choice((1, 2, 5))) for n in range(3)]
    limit = StartRate("default", dice.choice((40_000, 300_000)), dice.choice((1, 3, 8)))
    workers[0].apply("limit_queue", "default", limit)
    jobs = {}
    for _ in range(60):
        rate = dice.choice([*rates, None])
        jobs[workers[0].add(dice.randrange(SHARDS), rate=rate, retries=1000)] = rate
    starts, now, idle = defaultdict(list), START, 0
    while jobs and idle < 2000:
        now += dice.choice((0, 1000, 20_000, 100_000))
        worker = dice.choice(workers)
        for each in workers:
            each.now = now
        shard = dice.randrange(SHARDS)
        op = worker.store.exchange(worker.command(want=dice.choice((1, 3, 10)), shard=shard, lease=MINUTE * 60))
        if dice.random() < 0.1:
            worker.engine.apply(dying(op, before=dice.choice(("take_permits", "settle_permits"))))
        else:
            worker.engine.apply(op)
        idle += 1
        for job in worker.apply("list_jobs", state="running", limit=100):
            rate = jobs.pop(job.id, None) if job.id in jobs else False
            if rate is not False:
                idle = 0
                starts["queue"].append(job.started)
                if rate is not None:
                    starts[rate].append(job.started)
    assert not jobs, "all jobs have started"
    assert_within(sorted(starts.pop("queue")), limit.interval, limit.burst, "the queue")
    for rate, times in starts.items():
        assert_within(sorted(times), rate.interval, rate.burst, rate.bucket)


def test_a_used_up_rate_is_asked_once_a_second_and_delays_no_other_job(client, monkeypatch):
    shard, rate = elsewhere("api")[0], StartRate("api", MINUTE, 1)
    for _ in range(3):
        client.add(shard, rate=rate)
    called, call = [], client.store._call

    def record(verb, *args):
        called.append(verb)
        return call(verb, *args)

    monkeypatch.setattr(client.store, "_call", record)
    client.claim(1, shard=shard)
    assert called.count("take_permits") == 1
    for _ in range(5):
        client.add(shard)
        assert len(client.claim(10, shard=shard)) == 1
    assert called.count("take_permits") == 2
    client.now += LONGEST_PAUSE
    client.claim(10, shard=shard)
    assert called.count("take_permits") == 3
