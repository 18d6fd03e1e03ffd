"""`wire="n8n"`: release, expiry, renewal and clean-up of locks."""

from __future__ import annotations

import json

import pytest
from wire_locks import keys, lock

from backstay import ConfigError, LeaseLost, LockHeld, NotOwner
from backstay.interop.n8n_wire import keys as n8n_keys
from backstay.testing.waiting import WITHIN, eventually
from support.n8n.nodes import Nodes

pytestmark = pytest.mark.redis


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
