"""The engine is down: a lock always fails closed, after as many attempts as the policy says."""

import asyncio
import threading

import pytest

import holdfast
import holdfast.sync
from holdfast.testing.ports import lasting_port
from holdfast.testing.waiting import WITHIN, eventually

pytestmark = [pytest.mark.redis, pytest.mark.chaos]


@pytest.fixture(
    params=["redis://127.0.0.1:{}/0", "postgresql://holdfast@127.0.0.1:{}/holdfast"], ids=["redis", "postgres"]
)
def nowhere(request):
    return request.param.format(lasting_port())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "attempts"),
    [(holdfast.BALANCED, 4), (holdfast.MAX_SAFETY, 4), (holdfast.MAX_AVAILABILITY, 2)],
    ids=["balanced", "safety", "availability"],
)
def test_an_engine_that_is_away_is_tried_as_often_as_the_policy_says(nowhere, profile, attempts):
    ran = []
    hf = holdfast.sync.Holdfast(nowhere, profile=profile)
    with pytest.raises(holdfast.EngineUnavailable), hf.lock("x", wait=5):
        ran.append("the body")
    assert hf.telemetry.counts["engine.retry"] == attempts
    assert not ran
    hf.close()

    async def same():
        hf = holdfast.Holdfast(nowhere, profile=profile)
        with pytest.raises(holdfast.EngineUnavailable):
            async with hf.lock("x", wait=5):
                ran.append("the body")
        count = hf.telemetry.counts["engine.retry"]
        await hf.close()
        return count

    assert asyncio.run(same()) == attempts
    assert not ran


def test_no_option_makes_a_lock_fail_open(nowhere):
    profile = holdfast.Policy(lock_retries=0)
    hf = holdfast.sync.Holdfast(nowhere, profile=profile)
    for attempt in (
        lambda: hf.lock("x", wait=0).acquire(),
        lambda: hf.lock("x", wait=0).try_acquire(),
        lambda: hf.lock("x", wait=0, reentrant=True).acquire(),
        lambda: hf.semaphore("s", 2, wait=0).acquire(),
        lambda: hf.rwlock("r", wait=0).read().acquire(),
        hf.locked("x", wait=0)(lambda: None),
    ):
        with pytest.raises(holdfast.EngineUnavailable):
            attempt()
    hf.close()


@pytest.mark.slow
def test_max_safety_never_renews(truth, holdfast_redis, name):
    with holdfast.sync.Holdfast(holdfast_redis.url, profile=holdfast.MAX_SAFETY) as hf:
        lease = hf.lock(name, ttl=0.6).acquire(wait=0)
        assert lease.lost.wait(WITHIN)
        assert hf.telemetry.counts["lease.renewed"] == 0
        assert eventually(lambda: not truth.locks.inspect(name).held)


def test_max_availability_holds_for_a_day(holdfast_redis, name):
    with holdfast.sync.Holdfast(holdfast_redis.url, profile=holdfast.MAX_AVAILABILITY) as hf:
        lease = hf.lock(name).acquire(wait=0)
        assert 86_000 < lease.hold_until - lease.deadline + 30 <= 86_431
        lease.release()
    with holdfast.sync.Holdfast(holdfast_redis.url) as hf:
        lease = hf.lock(name).acquire(wait=0)
        assert 3_500 < lease.hold_until - lease.deadline + 30 <= 3_631
        lease.release()


def test_a_hung_holder_is_not_renewed_past_its_max_hold(truth, holdfast_redis, name):
    with holdfast.sync.Holdfast(holdfast_redis.url) as hf:
        lease = hf.lock(name, ttl=0.6, max_hold=1).acquire(wait=0)
        assert lease.lost.wait(WITHIN)
        assert eventually(lambda: not truth.locks.inspect(name).held)


def test_a_closed_holdfast_says_so(holdfast_redis, name):
    hf = holdfast.sync.Holdfast(holdfast_redis.url).open()
    lease = hf.lock(name, ttl=1).acquire(wait=0)
    hf.close()
    hf.close()
    for use in (hf.open, hf.lock(name).acquire, lambda: hf.locks.inspect(name), lease.renew, lease.release):
        with pytest.raises(holdfast.Closed):
            use()

    async def same():
        hf = await holdfast.Holdfast(holdfast_redis.url).open()
        await hf.close()
        await hf.close()
        with pytest.raises(holdfast.Closed):
            await hf.lock(name).acquire()

    asyncio.run(same())


@pytest.mark.parametrize("wait", [0, 1])
def test_an_async_holdfast_belongs_to_its_first_loop(holdfast_redis, holdfast_postgres, tmp_path, name, wait):
    for url in (holdfast_redis.url, holdfast_postgres.url, f"sqlite:///{tmp_path}/a.db"):
        with asyncio.Runner() as runner:
            hf = holdfast.Holdfast(url)
            runner.run(hf.open())
            caught = []

            def elsewhere(hf=hf, caught=caught):
                try:
                    asyncio.run(hf.lock(name).acquire(wait=wait))
                except holdfast.WrongLoop as error:
                    caught.append(error)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            assert len(caught) == 1
            runner.run(hf.close())
