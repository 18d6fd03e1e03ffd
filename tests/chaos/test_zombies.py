"""Requests that arrive after their caller gave up must change nothing."""

import asyncio

import pytest

import backstay
import backstay.sync
from backstay.engine.base import Apply, Expired
from backstay.gate.commands import Acquire, CallerIdentity
from backstay.gate.machine import GATE
from backstay.testing.proxy import FaultProxy
from backstay.testing.waiting import eventually, soon

pytestmark = pytest.mark.chaos


class OnRedis:
    """A command is one request, known by its script."""

    options = "?timeout=0.3&connect_timeout=1"
    #: A lease that outlives one lost reply, and not much more.
    short = 1

    def __init__(self, request, server):
        wire = request.getfixturevalue("wire")
        self.acquire, self.renew, self.release, self.withdraw = wire.acquire, wire.renew, wire.release, wire.withdraw

    def came_late(self, said, word):
        return [word in reply for reply in said] == [True]


class OnPostgres:
    """A command is a transaction, and comes late when what it writes does, with its commit. The server ends one that
    stands still, so what is delivered then finds nobody.
    """

    options = "?timeout=1"
    short = 5

    def __init__(self, request, server):
        self.acquire = self.renew = self.release = self.withdraw = b"UPDATE backstay_state"

    def came_late(self, said, word):
        return not any(b"COMMIT" in reply for reply in said)


@pytest.fixture(
    params=[
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ]
)
def server(request):
    return request.getfixturevalue(f"backstay_{request.param}")


@pytest.fixture
def wires(request, server):
    """How requests look on this engine's way, and what a late one is answered."""
    return (OnPostgres if "postgres" in server.url else OnRedis)(request, server)


@pytest.fixture
def proxy(server):
    with FaultProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def truth(server):
    """A Backstay with a clear line to the server."""
    with backstay.sync.Backstay(server.url) as stay:
        yield stay.open()


@pytest.fixture
def url(server, proxy, wires):
    return proxy.instead_of(server.url) + wires.options


@pytest.fixture
def client(url):
    with backstay.sync.Backstay(url) as stay:
        yield stay.open()


def test_a_late_acquire_after_its_release_takes_nothing(client, proxy, wires, truth, name):
    proxy.once("hold", wires.acquire)
    lease = client.lock(name, ttl=20).acquire(wait=0)
    lease.release()
    assert wires.came_late(proxy.deliver_held(timeout=1), b"expired")
    assert truth.locks.inspect(name).count == 0


def test_a_late_acquire_after_its_withdrawal_takes_nothing(url, proxy, wires, truth, name):
    async def cancel():
        async with backstay.Backstay(url) as stay:
            await stay.open()
            struck = proxy.once("hold", wires.acquire).struck
            task = asyncio.create_task(stay.lock(name, ttl=20).acquire(wait=5))
            assert await soon(lambda: asyncio.sleep(0, struck.is_set()))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())
    said = proxy.deliver_held(timeout=1)
    assert said == [] or wires.came_late(said, b"expired")
    assert truth.locks.inspect(name).count == 0


def test_a_late_acquire_after_a_refusal_does_not_queue(client, proxy, wires, truth, name):
    held = truth.lock(name, ttl=20).acquire()
    proxy.once("hold", wires.acquire)
    with pytest.raises(backstay.LockTimeout):
        client.lock(name, ttl=20).acquire(wait=0.5)
    held.release()
    assert wires.came_late(proxy.deliver_held(timeout=1), b"expired")
    assert truth.locks.inspect(name).count == 0


def test_a_late_acquire_while_its_ticket_holds_changes_no_owner(client, proxy, wires, truth, name):
    proxy.once("hold", wires.acquire)
    lease = client.lock(name, ttl=20).acquire(wait=0)
    assert wires.came_late(proxy.deliver_held(timeout=1), b"granted")
    (holder,) = truth.locks.inspect(name).holders
    assert (holder.lock_id, holder.fence) == (lease.id, lease.fence)
    lease.release()


def test_a_late_renewal_never_shortens_a_lease(client, proxy, wires, truth, name):
    """The holder counts on the longer life, so the engine must not forget it."""
    lease = client.lock(name, ttl=wires.short, renew=False).acquire(wait=0)
    proxy.once("hold", wires.renew)
    lease.renew(wires.short)
    lease.renew(60)
    promised = lease.expires_at.isoformat()
    proxy.deliver_held(timeout=1)
    (holder,) = truth.locks.inspect(name).holders
    assert holder.expires_at >= promised
    lease.release()


def test_a_late_acquire_never_shortens_a_lease(client, proxy, wires, truth, name):
    proxy.once("hold", wires.acquire)
    lease = client.lock(name, ttl=wires.short, renew=False).acquire(wait=0)
    lease.renew(60)
    promised = lease.expires_at.isoformat()
    proxy.deliver_held(timeout=1)
    (holder,) = truth.locks.inspect(name).holders
    assert holder.expires_at >= promised
    lease.release()


def test_a_late_renewal_does_not_bring_a_released_lease_back(client, proxy, wires, truth, name):
    lease = client.lock(name, ttl=5, renew=False).acquire(wait=0)
    proxy.once("hold", wires.renew)
    lease.renew()
    lease.release()
    assert wires.came_late(proxy.deliver_held(timeout=1), b"lost")
    assert truth.locks.inspect(name).count == 0


def test_a_late_release_does_not_touch_the_successor(client, proxy, wires, truth, name):
    lease = client.lock(name, ttl=5, renew=False).acquire(wait=0)
    proxy.once("hold", wires.release)
    lease.release()
    successor = truth.lock(name, ttl=20).acquire(wait=0)
    assert wires.came_late(proxy.deliver_held(timeout=1), b"foreign")
    assert truth.locks.inspect(name).holders[0].lock_id == successor.id
    assert successor.release().idempotent is False


def test_a_late_withdrawal_does_not_touch_the_next_attempt(client, proxy, wires, truth, name):
    held = truth.lock(name, ttl=20).acquire()
    proxy.once("hold", wires.withdraw)
    with pytest.raises(backstay.LockTimeout):
        client.lock(name, ttl=20).acquire(wait=0.1)
    assert eventually(lambda: truth.locks.inspect(name).waiter_count == 0)
    held.release()
    lease = client.lock(name, ttl=20).acquire(wait=1)
    proxy.deliver_held(timeout=1)
    assert truth.locks.inspect(name).holders[0].lock_id == lease.id
    lease.release()


def test_a_request_past_its_not_after_answers_expired(truth, name):
    now = truth.engine.now()
    command = Acquire(now - 1, "ticket", "ticket", True, 1, 5_000_000, "inbox", 0, CallerIdentity())
    (answer,) = truth.engine.apply_many([Apply(GATE, name, command)])
    assert isinstance(answer, Expired)
    assert abs(answer.now - now) < 60_000_000
    assert truth.locks.inspect(name).count == 0


def test_a_client_with_a_wrong_clock_corrects_it_and_is_served(truth, name):
    truth.engine.correct_clock(1_000_000)
    with truth.lock(name, ttl=5, wait=0):
        pass
    truth.engine.correct_clock(truth.engine.now() + 10**12)
    with truth.lock(name, ttl=5, wait=0):
        pass
