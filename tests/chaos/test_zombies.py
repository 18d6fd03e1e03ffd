"""Requests that arrive after everybody has stopped to expect them: they act for nobody, so they must not act."""

import asyncio

import pytest

import holdfast
import holdfast.sync
from holdfast.engine.base import Apply, Expired
from holdfast.gate.machine import GATE, Acquire, Who
from holdfast.testing.waiting import eventually, soon

pytestmark = [pytest.mark.redis, pytest.mark.chaos]

QUICK = "?timeout=0.3&connect_timeout=1"


@pytest.fixture
def client(proxy):
    with holdfast.sync.Holdfast(proxy.url + QUICK) as hf:
        yield hf


def test_a_late_acquire_after_its_release_takes_nothing(client, proxy, wire, truth, name):
    proxy.once("hold", wire.acquire)
    lease = client.lock(name, ttl=20).acquire(wait=0)
    lease.release()
    (said,) = proxy.deliver_held()
    assert b"expired" in said
    assert truth.locks.inspect(name).count == 0


def test_a_late_acquire_after_its_withdrawal_takes_nothing(proxy, wire, truth, name):
    async def cancel():
        async with holdfast.Holdfast(proxy.url + QUICK) as hf:
            struck = proxy.once("hold", wire.acquire).struck
            task = asyncio.create_task(hf.lock(name, ttl=20).acquire(wait=5))
            assert await soon(lambda: asyncio.sleep(0, struck.is_set()))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())
    assert [b"expired" in said for said in proxy.deliver_held()] in ([True], [])
    assert truth.locks.inspect(name).count == 0


def test_a_late_acquire_after_a_refusal_does_not_queue(client, proxy, wire, truth, name):
    held = truth.lock(name, ttl=20).acquire()
    proxy.once("hold", wire.acquire)
    with pytest.raises(holdfast.LockTimeout):
        client.lock(name, ttl=20).acquire(wait=0.5)
    held.release()
    (said,) = proxy.deliver_held()
    assert b"expired" in said
    assert truth.locks.inspect(name).count == 0


def test_a_late_acquire_while_its_ticket_holds_changes_no_owner(client, proxy, wire, truth, name):
    proxy.once("hold", wire.acquire)
    lease = client.lock(name, ttl=20).acquire(wait=0)
    (said,) = proxy.deliver_held()
    assert b"granted" in said
    (holder,) = truth.locks.inspect(name).holders
    assert (holder.lock_id, holder.fence) == (lease.id, lease.fence)
    lease.release()


def test_a_late_renewal_never_shortens_a_lease(client, proxy, wire, truth, name):
    """The holder counts on the longer life, so the engine must not forget it."""
    lease = client.lock(name, ttl=1, renew=False).acquire(wait=0)
    proxy.once("hold", wire.renew)
    lease.renew(1)
    lease.renew(60)
    promised = lease.expires_at.isoformat()
    proxy.deliver_held()
    (holder,) = truth.locks.inspect(name).holders
    assert holder.expires_at >= promised
    lease.release()


def test_a_late_acquire_never_shortens_a_lease(client, proxy, wire, truth, name):
    proxy.once("hold", wire.acquire)
    lease = client.lock(name, ttl=1, renew=False).acquire(wait=0)
    lease.renew(60)
    promised = lease.expires_at.isoformat()
    proxy.deliver_held()
    (holder,) = truth.locks.inspect(name).holders
    assert holder.expires_at >= promised
    lease.release()


def test_a_late_renewal_does_not_bring_a_released_lease_back(client, proxy, wire, truth, name):
    lease = client.lock(name, ttl=5, renew=False).acquire(wait=0)
    proxy.once("hold", wire.renew)
    lease.renew()
    lease.release()
    (said,) = proxy.deliver_held()
    assert b"lost" in said
    assert truth.locks.inspect(name).count == 0


def test_a_late_release_does_not_touch_the_successor(client, proxy, wire, truth, name):
    lease = client.lock(name, ttl=5, renew=False).acquire(wait=0)
    proxy.once("hold", wire.release)
    lease.release()
    successor = truth.lock(name, ttl=20).acquire(wait=0)
    (said,) = proxy.deliver_held()
    assert b"foreign" in said
    assert truth.locks.inspect(name).holders[0].lock_id == successor.id
    assert successor.release().idempotent is False


def test_a_late_withdrawal_does_not_touch_the_next_attempt(client, proxy, wire, truth, name):
    held = truth.lock(name, ttl=20).acquire()
    proxy.once("hold", wire.withdraw)
    with pytest.raises(holdfast.LockTimeout):
        client.lock(name, ttl=20).acquire(wait=0.1)
    assert eventually(lambda: truth.locks.inspect(name).waiter_count == 0)
    held.release()
    lease = client.lock(name, ttl=20).acquire(wait=1)
    proxy.deliver_held()
    assert truth.locks.inspect(name).holders[0].lock_id == lease.id
    lease.release()


def test_a_request_past_its_not_after_answers_expired(truth, name):
    now = truth.engine.now()
    command = Acquire(now - 1, "ticket", "ticket", True, 1, 5_000_000, "inbox", 0, Who())
    (answer,) = truth.engine.apply_many([Apply(GATE, name, command)])
    assert isinstance(answer, Expired)
    assert abs(answer.now - now) < 60_000_000
    assert truth.locks.inspect(name).count == 0


def test_a_client_with_a_wrong_clock_corrects_it_and_is_served(truth, name):
    truth.engine.correct(1_000_000)
    with truth.lock(name, ttl=5, wait=0):
        pass
    truth.engine.correct(truth.engine.now() + 10**12)
    with truth.lock(name, ttl=5, wait=0):
        pass
