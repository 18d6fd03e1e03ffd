"""`wire="n8n"`: refused options, and calls that are special to this wire."""

from __future__ import annotations

import threading

import pytest
from wire_locks import keys, lock

from backstay import Closed, ConfigError, WouldDeadlock
from backstay.engine.base import Apply
from backstay.interop.n8n_wire.gate.machine import WIRE, Inspect
from backstay.testing.waiting import WITHIN, eventually

pytestmark = pytest.mark.redis


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
