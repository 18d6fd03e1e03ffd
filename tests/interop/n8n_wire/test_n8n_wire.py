"""`wire="n8n"`: one lock for Python and for n8n's Redis nodes, which a fake sends command by command."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from wire_locks import keys, lock

from backstay import Backstay, LockHeld, LockTimeout
from backstay.engine.base import Apply
from backstay.engine.redis.address import parse
from backstay.engine.redis.engine import RedisEngine
from backstay.interop.n8n_wire import keys as n8n_keys
from backstay.interop.n8n_wire.gate.machine import WIRE, Granted, Take
from backstay.testing.waiting import WITHIN, eventually

pytestmark = pytest.mark.redis


def test_a_held_lock_is_a_counter_and_an_identity_with_one_ttl(stay, scope, redis):
    key, meta = keys(scope)
    lease = stay.lock(scope, wire="n8n").acquire(
        lock_id="L1", execution_id="42", workflow_id="w", workflow_name='Müller "x"\n'
    )
    assert redis.get(key) == "1"
    identity = json.loads(redis.get(meta))
    assert list(identity) == ["lock_id", "workflow_id", "workflow_name", "execution_id", "locked_at"]
    assert (identity["lock_id"], identity["execution_id"], identity["workflow_id"]) == ("L1", "42", "w")
    assert identity["workflow_name"] == 'Müller "x"\n'
    taken = datetime.fromisoformat(identity["locked_at"])
    assert identity["locked_at"].endswith("Z")
    assert abs(taken - datetime.now(UTC)) < timedelta(seconds=30)
    assert 86_390_000 < redis.pttl(key) <= 86_400_000
    assert abs(redis.pttl(key) - redis.pttl(meta)) < 100
    assert lease.as_dict() == {
        "acquired": True,
        "count": 1,
        "scope": scope,
        "key": key,
        "meta_key": meta,
        **identity,
    }
    assert lease.release().idempotent is False
    assert redis.exists(key, meta) == 0


def test_the_defaults_are_a_day_without_renewal(stay, scope):
    lease = stay.lock(scope, wire="n8n").acquire()
    assert (lease.ttl, lease.renews) == (86_400, False)
    assert stay.lock(scope, wire="n8n")._wait == 86_400
    assert stay.lock(scope, wire="n8n", wait=None)._wait is None
    lease.release()


def test_the_async_api_takes_the_same_lock(url, scope, namespace, nodes):
    async def main():
        async with Backstay(url, namespace=namespace) as stay, stay.lock(scope, wire="n8n", ttl=60) as lease:
            assert lease.as_dict()["count"] == 1
            assert await asyncio.to_thread(nodes.try_acquire, scope) is None
            assert await stay.lock(scope, wire="n8n").try_acquire() is None

    asyncio.run(main())
    assert nodes.try_acquire(scope)


def test_the_script_formats_dates_as_javascript_does(url, namespace):
    """Redis has no date functions, so the script computes leap years, month ends and milliseconds itself."""
    moments = [datetime(y, m, d, 23, 59, 59, 999_000, UTC) for y in (1970, 2000, 2024, 2026, 2100) for m, d in
               ((1, 1), (2, 28), (3, 1), (12, 31))]  # fmt: skip
    moments += [datetime(2024, 2, 29, tzinfo=UTC), datetime(2000, 2, 29, 12, tzinfo=UTC)]
    for moment in moments:
        now = int(moment.timestamp()) * 1_000_000 + moment.microsecond
        engine = RedisEngine(parse(url), namespace=namespace, clock=lambda now=now: now)
        name = f"{namespace}-{now}"
        reply = engine.apply(Apply(WIRE, name, Take(now, "t", "L", '{"lock_id":"L"', 1000, False, "")))
        assert isinstance(reply, Granted)
        assert reply.locked_at == moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        engine.close_blocking()


def test_python_and_n8n_exclude_one_another(stay, scope, nodes):
    lease = lock(stay, scope, ttl=60).acquire()
    assert nodes.try_acquire(scope) is None
    lease.release()
    taken = nodes.try_acquire(scope)
    with pytest.raises(LockHeld, match=r"Invoices.*execution 77") as caught:
        lock(stay, scope).acquire(wait=0)
    assert caught.value.holder.lock_id == taken
    assert nodes.release(scope, taken) is False
    lock(stay, scope).acquire(wait=0).release()


def test_a_waiter_never_moves_the_holders_ttl(stay, scope, nodes, redis):
    key, meta = keys(scope)
    nodes.try_acquire(scope, ttl=1000)
    before = redis.pttl(key), redis.pttl(meta)
    began = time.monotonic()
    with pytest.raises(LockTimeout):
        lock(stay, scope, ttl=5).acquire(wait=0.3)
    passed = (time.monotonic() - began) * 1000
    for at_first, now in zip(before, (redis.pttl(key), redis.pttl(meta)), strict=True):
        assert now <= at_first
        assert at_first - now < passed + 1000
    assert redis.get(key) == "1"  # nor the counter


def test_a_waiter_gets_the_lock_when_n8n_releases_it(stay, scope, nodes):
    taken = nodes.acquire(scope)
    got = []

    def wait():
        with lock(stay, scope) as lease:
            got.append(lease.as_dict()["count"])

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: bool(stay._core.latches))
    assert got == []
    nodes.release(scope, taken)
    waiter.join(WITHIN)
    assert got == [1]


def test_the_reported_count_includes_increments_of_racing_nodes(stay, scope, nodes, redis):
    lease = lock(stay, scope, ttl=60).acquire()
    nodes.incr(n8n_keys.lock_key(scope), 60)  # a node that saw no key before the acquire, and lost the race
    with pytest.raises(LockHeld) as caught:
        lock(stay, scope).acquire(wait=0)
    assert caught.value.count == 2
    lease.release()
    assert redis.exists(*keys(scope)) == 0


def test_a_counter_without_an_identity_is_a_held_lock(stay, scope, redis):
    """n8n is between INCR and SET, or crashed there."""
    redis.incr(n8n_keys.lock_key(scope))
    with pytest.raises(LockHeld, match="no identity"):
        lock(stay, scope).acquire(wait=0)
    seen = stay.locks.inspect(scope, wire="n8n")
    assert seen.held
    assert "force_release" in seen.trouble
    assert stay.locks.force_release(scope, wire="n8n").holders[0].lock_id == "?"
    lock(stay, scope).acquire(wait=0).release()


@pytest.mark.parametrize("counter", ["0", "-1", "by hand"])
def test_an_invalid_counter_is_a_held_lock_and_inspect_reports_it(stay, scope, redis, counter):
    """n8n's nodes wait while the key exists, whatever its value; inspect must not report the lock as free."""
    redis.set(n8n_keys.lock_key(scope), counter)
    with pytest.raises(LockHeld):
        lock(stay, scope).acquire(wait=0)
    seen = stay.locks.inspect(scope, wire="n8n")
    assert seen.held
    assert "force_release" in seen.trouble
    assert scope in stay.locks.cleanup("1", [scope], wire="n8n").reason
    assert stay.locks.force_release(scope, wire="n8n").holders
    lock(stay, scope).acquire(wait=0).release()


def test_an_identity_without_a_counter_is_waited_for_then_replaced(stay, scope, nodes, redis, monkeypatch):
    """n8n deletes the counter first: a caller that took the lock between its two deletions would lose its identity."""
    key, meta = keys(scope)
    monkeypatch.setattr("backstay.interop.n8n_wire.gate.flows.SETTLE", 60.0)
    nodes.acquire(scope)
    redis.delete(key)
    got = []
    taking = threading.Thread(target=lambda: got.append(lock(stay, scope).acquire(wait=0)))
    taking.start()
    assert eventually(lambda: bool(stay._core.latches))  # the acquire has seen the identity and waits
    assert not redis.exists(key)
    redis.delete(meta)
    taking.join(30)
    assert json.loads(redis.get(meta))["lock_id"] == got[0].id
    got[0].release()
    monkeypatch.setattr("backstay.interop.n8n_wire.gate.flows.SETTLE", 0.2)
    nodes.acquire(scope)
    redis.delete(key)  # n8n crashed here, so the identity stays
    lease = lock(stay, scope).acquire(wait=0)
    assert json.loads(redis.get(meta))["lock_id"] == lease.id
    assert lease.release().idempotent is False
