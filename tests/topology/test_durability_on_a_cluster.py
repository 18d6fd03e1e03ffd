"""`durability="replicas:1"` on a Cluster whose names move and whose masters die between a grant and its confirmation.

The behaviour of one node is tested in tests/gate/test_durability.py.
"""

from __future__ import annotations

import pytest
from node_names import one_on_each, slot

from backstay import EngineError, NotReplicated
from backstay.gate import durability
from backstay.testing.servers import say
from backstay.testing.waiting import eventually

pytestmark = [pytest.mark.redis, pytest.mark.chaos]


class ActionBeforeConfirm:
    """Wraps `replica_acks`: calls `action` once, after a grant and before its confirmation."""

    def __init__(self, replica_acks, action):
        self.replica_acks, self.action = replica_acks, action

    def confirm(self, op, replicas, within):
        action, self.action = self.action, lambda: None
        action()
        return self.replica_acks.confirm(op, replicas, within)


@pytest.fixture
def stay(quiet_cluster, connect):
    return connect(quiet_cluster.url)


@pytest.fixture(autouse=True)
def long_confirm_timeout(monkeypatch):
    monkeypatch.setattr(durability, "CONFIRM_WITHIN", 20.0)


def before_confirm(stay, monkeypatch, action):
    monkeypatch.setattr(stay.engine, "_replica_acks", ActionBeforeConfirm(stay.engine.replica_acks(), action))


def replicas_of(cluster, master):
    return [node for node in cluster.nodes if say(node, "ROLE")[2] == master.port]


def has(node, key):
    """Whether a node stores a key: KEYS ignores slot ownership and never redirects."""
    return say(node, "KEYS", key.replace("{", "\\{").replace("}", "\\}")) != []


def source_and_target(cluster, name):
    """Return the master that serves a name, and another master."""
    source = cluster.master_of(slot(name))
    return source, next(node for node in cluster.masters() if node is not source)


def test_each_master_confirms_its_own_names(stay, quiet_cluster):
    for node, name in one_on_each(quiet_cluster).items():
        key = stay.engine.key("gate", name)
        with stay.lock(name, wait=0, durability="replicas:1"):
            assert [has(replica, key) for replica in replicas_of(quiet_cluster, node)] == [True]


def test_a_name_that_moved_after_its_grant_is_confirmed_at_its_new_node(stay, quiet_cluster, monkeypatch):
    name = "moved"
    source, target = source_and_target(quiet_cluster, name)
    before_confirm(stay, monkeypatch, lambda: quiet_cluster.migrate(slot(name), target))
    try:
        with stay.lock(name, ttl=60, wait=0, durability="replicas:1") as lease:
            key = stay.engine.key("gate", name)
            assert [has(replica, key) for replica in replicas_of(quiet_cluster, target)] == [True]
            assert not has(source, key)
            assert [holder.lock_id for holder in stay.locks.inspect(name).holders] == [lease.id]
        assert stay.locks.inspect(name).count == 0
    finally:
        quiet_cluster.migrate(slot(name), source)


def test_a_migrating_name_is_confirmed_at_the_node_with_its_record(stay, quiet_cluster, monkeypatch):
    """During the migration of the slot its old node still owns it, and redirects to the new one (ASK)."""
    name = "migrating"
    source, target = source_and_target(quiet_cluster, name)
    key = stay.engine.key("gate", name)

    def move_record():
        names = [say(node, "CLUSTER", "MYID") for node in (source, target)]
        say(target, "CLUSTER", "SETSLOT", slot(name), "IMPORTING", names[0])
        say(source, "CLUSTER", "SETSLOT", slot(name), "MIGRATING", names[1])
        assert say(source, "MIGRATE", "127.0.0.1", target.port, key, 0, 5000) == b"OK"

    before_confirm(stay, monkeypatch, move_record)
    try:
        with stay.lock(name, ttl=60, wait=0, durability="replicas:1") as lease:
            assert [has(replica, key) for replica in replicas_of(quiet_cluster, target)] == [True]
            assert [holder.lock_id for holder in stay.locks.inspect(name).holders] == [lease.id]
    finally:
        say(source, "CLUSTER", "SETSLOT", slot(name), "STABLE")
        quiet_cluster.migrate(slot(name), target)
        quiet_cluster.migrate(slot(name), source)


def test_replicas_of_the_old_node_do_not_count_for_the_new_one(stay, quiet_cluster, monkeypatch):
    """They have the grant, but only a replica of the new node can take over from it."""
    monkeypatch.setattr(durability, "CONFIRM_WITHIN", 0.3)
    name = "moved-to-a-node-without-a-replica"
    source, target = source_and_target(quiet_cluster, name)
    (replica,) = replicas_of(quiet_cluster, target)

    def move():
        quiet_cluster.migrate(slot(name), target)
        replica.pause()

    before_confirm(stay, monkeypatch, move)
    try:
        with pytest.raises(NotReplicated) as refused:
            stay.lock(name, ttl=60, wait=0, durability="replicas:1").acquire()
        assert refused.value.confirmed == 0
        assert stay.locks.inspect(name).count == 0
    finally:
        replica.resume()
        quiet_cluster.migrate(slot(name), source)


def test_a_grant_whose_master_died_before_its_confirmation_is_not_returned(cluster, connect, monkeypatch):
    node, name = next(iter(one_on_each(cluster).items()))
    stay = connect(cluster.url)

    def kill_master():
        node.kill()
        cluster.await_failover(node)

    before_confirm(stay, monkeypatch, kill_master)
    with pytest.raises(EngineError):
        stay.lock(name, ttl=60, wait=0, durability="replicas:1").acquire()
    assert not stay._core.held_leases
    assert eventually(lambda: stay.locks.inspect(name).count == 0)  # the keeper keeps resending the release


def test_a_confirmed_grant_survives_the_master_of_its_slot(cluster, connect):
    node, name = next(iter(one_on_each(cluster).items()))
    stay = connect(cluster.url)
    lease = stay.lock(name, ttl=60, renew=False, wait=0, durability="replicas:1").acquire()
    node.kill()
    cluster.await_failover(node)
    (holder,) = stay.locks.inspect(name).holders
    assert (holder.lock_id, holder.fence) == (lease.id, lease.fence)
