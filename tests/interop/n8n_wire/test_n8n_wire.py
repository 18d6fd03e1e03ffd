"""`wire="n8n"`: one lock for Python and for n8n's Redis nodes, which a fake sends command by command."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis

from backstay import Backstay, Closed, ConfigError, LeaseLost, LockHeld, LockTimeout, NotOwner, WouldDeadlock
from backstay.engine.base import Apply
from backstay.engine.redis.address import parse
from backstay.engine.redis.engine import RedisEngine
from backstay.interop.n8n_wire import keys as n8n_keys
from backstay.interop.n8n_wire.gate.machine import WIRE, Granted, Inspect, Take
from backstay.testing.waiting import WITHIN, eventually
from support.n8n.nodes import Nodes

pytestmark = pytest.mark.redis
POLL = 0.02


@pytest.fixture
def url(backstay_redis):
    return backstay_redis.url


@pytest.fixture
def scope(namespace):
    return f"{namespace}-scope"


@pytest.fixture
def redis(url):
    with Redis.from_url(url, decode_responses=True) as client:
        yield client


@pytest.fixture
def nodes(url):
    made = Nodes(url, execution_id="77", workflow_id="wf-7", workflow_name="Invoices")
    yield made
    made.redis.close()


@pytest.fixture
def stay(url, connect):
    return connect(url)


def keys(scope):
    return n8n_keys.lock_key(scope), n8n_keys.meta_key(scope)


def lock(stay, scope, **options):
    return stay.lock(scope, wire="n8n", poll=POLL, **options)


# ── the keys ──


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


# ── against n8n's nodes ──


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


# ── release ──


def test_release_needs_the_lock_id_and_names_the_holder(stay, scope, nodes, redis):
    taken = nodes.acquire(scope)
    with pytest.raises(NotOwner, match=r"^LOGIC ERROR: .*Invoices \(execution 77.*locked_at 20") as caught:
        stay.locks.release(scope, "another", wire="n8n")
    assert caught.value.holder.workflow_name == "Invoices"
    assert redis.exists(*keys(scope)) == 2
    assert stay.locks.release(scope, taken, wire="n8n").idempotent is False
    again = stay.locks.release(scope, taken, wire="n8n")
    assert (again.released, again.idempotent) == (True, True)


def test_absent_identity_is_an_idempotent_success_that_deletes_nothing(stay, scope, redis):
    lease = lock(stay, scope, ttl=60).acquire()
    redis.delete(n8n_keys.meta_key(scope))
    assert lease.release().idempotent is True
    assert redis.get(n8n_keys.lock_key(scope)) == "1"


@pytest.mark.parametrize("meta", ["nonsense", "[]", "null", '"text"', "{}", '{"lock_id": null}', "{" * 200])
def test_an_unreadable_identity_is_not_the_callers(stay, scope, redis, meta):
    lease = lock(stay, scope, ttl=60).acquire()
    redis.set(n8n_keys.meta_key(scope), meta)
    with pytest.raises(NotOwner, match="LOGIC ERROR"):
        lease.release()
    assert redis.exists(*keys(scope)) == 2


@pytest.mark.parametrize("meta", ["nonsense", '"text"'])
def test_an_unreadable_identity_is_reported_as_unreadable_not_as_missing(stay, scope, redis, meta):
    lease = lock(stay, scope, ttl=60).acquire()
    redis.set(n8n_keys.meta_key(scope), meta)
    with pytest.raises(LockHeld, match="identity cannot be read"):
        lock(stay, scope).acquire(wait=0)
    assert "cannot be read" in stay.locks.inspect(scope, wire="n8n").trouble
    with pytest.raises(NotOwner, match=r"LOGIC ERROR.*identity cannot be read"):
        lease.release()
    redis.delete(n8n_keys.lock_key(scope))
    seen = stay.locks.inspect(scope, wire="n8n")
    assert not seen.held
    assert "it is free" in seen.trouble


def test_a_late_release_leaves_the_successor_alone(stay, scope, nodes, redis):
    lease = lock(stay, scope, ttl=60).acquire()
    nodes.delete(scope)  # a forced release
    taken = nodes.acquire(scope)
    with pytest.raises(NotOwner):
        lease.release()
    assert json.loads(redis.get(n8n_keys.meta_key(scope)))["lock_id"] == taken


def test_a_body_whose_keys_were_deleted_raises_lease_lost_at_its_end(stay, scope, nodes):
    with pytest.raises(LeaseLost), lock(stay, scope, ttl=60):
        nodes.delete(scope)


def test_n8n_releases_a_lock_that_python_took(stay, scope, nodes):
    """Python passed its lock_id on to n8n."""
    lease = lock(stay, scope, ttl=60).acquire(lock_id="handed-on")
    assert nodes.release(scope, "handed-on") is False
    assert lease.release().idempotent is True


# ── time ──


@pytest.mark.timed
def test_a_dead_holders_lock_ends_with_its_ttl(stay, scope, nodes):
    lock(stay, scope, ttl=2).acquire()
    assert nodes.try_acquire(scope) is None
    assert eventually(lambda: nodes.try_acquire(scope) is not None)


def test_renewal_is_off_by_default(stay, scope):
    kept = lock(stay, scope, ttl=6, renew=True).acquire()
    other = lock(stay, f"{scope}-2", ttl=0.3).acquire()
    assert other.lost.wait(WITHIN)
    first = kept.expires_at
    assert eventually(lambda: kept.expires_at > first)
    assert kept.release().idempotent is False


def test_a_renewal_extends_both_keys_and_never_recreates_them(stay, scope, nodes, redis):
    lease = lock(stay, scope, ttl=5).acquire()
    lease.renew(ttl=500)
    assert all(redis.pttl(key) > 400_000 for key in keys(scope))
    nodes.delete(scope)
    with pytest.raises(LeaseLost, match="gone"):
        lease.renew()
    assert redis.exists(*keys(scope)) == 0


def test_a_renewal_is_refused_after_n8n_took_the_lock(stay, scope, nodes, redis):
    lease = lock(stay, scope, ttl=5).acquire()
    nodes.delete(scope)
    nodes.acquire(scope, ttl=100)
    with pytest.raises(LeaseLost, match="Invoices"):
        lease.renew(ttl=1000)
    assert redis.ttl(n8n_keys.lock_key(scope)) <= 100


# ── clean-up ──


def test_clean_up_releases_the_locks_of_one_execution_in_the_given_scopes(stay, scope, nodes, url, redis):
    other = Nodes(url, execution_id="78")
    nodes.acquire(f"{scope}-a")
    other.acquire(f"{scope}-b")
    redis.incr(n8n_keys.lock_key(f"{scope}-c"))
    lock(stay, f"{scope}-d", ttl=60).acquire(execution_id="77")
    done = stay.locks.cleanup("77", [f"{scope}-{x}" for x in "abcdd"], wire="n8n")
    assert (done.cleaned, done.cleaned_count, done.scopes) == (True, 2, (f"{scope}-a", f"{scope}-d"))
    assert f"{scope}-c" in done.reason
    left = [x for x in "abcd" if redis.exists(n8n_keys.lock_key(f"{scope}-{x}"))]
    assert left == ["b", "c"]
    other.redis.close()


def test_clean_up_needs_scopes(stay):
    with pytest.raises(ConfigError, match="scopes"):
        stay.locks.cleanup("77", wire="n8n")
    assert "empty" in stay.locks.cleanup("77", [], wire="n8n").reason


def test_a_numeric_execution_id_in_json_matches_its_text(stay, scope, redis):
    key, meta = keys(scope)
    redis.set(key, 1)
    redis.set(meta, '{"lock_id": 5, "execution_id": 123456789012}')
    assert stay.locks.cleanup("123456789012", [scope], wire="n8n").cleaned_count == 1


# ── refused ──


def test_only_redis_has_this_wire(connect, tmp_path):
    for url in ("memory://", f"sqlite:///{tmp_path / 'x.db'}"):
        stay = connect(url)
        with pytest.raises(ConfigError, match="Redis"):
            stay.lock("x", wire="n8n")
        with pytest.raises(ConfigError, match="Redis"):
            stay.locks.cleanup("1", ["x"], wire="n8n")
        with pytest.raises(ConfigError, match="Redis"):
            stay.locked("x", wire="n8n")


@pytest.mark.parametrize(
    "options",
    [{"max_waiters": 5}, {"durability": "replicas:1"}, {"poll": 0}, {"ttl": 0}, {"ttl": -1}, {"wire": "other"}],
)
def test_invalid_lock_options_are_refused(stay, options):
    with pytest.raises(ConfigError):
        stay.lock("x", **{"wire": "n8n", **options})


@pytest.mark.parametrize("scope", ["", " ", "\t\n"])
def test_a_blank_scope_is_refused_as_n8ns_primitives_refuse_it(stay, scope):
    with pytest.raises(ConfigError, match="name"):
        stay.lock(scope, wire="n8n")


def test_the_poll_option_is_refused_on_other_wires(stay):
    with pytest.raises(ConfigError, match="poll"):
        stay.lock("x", poll=1)


def test_a_lease_of_this_wire_cannot_guard_writes(stay, scope):
    with lock(stay, scope, ttl=60) as lease:
        assert lease.fence == 0
        with pytest.raises(ConfigError, match="fence"):
            stay.guard(lease)


def test_a_holder_that_acquires_again_gets_would_deadlock(stay, scope):
    with lock(stay, scope, ttl=60):
        with pytest.raises(WouldDeadlock):
            lock(stay, scope).acquire(wait=WITHIN)
        with lock(stay, scope, ttl=60, reentrant=True) as again:
            assert again.depth == 1
        stay.lock(scope).acquire(wait=0).release()  # the lock of that name on Backstay's own wire is a different one


def test_a_second_caller_with_the_same_lock_id_is_not_granted(stay, scope):
    lease = lock(stay, scope, ttl=60).acquire(lock_id="same", execution_id="1")
    assert lock(stay, scope, ttl=60).try_acquire(lock_id="same", execution_id="1") is None
    lease.release()


def test_close_wakes_waiters_with_closed(url, scope, connect, nodes):
    nodes.acquire(scope)
    stay = connect(url)
    raised = []

    def wait():
        try:
            stay.lock(scope, wire="n8n", poll=30).acquire()
        except Closed:
            raised.append("Closed")

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: bool(stay._core.latches))
    stay.close()
    waiter.join(WITHIN)
    assert raised == ["Closed"]


def test_a_decorated_function_shares_its_lock_with_n8n(stay, namespace, nodes):
    @stay.locked("{scope}-{n}", wire="n8n", ttl=60)
    def work(scope, n):
        return nodes.try_acquire(f"{scope}-{n}")

    assert work(namespace, 7) is None
    assert nodes.try_acquire(f"{namespace}-7")


def test_inspect_changes_no_keys(stay, scope, redis):
    assert not stay.locks.inspect(scope, wire="n8n").held
    assert redis.exists(*keys(scope)) == 0
    engine = stay.engine
    assert engine.apply(Apply(WIRE, scope, Inspect(engine.now() + 10**7))).count == 0
