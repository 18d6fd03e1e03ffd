"""Lost replies to lock commands: whether or not the server applied the command, the caller gets a correct result."""

import asyncio
import threading

import pytest

import backstay
import backstay.sync
from backstay.testing.waiting import WITHIN, eventually, soon

pytestmark = [pytest.mark.redis, pytest.mark.chaos]

#: URL options: short timeouts, so that a client soon detects a lost reply.
SHORT_TIMEOUTS = "?timeout=0.3&connect_timeout=1"
LOSSES = ["drop", "cut-after", "cut-before", "blackhole"]


@pytest.fixture(params=["async", "blocking"])
def api(request, proxy):
    """Lock operations on either API, through the proxy."""
    if request.param == "blocking":
        with backstay.sync.Backstay(proxy.url + SHORT_TIMEOUTS) as stay:
            yield Blocking(stay)
        return
    with asyncio.Runner() as runner:
        stay = backstay.Backstay(proxy.url + SHORT_TIMEOUTS)
        runner.run(stay.open())
        yield Awaiting(stay, runner)
        runner.run(stay.close())


class Blocking:
    def __init__(self, stay):
        self.stay = stay

    def acquire(self, name, **options):
        wait = options.pop("wait", 0)
        return self.stay.lock(name, **options).acquire(wait=wait)

    def release(self, lease):
        return lease.release()

    def renew(self, lease, ttl=None):
        lease.renew(ttl)

    def enter_and_leave(self, lock):
        with lock:
            pass


class Awaiting:
    def __init__(self, stay, runner):
        self.stay = stay
        self.runner = runner

    def acquire(self, name, **options):
        wait = options.pop("wait", 0)
        return self.runner.run(self.stay.lock(name, **options).acquire(wait=wait))

    def release(self, lease):
        return self.runner.run(lease.release())

    def renew(self, lease, ttl=None):
        self.runner.run(lease.renew(ttl))

    def enter_and_leave(self, lock):
        async def body():
            async with lock:
                pass

        self.runner.run(body())


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_reply_to_an_acquire_leaves_one_holder_that_knows_its_grant(api, proxy, patterns, direct, name, loss):
    applied = proxy.once(loss, patterns.acquire).applied
    lease = api.acquire(name, ttl=10)
    assert applied.is_set()
    (holder,) = direct.locks.inspect(name).holders
    assert (holder.lock_id, holder.fence) == (lease.id, lease.fence)
    api.release(lease)
    assert direct.locks.inspect(name).count == 0


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_reply_to_a_release_is_not_reported_as_a_foreign_lock(api, proxy, patterns, direct, name, loss):
    lease = api.acquire(name, ttl=10)
    proxy.once(loss, patterns.release)
    assert api.release(lease).released
    assert direct.locks.inspect(name).count == 0


def assert_released_before_the_next_grant(api, proxy, patterns, direct, lease):
    """Release a lease whose reply is lost, and which another client gets before the release is sent again."""
    name = lease.name
    applied = proxy.once("drop", patterns.release).applied
    granted = []

    def acquire_next():
        applied.wait(WITHIN)
        granted.append(direct.lock(name, ttl=10, wait=WITHIN).acquire())

    thread = threading.Thread(target=acquire_next)
    thread.start()
    try:
        assert api.release(lease).released
    finally:
        thread.join()
    assert direct.locks.inspect(name).holders[0].lock_id == granted[0].id


def test_a_lost_reply_to_a_release_is_a_success_after_the_next_grant(api, proxy, patterns, direct, name):
    assert_released_before_the_next_grant(api, proxy, patterns, direct, api.acquire(name, ttl=10))


