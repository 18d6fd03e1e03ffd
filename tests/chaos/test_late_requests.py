"""Requests that reach the server after their caller has given up change nothing."""

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


class RedisRequests:
    """Patterns of requests on Redis: a command is one request, recognized by the hash of its script."""

    options = "?timeout=0.3&connect_timeout=1"
    #: The TTL in seconds of a lease that lasts little longer than one lost reply.
    short = 1

    def __init__(self, request, server):
        patterns = request.getfixturevalue("patterns")
        self.acquire, self.renew = patterns.acquire, patterns.renew
        self.release, self.withdraw = patterns.release, patterns.withdraw

    def came_late(self, replies, word):
        """Whether the server replied to the one late request with this word."""
        return [word in reply for reply in replies] == [True]


class PostgresRequests:
    """Patterns of requests on PostgreSQL: a command is a transaction, whose write and commit are held back. The server
    ends an idle transaction, so a late write finds its session closed.
    """

    options = "?timeout=1"
    short = 5

    def __init__(self, request, server):
        self.acquire = self.renew = self.release = self.withdraw = b"UPDATE backstay_state"

    def came_late(self, replies, word):
        """Whether the server committed none of the late requests."""
        return not any(b"COMMIT" in reply for reply in replies)


@pytest.fixture(
    params=[
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ]
)
def server(request):
    return request.getfixturevalue(f"backstay_{request.param}")


@pytest.fixture
def requests(request, server):
    return (PostgresRequests if "postgres" in server.url else RedisRequests)(request, server)


@pytest.fixture
def proxy(server):
    with FaultProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def direct(server):
    """A Backstay that does not use the proxy."""
    with backstay.sync.Backstay(server.url) as stay:
        yield stay.open()


@pytest.fixture
def url(server, proxy, requests):
    return proxy.instead_of(server.url) + requests.options


@pytest.fixture
def client(url):
    with backstay.sync.Backstay(url) as stay:
        yield stay.open()


def test_a_late_acquire_after_its_release_takes_nothing(client, proxy, requests, direct, name):
    proxy.once("hold", requests.acquire)
    lease = client.lock(name, ttl=20).acquire(wait=0)
    lease.release()
    assert requests.came_late(proxy.deliver_held(timeout=1), b"expired")
    assert direct.locks.inspect(name).count == 0


def test_a_late_acquire_after_its_withdrawal_takes_nothing(url, proxy, requests, direct, name):
    async def cancel():
        async with backstay.Backstay(url) as stay:
            await stay.open()
            applied = proxy.once("hold", requests.acquire).applied
            task = asyncio.create_task(stay.lock(name, ttl=20).acquire(wait=5))
            assert await soon(lambda: asyncio.sleep(0, applied.is_set()))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())
    replies = proxy.deliver_held(timeout=1)
    assert replies == [] or requests.came_late(replies, b"expired")
    assert direct.locks.inspect(name).count == 0


def test_a_late_acquire_after_a_refusal_does_not_queue(client, proxy, requests, direct, name):
    held = direct.lock(name, ttl=20).acquire()
    proxy.once("hold", requests.acquire)
    with pytest.raises(backstay.LockTimeout):
        client.lock(name, ttl=20).acquire(wait=0.5)
    held.release()
    assert requests.came_late(proxy.deliver_held(timeout=1), b"expired")
    assert direct.locks.inspect(name).count == 0


def test_a_late_acquire_while_its_ticket_holds_changes_no_owner(client, proxy, requests, direct, name):
    proxy.once("hold", requests.acquire)
    lease = client.lock(name, ttl=20).acquire(wait=0)
    assert requests.came_late(proxy.deliver_held(timeout=1), b"granted")
    (holder,) = direct.locks.inspect(name).holders
    assert (holder.lock_id, holder.fence) == (lease.id, lease.fence)
    lease.release()


def test_a_late_renewal_never_shortens_a_lease(client, proxy, requests, direct, name):
    """The holder relies on the longer TTL of its later renewal."""
    lease = client.lock(name, ttl=requests.short, renew=False).acquire(wait=0)
    proxy.once("hold", requests.renew)
    lease.renew(requests.short)
    lease.renew(60)
    promised = lease.expires_at.isoformat()
    proxy.deliver_held(timeout=1)
    (holder,) = direct.locks.inspect(name).holders
    assert holder.expires_at >= promised
    lease.release()


def test_a_late_acquire_never_shortens_a_lease(client, proxy, requests, direct, name):
    proxy.once("hold", requests.acquire)
    lease = client.lock(name, ttl=requests.short, renew=False).acquire(wait=0)
    lease.renew(60)
    promised = lease.expires_at.isoformat()
    proxy.deliver_held(timeout=1)
    (holder,) = direct.locks.inspect(name).holders
    assert holder.expires_at >= promised
    lease.release()


def test_a_late_renewal_does_not_bring_a_released_lease_back(client, proxy, requests, direct, name):
    lease = client.lock(name, ttl=5, renew=False).acquire(wait=0)
    proxy.once("hold", requests.renew)
    lease.renew()
    lease.release()
    assert requests.came_late(proxy.deliver_held(timeout=1), b"lost")
    assert direct.locks.inspect(name).count == 0


def test_a_late_release_does_not_touch_the_successor(client, proxy, requests, direct, name):
    lease = client.lock(name, ttl=5, renew=False).acquire(wait=0)
    proxy.once("hold", requests.release)
    lease.release()
    successor = direct.lock(name, ttl=20).acquire(wait=0)
    assert requests.came_late(proxy.deliver_held(timeout=1), b"foreign")
    assert direct.locks.inspect(name).holders[0].lock_id == successor.id
    assert successor.release().idempotent is False


def test_a_late_withdrawal_does_not_touch_the_next_attempt(client, proxy, requests, direct, name):
    held = direct.lock(name, ttl=20).acquire()
    proxy.once("hold", requests.withdraw)
    with pytest.raises(backstay.LockTimeout):
        client.lock(name, ttl=20).acquire(wait=0.1)
    assert eventually(lambda: direct.locks.inspect(name).waiter_count == 0)
    held.release()
    lease = client.lock(name, ttl=20).acquire(wait=1)
    proxy.deliver_held(timeout=1)
    assert direct.locks.inspect(name).holders[0].lock_id == lease.id
    lease.release()


def test_a_request_past_its_deadline_gets_an_expired_reply(direct, name):
    now = direct.engine.now()
    command = Acquire(now - 1, "ticket", "ticket", True, 1, 5_000_000, "inbox", 0, CallerIdentity())
    (reply,) = direct.engine.apply_many([Apply(GATE, name, command)])
    assert isinstance(reply, Expired)
    assert abs(reply.now - now) < 60_000_000
    assert direct.locks.inspect(name).count == 0


def test_a_client_with_a_wrong_clock_corrects_it_and_is_served(direct, name):
    direct.engine.correct_clock(1_000_000)
    with direct.lock(name, ttl=5, wait=0):
        pass
    direct.engine.correct_clock(direct.engine.now() + 10**12)
    with direct.lock(name, ttl=5, wait=0):
        pass
