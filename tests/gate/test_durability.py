"""`durability="replicas:1"` with a real master and replica, standalone and in a Cluster."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

import backstay
from backstay import ConfigError, EngineRefused, EngineUnavailable, NotReplicated
from backstay.engine.base import Expired
from backstay.engine.redis.address import parse
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.engine.redis.topology.slots import slot_of
from backstay.gate import durability
from backstay.gate.commands import Lost
from backstay.sync import Backstay
from backstay.testing.plugin import start_or_skip
from backstay.testing.servers import RedisCluster, RedisServer, say
from backstay.testing.waiting import eventually, soon
from support.servers import running


class Pair:
    """A master and its replica, which serve the names `x` and `y`."""

    def __init__(self, url, master, replica, nodes):
        self.url, self.master, self.replica, self.nodes = url, master, replica, nodes
        self.link = BlockingLink(parse(master.url), "test", None)

    def ask(self, *command):
        return self.link.call_many([pack(*command)])[0]

    def is_replicating(self):
        return b"state=online" in self.ask("INFO", "replication")

    def is_waiting(self):
        """Return whether a client waits for replicas now."""
        return b"blocked_clients:1\r" in self.ask("INFO", "clients")

    def on_the_replica(self, key):
        reader = BlockingLink(parse(self.replica.url), "test", None)
        try:
            return reader.call_many([pack("READONLY"), pack("GET", key)])[-1]
        finally:
            reader.close()


@contextlib.contextmanager
def master_and_replica():
    master, replica = RedisServer(), None
    try:
        start_or_skip(master)
        replica = RedisServer(options=("--replicaof", "127.0.0.1", str(master.port)))
        yield Pair(master.url, master, replica.start(), [master, replica])
    finally:
        for server in (replica, master):
            if server is not None:
                server.stop()


@contextlib.contextmanager
def cluster():
    """A Cluster whose node timeout is long, so that no failover happens while a test pauses a node."""
    with running(RedisCluster(node_timeout=30)) as group:
        master = group.master_of(slot_of(b"x"))
        assert master is group.master_of(slot_of(b"y"))
        replica = next(node for node in group.nodes if say(node, "ROLE")[2] == master.port)
        yield Pair(group.url, master, replica, group.nodes)


@pytest.fixture(scope="module", params=[master_and_replica, cluster], ids=["server", "cluster"])
def servers(request):
    with request.param() as pair:
        try:
            assert eventually(pair.is_replicating)
            yield pair
        finally:
            pair.link.close()


@pytest.fixture
def pair(servers):
    """The pair; after the test, replication works again."""
    yield servers
    servers.replica.resume()
    assert eventually(servers.is_replicating)
    assert eventually(lambda: servers.ask("WAIT", "1", "1000") == 1)


@pytest.fixture
def stay(pair, connect):
    return connect(pair.url)


@pytest.fixture
def long_timeout(monkeypatch):
    """Give replicas longer to confirm than a test pauses them."""
    monkeypatch.setattr(durability, "CONFIRM_WITHIN", 60.0)


@pytest.fixture
def short_timeout(monkeypatch):
    monkeypatch.setattr(durability, "CONFIRM_WITHIN", 0.2)


pytestmark = [pytest.mark.redis, pytest.mark.chaos]


def gates(stay):
    return {
        "lock": stay.lock("x", durability="replicas:1"),
        "semaphore": stay.semaphore("x", permits=2, durability="replicas:1"),
        "read": stay.rwlock("x", durability="replicas:1").read(),
        "write": stay.rwlock("x", durability="replicas:1").write(),
    }


@pytest.mark.parametrize("kind", ["lock", "semaphore", "read", "write"])
def test_a_grant_is_returned_only_after_a_replica_has_it(stay, pair, long_timeout, kind):
    key = stay.engine.key("gate", "x")
    with gates(stay)[kind] as lease:
        assert lease.ticket.encode() in pair.on_the_replica(key)
        lease.check()
    assert stay.locks.inspect("x").count == 0


@pytest.mark.parametrize("kind", ["lock", "semaphore", "read", "write"])
def test_without_its_replica_a_lock_is_neither_granted_nor_left_held(stay, pair, short_timeout, kind):
    pair.replica.pause()
    with pytest.raises(NotReplicated) as refused:
        gates(stay)[kind].acquire()
    error = refused.value
    assert isinstance(error, EngineUnavailable)
    assert (error.name, error.wanted, error.confirmed) == ("x", 1, 0)
    assert "0 of 1 replicas" in str(error)
    assert stay.locks.inspect("x").count == 0
    assert not stay._core.held_leases
    with stay.lock("x", wait=0):  # a lock without durability is granted
        pass


def test_more_replicas_than_exist_never_confirm(stay):
    with pytest.raises(NotReplicated) as refused:
        stay.lock("x", durability="replicas:2").acquire()
    assert (refused.value.wanted, refused.value.confirmed) == (2, 1)
    assert stay.locks.inspect("x").count == 0


def test_a_queued_waiter_is_granted_after_a_replica_confirms(stay, pair, long_timeout):
    """The waiter gets its turn through the queue; replicas confirm afterwards."""
    lease = stay.lock("x").acquire()
    granted = []
    waiter = threading.Thread(target=lambda: granted.append(stay.lock("x", durability="replicas:1").acquire()))
    waiter.start()
    assert eventually(lambda: stay.locks.inspect("x").waiter_count == 1)
    pair.replica.pause()
    lease.release()
    assert eventually(pair.is_waiting)
    assert not granted
    pair.replica.resume()
    waiter.join(30)
    assert granted[0].fence > lease.fence
    granted[0].release()


def test_replicas_get_the_rest_of_the_wait():
    """Replicas get the rest of `wait`, but at least CONFIRM_AT_LEAST."""
    now = durability.steady()
    assert durability.time_to_confirm(now, None) == durability.time_to_confirm(now, 0) == durability.CONFIRM_WITHIN
    assert durability.time_to_confirm(now - 9.5, 10) <= 0.5
    assert durability.time_to_confirm(now - 20, 10) == durability.CONFIRM_AT_LEAST


def test_a_grant_that_waits_for_replicas_delays_no_other_command_of_its_loop(pair, namespace, long_timeout):
    order = []

    async def durable(stay):
        async with stay.lock("x", durability="replicas:1"):
            order.append("durable")

    async def scenario():
        async with backstay.Backstay(pair.url, namespace=namespace) as stay:
            pair.replica.pause()
            task = asyncio.create_task(durable(stay))
            assert await soon(lambda: asyncio.to_thread(pair.is_waiting))
            for turn in range(3):
                async with stay.lock("y", wait=0):
                    order.append(turn)
            assert pair.is_waiting()
            order.append("resumed")
            pair.replica.resume()
            await task

    asyncio.run(scenario())
    assert order == [0, 1, 2, "resumed", "durable"]


def test_a_grant_that_waits_for_replicas_delays_no_other_thread_and_no_renewal(stay, pair, long_timeout):
    order = []

    def durable():
        with stay.lock("x", durability="replicas:1"):
            order.append("durable")

    pair.replica.pause()
    thread = threading.Thread(target=durable)
    thread.start()
    assert eventually(pair.is_waiting)
    with stay.lock("y", wait=0) as lease:
        lease.renew()
        order.append("other")
    assert pair.is_waiting()
    order.append("resumed")
    pair.replica.resume()
    thread.join(30)
    assert order == ["other", "resumed", "durable"]


def test_two_grants_that_wait_for_replicas_do_not_wait_for_each_other(pair, namespace, long_timeout):
    """Each grant waits on a link of its own, so both wait at the same time."""

    async def scenario():
        async with backstay.Backstay(pair.url, namespace=namespace) as stay:
            pair.replica.pause()
            tasks = [asyncio.create_task(stay.lock(name, durability="replicas:1").acquire()) for name in "xy"]
            assert await soon(lambda: asyncio.to_thread(lambda: b"blocked_clients:2\r" in pair.ask("INFO", "clients")))
            pair.replica.resume()
            for lease in await asyncio.gather(*tasks):
                await lease.release()

    asyncio.run(scenario())


def test_a_caller_cancelled_while_replicas_confirm_holds_nothing(pair, namespace, short_timeout):
    async def scenario():
        async with backstay.Backstay(pair.url, namespace=namespace) as stay:
            pair.replica.pause()
            task = asyncio.create_task(stay.lock("x", durability="replicas:1").acquire())
            assert await soon(lambda: asyncio.sleep(0, bool(stay._core.held_leases)))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await stay.locks.inspect("x")).count == 0
            assert not stay._core.held_leases

    asyncio.run(scenario())


def test_a_reentrant_acquire_waits_for_no_replica(stay, pair, long_timeout):
    lock = stay.lock("x", reentrant=True, durability="replicas:1")
    with lock as outer:
        pair.replica.pause()
        with lock as inner:
            assert inner is outer


def test_a_second_link_that_was_closed_is_opened_again(stay, pair, long_timeout):
    lock = stay.lock("x", durability="replicas:1")
    with lock:
        pass
    assert pair.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") >= 2
    pair.ask("SCRIPT", "FLUSH")
    with lock:
        pass


def test_a_confirmed_grant_survives_the_loss_of_its_master(namespace, long_timeout):
    with master_and_replica() as pair:
        assert eventually(pair.is_replicating)
        with Backstay(pair.url, namespace=namespace) as before:
            lease = before.lock("x", ttl=60, renew=False, durability="replicas:1").acquire()
            pair.master.kill()
            say(pair.replica, "REPLICAOF", "NO", "ONE")
            with Backstay(pair.replica.url, namespace=namespace) as after:
                (holder,) = after.locks.inspect("x").holders
                assert (holder.lock_id, holder.fence) == (lease.id, lease.fence)
        pair.link.close()


@pytest.mark.parametrize("wrong", ["", "replicas", "replicas:0", "replicas:-1", "replicas:x", "fsync", 1])
def test_an_invalid_durability_is_refused(stay, wrong):
    with pytest.raises(ConfigError, match="replicas:1"):
        stay.lock("x", durability=wrong)


@pytest.mark.parametrize("url", ["memory://", "sqlite"])
def test_an_engine_without_replicas_refuses_durability(connect, tmp_path, url):
    stay = connect(f"sqlite:///{tmp_path}/a.db" if url == "sqlite" else url)
    for gate in (stay.lock, stay.rwlock):
        with pytest.raises(ConfigError, match="use it with Redis"):
            gate("x", durability="replicas:1")
    with pytest.raises(ConfigError, match="use it with Redis"):
        stay.semaphore("x", permits=2, durability="replicas:1")


class ScriptedReplicaAcks:
    """Return the given confirmations first, then real ones."""

    def __init__(self, delegate, *replies):
        self.delegate, self.replies, self.asked = delegate, list(replies), 0

    def confirm(self, op, replicas, within):
        self.asked += 1
        return self.replies.pop(0) if self.replies else self.delegate.confirm(op, replicas, within)


def test_a_promoted_server_without_the_grant_confirms_nothing(stay, monkeypatch):
    """Its replicas have everything it wrote, but it never had the grant."""
    monkeypatch.setattr(stay.engine, "_replica_acks", ScriptedReplicaAcks(stay.engine.replica_acks(), (Lost(()), 1)))
    with pytest.raises(NotReplicated) as refused:
        stay.lock("x", durability="replicas:1").acquire()
    assert refused.value.confirmed == 0
    assert stay.locks.inspect("x").count == 0


def test_an_expired_confirmation_is_requested_again(stay, long_timeout, monkeypatch):
    """An expired command wrote nothing, so the count of WAIT belongs to another write."""
    stay.open()  # fetches the server's time
    replica_acks = ScriptedReplicaAcks(stay.engine.replica_acks(), (Expired(stay.engine.now()), 1))
    monkeypatch.setattr(stay.engine, "_replica_acks", replica_acks)
    with stay.lock("x", durability="replicas:1"):
        assert replica_acks.asked == 2


def test_a_user_without_the_wait_command_is_refused_and_holds_nothing(pair, connect):
    for server in pair.nodes:
        say(server, "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-wait")
    stay = connect(pair.url.replace("://", "://app:pw@"))
    with pytest.raises(EngineRefused, match="wait"):
        stay.lock("x", durability="replicas:1").acquire()
    assert stay.locks.inspect("x").count == 0


def test_a_decorated_function_runs_once_a_replica_has_its_lock(stay, pair, short_timeout):
    key = stay.engine.key("gate", "x")

    @stay.locked("{name}", durability="replicas:1")
    def record(name):
        return pair.on_the_replica(key)

    assert record("x")
    pair.replica.pause()
    with pytest.raises(NotReplicated):
        record("x")


def test_a_decorated_coroutine_runs_once_a_replica_has_its_lock(pair, namespace, short_timeout):
    async def scenario():
        async with backstay.Backstay(pair.url, namespace=namespace) as stay:

            @stay.locked("{name}", durability="replicas:1")
            async def run(name):
                return await asyncio.to_thread(pair.on_the_replica, stay.engine.key("gate", name))

            assert await run("x")
            pair.replica.pause()
            with pytest.raises(NotReplicated):
                await run("x")

    asyncio.run(scenario())


@pytest.mark.parametrize("make", [backstay.Backstay, Backstay])
def test_a_decorator_with_an_unsupported_durability_raises_at_once(make):
    with pytest.raises(ConfigError, match="use it with Redis"):
        make("memory://").locked("x", durability="replicas:1")
