"""`wire="n8n"` with lost replies, abandoned calls and late copies of commands: no lock stays held without a holder."""

from __future__ import annotations

import asyncio
import json

import pytest
from redis import Redis

from backstay import Backstay, EngineUnavailable, OutcomeUnknown
from backstay.engine.base import Apply, Expired
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.gate.machine import WIRE, Granted, Release, Take
from backstay.policy import Policy
from backstay.testing.waiting import eventually, soon
from support.faults import Fault
from support.n8n.nodes import Nodes

pytestmark = pytest.mark.redis


@pytest.fixture
def scope(namespace):
    return f"{namespace}-scope"


@pytest.fixture
def redis(backstay_redis):
    with Redis.from_url(backstay_redis.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def stay(backstay_redis, connect):
    return connect(backstay_redis.url, profile=Policy(lock_retries=0)).open()  # opening synchronises the clock


@pytest.fixture
def fault(stay):
    return Fault(stay.engine)


def held(redis, scope):
    return redis.exists(keys.lock_key(scope), keys.meta_key(scope))


def test_an_acquire_whose_reply_is_lost_recognises_its_own_grant(stay, fault, redis, scope):
    fault.lose(Take)
    lease = stay.lock(scope, wire="n8n", ttl=60).acquire(lock_id="L", wait=0)
    assert json.loads(redis.get(keys.meta_key(scope)))["lock_id"] == "L"
    assert redis.get(keys.lock_key(scope)) == "1"
    assert lease.as_dict()["count"] == 1
    assert len(fault.lost) == 1
    assert lease.release().idempotent is False
    assert held(redis, scope) == 0


def test_a_late_copy_of_an_acquire_after_the_release_takes_nothing(stay, fault, redis, scope):
    fault.lose(Take)
    lease = stay.lock(scope, wire="n8n", ttl=60).acquire(wait=0)
    lease.release()
    assert isinstance(fault.again(fault.lost[0]), Expired)
    assert held(redis, scope) == 0


def test_an_acquire_abandoned_after_a_lost_reply_is_released_later(stay, fault, redis, scope):
    fault.lose(Take)
    fault.away_after = True
    with pytest.raises(OutcomeUnknown):
        stay.lock(scope, wire="n8n", ttl=60).acquire(wait=0)
    assert held(redis, scope) == 2  # the acquire took effect; the caller does not know it
    fault.away = False
    assert eventually(lambda: held(redis, scope) == 0)  # the keeper releases it
    assert isinstance(fault.again(fault.lost[0]), Expired)
    assert held(redis, scope) == 0


def test_a_release_whose_reply_is_lost_succeeds(stay, fault, redis, scope, backstay_redis):
    lease = stay.lock(scope, wire="n8n", ttl=60).acquire(wait=0)
    fault.lose(Release)
    assert lease.release().idempotent is False
    assert held(redis, scope) == 0


def test_a_release_that_cannot_be_sent_is_sent_later(stay, fault, redis, scope):
    lease = stay.lock(scope, wire="n8n", ttl=60).acquire(wait=0)
    fault.away = True
    with pytest.raises(EngineUnavailable):
        lease.release()
    fault.away = False
    assert eventually(lambda: held(redis, scope) == 0)


def test_a_late_copy_of_a_release_leaves_the_successor_alone(stay, fault, redis, scope, backstay_redis):
    lease = stay.lock(scope, wire="n8n", ttl=60).acquire(wait=0)
    fault.lose(Release)
    lease.release()
    nodes = Nodes(backstay_redis.url)
    nodes.acquire(scope)
    fault.again(fault.lost[0])
    assert held(redis, scope) == 2
    nodes.redis.close()


def test_a_command_past_its_deadline_does_nothing(stay, redis, scope):
    engine = stay.engine
    reply = engine.apply(Apply(WIRE, scope, Take(engine.now() - 1_000_000, "t", "L", "{", 1000, False, "")))
    assert isinstance(reply, Expired)
    assert held(redis, scope) == 0


def test_a_resent_acquire_is_granted_for_a_full_ttl(stay, redis, scope):
    """The sender measures the TTL from its last copy, so the keys must as well."""
    engine = stay.engine
    take = Take(engine.now() + 10_000_000, "t", "L", '{"lock_id":"L"', 60_000, False, "")
    first = engine.apply(Apply(WIRE, scope, take))
    redis.pexpire(keys.lock_key(scope), 1000)
    again = engine.apply(Apply(WIRE, scope, Take(take.not_after, "t", "L", take.identity, take.ttl, True, "")))
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert again.locked_at == first.locked_at
    assert redis.pttl(keys.lock_key(scope)) > 50_000


def test_a_cancelled_task_holds_nothing(backstay_redis, namespace, redis, scope):
    async def main():
        async with Backstay(backstay_redis.url, namespace=namespace) as stay:
            for turn in range(20):
                task = asyncio.create_task(stay.lock(scope, wire="n8n", ttl=60).acquire(wait=0))
                for _ in range(turn % 5):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    lease = await task
                except asyncio.CancelledError:
                    continue
                await lease.release()

    asyncio.run(main())
    assert held(redis, scope) == 0


def test_a_cancelled_waiter_leaves_the_holder_alone(backstay_redis, namespace, redis, scope):
    nodes = Nodes(backstay_redis.url)
    nodes.acquire(scope)

    async def waits(stay):
        return stay._core.latches

    async def main():
        async with Backstay(backstay_redis.url, namespace=namespace) as stay:
            task = asyncio.create_task(stay.lock(scope, wire="n8n", poll=0.01).acquire())
            assert await soon(lambda: waits(stay))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert held(redis, scope) == 2
    nodes.redis.close()
