"""Records of limits: expiry, corruption, other versions, wrong clocks, forks."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time

import psycopg
import pytest
import redis

import backstay
from backstay import CorruptRecord, sync
from backstay.engine.base import Read
from backstay.limit.algorithms import Fixed
from backstay.limit.machine import LIMIT, LimitState
from backstay.testing.waiting import eventually

ALGORITHMS = ("fixed", "sliding", "sliding-counter", "token-bucket", "gcra")
HOUR = 3_600_000_000


@pytest.fixture
def redis_client(backstay_redis):
    with redis.Redis.from_url(backstay_redis.url) as client:
        yield client


def record(stay, limit, key):
    return stay.engine.key(LIMIT.name, limit.spec.record(key))


@pytest.mark.redis
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_record_on_redis_expires_when_it_no_longer_counts(connect, backstay_redis, redis_client, algorithm):
    stay = connect(backstay_redis.url)
    api = stay.limit("api", "10/2s", algorithm=algorithm)
    decision = api.hit("k", 3)
    life = redis_client.pttl(record(stay, api, "k"))
    spare = 2000 if algorithm == "sliding" else 0  # the expiry is set once per window, not at every hit
    assert 0 < life <= decision.reset_after * 1000 + 1 + spare
    brief = stay.limit("api", "5/30ms", algorithm=algorithm)
    brief.hit("k")
    assert eventually(lambda: not redis_client.exists(record(stay, brief, "k")))


@pytest.mark.timed
@pytest.mark.redis
def test_a_long_hit_log_expires_with_its_last_hit(connect, backstay_redis, redis_client):
    stay = connect(backstay_redis.url)
    api = stay.limit("api", "1000/300ms")
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        api.hit("k")
        life = redis_client.pttl(record(stay, api, "k"))
        assert 299 <= life <= 600
        time.sleep(0.0005)
    assert redis_client.strlen(record(stay, api, "k")) > 256  # too long to be rewritten at every hit
    assert eventually(lambda: not redis_client.exists(record(stay, api, "k")))


@pytest.mark.redis
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_reset_key_leaves_no_record_behind(connect, backstay_redis, redis_client, algorithm):
    stay = connect(backstay_redis.url)
    api = stay.limit("api", "10/hour", algorithm=algorithm)
    api.hit("k", 3)
    api.reset("k")
    assert not redis_client.exists(record(stay, api, "k"))


@pytest.mark.redis
def test_an_exact_window_of_a_thousand_hits_uses_less_than_24_kib(connect, backstay_redis, redis_client):
    stay = connect(backstay_redis.url)
    api = stay.limit("api", "1000/hour")
    while api.hit("k").allowed:
        pass
    assert redis_client.memory_usage(record(stay, api, "k")) <= 24 * 1024


def overwrite(url, stay, api, doc):
    """Overwrite a record."""
    name = api.spec.record("k")
    if url.startswith("redis"):
        with redis.Redis.from_url(url) as client:
            client.set(stay.engine.key(LIMIT.name, name), doc)
    elif url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("UPDATE backstay_state SET doc = %s WHERE name = %s", (doc, name.encode()))
    else:
        db = sqlite3.connect(stay.engine.path)
        with db:
            db.execute("UPDATE backstay_state SET doc = ? WHERE name = ?", (doc, name))
        db.close()


DAMAGE = {
    "another version": lambda raw: raw[:1] + b"\x02" + raw[2:],
    "cut short": lambda raw: raw[:-3],
    "nonsense": lambda raw: b"nonsense",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("algorithm", ["fixed", "sliding", "gcra"])
def test_a_corrupt_record_raises_and_never_admits(connect, shared_url, algorithm, damage):
    stay = connect(shared_url, profile=backstay.MAX_AVAILABILITY)
    api = stay.limit("api", "10/hour", "99/day", algorithm=algorithm)
    api.hit("k", 3)
    with_rates = [stay.limit("one", "10/hour", algorithm=algorithm), api]
    with_rates[0].hit("k", 3)
    for limit in with_rates:
        state = stay.engine.apply(Read(LIMIT, limit.spec.record("k"))).state
        overwrite(shared_url, stay, limit, DAMAGE[damage](LIMIT.encode(state)))
        for call in (limit.hit, limit.peek, limit.refund, limit.wait):
            with pytest.raises(CorruptRecord):
                call("k")
        (use,) = [u for u in stay.limits.list(limit.name) if u.key == "k"]
        assert use.trouble
    assert stay.limit("api", "10/hour", "99/day", algorithm=algorithm).hit("other").allowed


def test_a_record_of_another_algorithm_raises_corrupt_record(connect, shared_url):
    stay = connect(shared_url)
    api = stay.limit("api", "10/hour")
    api.hit("k")
    for marks in ((Fixed(10, 5, 1),), (), (Fixed(10, 5, 1), Fixed(10, 5, 1))):
        overwrite(shared_url, stay, api, LIMIT.encode(LimitState(1, 1_700_000_000_000_000, marks)))
        with pytest.raises(CorruptRecord):
            api.hit("k")


@pytest.mark.parametrize("off", [-HOUR, HOUR, -24 * HOUR])
def test_a_client_with_a_wrong_clock_is_limited_like_any_other(connect, shared_url, off):
    stay, other = connect(shared_url), connect(shared_url)
    api, theirs = (one.limit("api", "4/hour") for one in (stay, other))
    assert theirs.hit("k").count == 1
    stay.engine.correct_clock(stay.engine.now() + off)
    assert api.hit("k").count == 2
    stay.engine.correct_clock(stay.engine.now() + off)
    assert api.wait("k").count == 3
    stay.engine.correct_clock(stay.engine.now() + off)
    api.refund("k")
    assert theirs.hit("k").count == 3
    assert abs(api.peek("k").at - theirs.peek("k").at) < 30


@pytest.mark.redis
def test_a_forked_child_shares_the_count(backstay_redis, namespace):
    with sync.Backstay(backstay_redis.url, namespace=namespace) as stay:
        api = stay.limit("api", "3/hour")
        assert api.hit("k").count == 1
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            os._exit(0 if api.hit("k").count == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert api.hit("k").count == 3


def test_many_tasks_may_use_one_limit_at_the_same_time(engine_url, namespace):
    async def main():
        async with backstay.Backstay(engine_url, namespace=namespace) as stay:
            api = stay.limit("api", "50/hour")
            decisions = await asyncio.gather(*[api.hit("k") for _ in range(80)])
            assert sum(d.allowed for d in decisions) == 50

    asyncio.run(main())
