"""The engine is down: a lock always fails closed, after as many attempts as the policy allows."""

import asyncio
import threading

import pytest

import backstay
import backstay.sync
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import WITHIN, eventually

pytestmark = [pytest.mark.redis, pytest.mark.chaos]


@pytest.fixture(
    params=["redis://127.0.0.1:{}/0", "postgresql://backstay@127.0.0.1:{}/backstay"], ids=["redis", "postgres"]
)
def unreachable_url(request):
    return request.param.format(reserve_port())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "attempts"),
    [(backstay.BALANCED, 4), (backstay.MAX_SAFETY, 4), (backstay.MAX_AVAILABILITY, 2)],
    ids=["balanced", "safety", "availability"],
)
def test_an_unreachable_engine_is_tried_as_often_as_the_policy_allows(unreachable_url, profile, attempts):
    ran = []
    stay = backstay.sync.Backstay(unreachable_url, profile=profile)
    with pytest.raises(backstay.EngineUnavailable), stay.lock("x", wait=5):
        ran.append("the body")
    assert stay.telemetry.counts["engine.retry"] == attempts
    assert not ran
    stay.close()

    async def acquire_async():
        stay = backstay.Backstay(unreachable_url, profile=profile)
        with pytest.raises(backstay.EngineUnavailable):
            async with stay.lock("x", wait=5):
                ran.append("the body")
        count = stay.telemetry.counts["engine.retry"]
        await stay.close()
        return count

    assert asyncio.run(acquire_async()) == attempts
    assert not ran


def test_no_option_makes_a_lock_fail_open(unreachable_url):
    profile = backstay.Policy(lock_retries=0)
    stay = backstay.sync.Backstay(unreachable_url, profile=profile)
    for attempt in (
        lambda: stay.lock("x", wait=0).acquire(),
        lambda: stay.lock("x", wait=0).try_acquire(),
        lambda: stay.lock("x", wait=0, reentrant=True).acquire(),
        lambda: stay.semaphore("s", 2, wait=0).acquire(),
        lambda: stay.rwlock("r", wait=0).read().acquire(),
        stay.locked("x", wait=0)(lambda: None),
    ):
        with pytest.raises(backstay.EngineUnavailable):
            attempt()
    stay.close()


@pytest.mark.slow
def test_max_safety_never_renews(direct, backstay_redis, name):
    with backstay.sync.Backstay(backstay_redis.url, profile=backstay.MAX_SAFETY) as stay:
        lease = stay.lock(name, ttl=0.6).acquire(wait=0)
        assert lease.lost.wait(WITHIN)
        assert stay.telemetry.counts["lease.renewed"] == 0
        assert eventually(lambda: not direct.locks.inspect(name).held)


def test_max_availability_holds_for_a_day(backstay_redis, name):
    with backstay.sync.Backstay(backstay_redis.url, profile=backstay.MAX_AVAILABILITY) as stay:
        lease = stay.lock(name).acquire(wait=0)
        assert 86_000 < lease.hold_until - lease.deadline + 30 <= 86_431
        lease.release()
    with backstay.sync.Backstay(backstay_redis.url) as stay:
        lease = stay.lock(name).acquire(wait=0)
        assert 3_500 < lease.hold_until - lease.deadline + 30 <= 3_631
        lease.release()


def test_a_hung_holder_is_not_renewed_past_its_max_hold(direct, backstay_redis, name):
    with backstay.sync.Backstay(backstay_redis.url) as stay:
        lease = stay.lock(name, ttl=0.6, max_hold=1).acquire(wait=0)
        assert lease.lost.wait(WITHIN)
        assert eventually(lambda: not direct.locks.inspect(name).held)


def test_a_closed_backstay_raises_a_clear_error(backstay_redis, name):
    stay = backstay.sync.Backstay(backstay_redis.url).open()
    lease = stay.lock(name, ttl=1).acquire(wait=0)
    stay.close()
    stay.close()
    for use in (stay.open, stay.lock(name).acquire, lambda: stay.locks.inspect(name), lease.renew, lease.release):
        with pytest.raises(backstay.Closed):
            use()

    async def use_async():
        stay = await backstay.Backstay(backstay_redis.url).open()
        await stay.close()
        await stay.close()
        with pytest.raises(backstay.Closed):
            await stay.lock(name).acquire()

    asyncio.run(use_async())


@pytest.mark.parametrize("wait", [0, 1])
def test_an_async_backstay_belongs_to_its_first_loop(backstay_redis, backstay_postgres, tmp_path, name, wait):
    for url in (backstay_redis.url, backstay_postgres.url, f"sqlite:///{tmp_path}/a.db"):
        with asyncio.Runner() as runner:
            stay = backstay.Backstay(url)
            runner.run(stay.open())
            caught = []

            def use_in_another_loop(stay=stay, caught=caught):
                try:
                    asyncio.run(stay.lock(name).acquire(wait=wait))
                except backstay.WrongLoop as error:
                    caught.append(error)

            thread = threading.Thread(target=use_in_another_loop)
            thread.start()
            thread.join()
            assert len(caught) == 1
            runner.run(stay.close())