def test_a_release_sent_in_time_succeeds_when_its_reply_comes_past_the_ttl(api, proxy, patterns, direct, name):
    """The lease expires while the caller waits for the reply, and the next waiter gets the lock: no error is raised."""
    assert_released_before_the_next_grant(api, proxy, patterns, direct, api.acquire(name, ttl=0.25, renew=False))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_renewal_whose_reply_is_lost_is_retried(api, proxy, patterns, direct, name, loss):
    lease = api.acquire(name, ttl=5, renew=False)
    proxy.once(loss, patterns.renew)
    api.renew(lease, 20)
    assert lease.remaining() > 15
    (holder,) = direct.locks.inspect(name).holders
    assert holder.lock_id == lease.id
    assert holder.expires_at >= lease.expires_at.isoformat()
    api.release(lease)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_reply_to_a_withdrawal_leaves_no_waiter(api, proxy, patterns, direct, name, loss):
    held = direct.lock(name, ttl=20).acquire()
    proxy.once(loss, patterns.withdraw)
    with pytest.raises(backstay.LockTimeout):
        api.acquire(name, ttl=10, wait=0.1)
    assert eventually(lambda: direct.locks.inspect(name).waiter_count == 0)
    held.release()


@pytest.mark.parametrize("loss", LOSSES)
def test_leaving_the_body_releases_the_lock_despite_a_lost_reply(api, proxy, patterns, direct, name, loss):
    proxy.once(loss, patterns.release)
    api.enter_and_leave(api.stay.lock(name, ttl=10, wait=WITHIN))
    assert direct.locks.inspect(name).count == 0


def test_a_release_during_an_outage_is_sent_later(api, proxy, direct, name):
    lease = api.acquire(name, ttl=20)
    proxy.refuse()
    with pytest.raises(backstay.EngineError):
        api.release(lease)
    assert direct.locks.inspect(name).held
    proxy.heal()
    assert eventually(lambda: not direct.locks.inspect(name).held)


@pytest.mark.parametrize("loss", ["cut-after", "cut-before"])
def test_a_server_that_hangs_up_on_every_request_is_not_hammered(proxy, patterns, name, loss):
    with backstay.sync.Backstay(proxy.url) as stay:
        proxy.rule(loss, patterns.acquire)
        timer = threading.Timer(1.0, proxy.heal)
        timer.start()
        stay.lock(name, ttl=10).acquire(wait=0).release()
        timer.join()
        assert stay.telemetry.counts["engine.resend"] < 30


async def cancel_acquire(stay, proxy, patterns, name, before_cancel=lambda: None):
    """Cancel an acquire after the server has applied it and before its reply, which is lost."""
    applied = proxy.once("drop", patterns.acquire).applied
    task = asyncio.create_task(stay.lock(name, ttl=20).acquire(wait=5))
    assert await soon(lambda: asyncio.sleep(0, applied.is_set()))
    before_cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancelled_acquire_whose_reply_is_lost_holds_nothing(proxy, patterns, direct, name):
    async def cancel():
        async with backstay.Backstay(proxy.url + SHORT_TIMEOUTS) as stay:
            await cancel_acquire(stay, proxy, patterns, name)
            return direct.locks.inspect(name).count

    assert asyncio.run(cancel()) == 0


def test_a_cancelled_acquire_that_cannot_be_withdrawn_is_withdrawn_later(proxy, patterns, direct, name):
    async def cancel():
        async with backstay.Backstay(proxy.url + SHORT_TIMEOUTS) as stay:
            await cancel_acquire(stay, proxy, patterns, name, before_cancel=proxy.refuse)
            assert direct.locks.inspect(name).held
            proxy.heal()
            assert await soon(lambda: asyncio.sleep(0, not direct.locks.inspect(name).held))

    asyncio.run(cancel())


def test_a_waiter_is_woken_although_its_inbox_opens_late(proxy, direct, name):
    """Two tasks begin to wait while their subscription is still opening; neither may miss its hint."""

    async def wait_for_both():
        async with backstay.Backstay(proxy.url) as stay:
            first, second = (direct.lock(f"{name}-{i}", ttl=30).acquire() for i in (1, 2))
            proxy.once("delay", b"SUBSCRIBE", seconds=0.5)
            tasks = [asyncio.create_task(stay.lock(f"{name}-{i}", ttl=30).acquire(wait=WITHIN)) for i in (1, 2)]
            assert await soon(
                lambda: asyncio.sleep(0, all(direct.locks.inspect(f"{name}-{i}").waiter_count for i in (1, 2)))
            )
            first.release()
            second.release()
            async with asyncio.timeout(4):
                leases = await asyncio.gather(*tasks)
            for lease in leases:
                await lease.release()

    asyncio.run(wait_for_both())
