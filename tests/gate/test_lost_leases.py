"""The body of a `with` block when its lease is lost, it is cancelled from outside, or it raises."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

from backstay import Backstay, EngineUnavailable, LeaseLost
from backstay.testing.waiting import WITHIN, eventually, soon

NAME = "invoice:42"


def run_scenario(url, namespace, scenario):
    async def main():
        async with Backstay(url, namespace=namespace) as stay:
            await scenario(stay)

    asyncio.run(main())


@pytest.mark.timed
def test_a_loop_blocked_for_longer_than_the_ttl_keeps_its_lease(engine_url, namespace):
    async def scenario(stay):
        async with stay.lock(NAME, ttl=0.4) as lease:
            time.sleep(1.0)  # noqa: ASYNC251 - the test blocks the loop on purpose
            lease.check()
            (holder,) = (await stay.locks.inspect(NAME)).holders
            assert holder.fence == lease.fence
        assert not (await stay.locks.inspect(NAME)).held

    run_scenario(engine_url, namespace, scenario)


def test_a_lost_lease_cancels_the_body_and_raises_lease_lost(engine_url, namespace):
    async def scenario(stay):
        seen, leases = [], []

        async def body():
            async with stay.lock(NAME, ttl=0.3) as lease:
                leases.append(lease)
                try:  # around everything: on a busy host the lease may end before the test removes it
                    await stay.locks.force_release(NAME)
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    seen.append("cancelled")
                    raise

        with pytest.raises(LeaseLost) as caught:
            await body()
        assert seen == ["cancelled"]
        assert (caught.value.lock_id, caught.value.fence) == (leases[0].lock_id, leases[0].fence)
        assert asyncio.current_task().cancelling() == 0
        await asyncio.sleep(0)  # no cancellation is left over
        assert not stay._core.held_leases

    run_scenario(engine_url, namespace, scenario)


def test_a_body_that_ends_after_its_lease_was_lost_raises_lease_lost(engine_url, namespace):
    async def scenario(stay):
        async def body():
            async with stay.lock(NAME, ttl=30):
                await stay.locks.force_release(NAME)

        with pytest.raises(LeaseLost):
            await body()
        assert asyncio.current_task().cancelling() == 0

    run_scenario(engine_url, namespace, scenario)


def test_the_loss_of_a_lease_is_awaitable(engine_url, namespace):
    async def scenario(stay):
        lease = await stay.lock(NAME, ttl=0.3).acquire()
        waiting = asyncio.create_task(asyncio.wait_for(lease.lost, WITHIN))
        await stay.locks.force_release(NAME)
        assert await waiting is True
        other = await stay.lock(NAME).acquire(wait=0)
        waiting = asyncio.create_task(asyncio.wait_for(other.lost, WITHIN))
        await asyncio.sleep(0)
        await other.release()
        assert await waiting is False

    run_scenario(engine_url, namespace, scenario)


def test_a_cancellation_from_outside_is_not_swallowed(engine_url, namespace):
    async def scenario(stay):
        inside = asyncio.Event()

        async def body():
            async with stay.lock(NAME):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(body())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert not (await stay.locks.inspect(NAME)).held

    run_scenario(engine_url, namespace, scenario)


def test_a_cancellation_from_outside_wins_over_a_loss_at_the_same_time(engine_url, namespace):
    async def scenario(stay):
        inside, leases = asyncio.Event(), []

        async def body():
            async with stay.lock(NAME, ttl=30) as lease:
                leases.append(lease)
                inside.set()
                await asyncio.Event().wait()

        for order in ("loss first", "cancellation first"):
            inside.clear()
            task = asyncio.create_task(body())
            await inside.wait()
            if order == "loss first":
                leases[-1].lose("taken away")
                task.cancel()
            else:
                task.cancel()
                leases[-1].lose("taken away")
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled(), order
            await stay.locks.force_release(NAME)

    run_scenario(engine_url, namespace, scenario)


def test_a_timeout_around_the_body_raises_timeout_error(engine_url, namespace):
    async def scenario(stay):
        async def body():
            async with asyncio.timeout(0.05), stay.lock(NAME):
                await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            await body()
        assert not (await stay.locks.inspect(NAME)).held

    run_scenario(engine_url, namespace, scenario)


def test_the_bodys_own_exception_is_never_masked(engine_url, namespace):
    async def scenario(stay):
        async def fail(*, knowing):
            async with stay.lock(NAME) as lease:
                await stay.locks.force_release(NAME)
                if knowing:
                    lease.lose("taken away")
                raise ZeroDivisionError

        for knowing in (True, False):
            with pytest.raises(ZeroDivisionError):
                await fail(knowing=knowing)
            assert asyncio.current_task().cancelling() == 0
            assert not stay._core.held_leases

    run_scenario(engine_url, namespace, scenario)


def test_an_exception_raised_while_the_loss_cancels_the_body_is_not_masked(engine_url, namespace):
    async def scenario(stay):
        async def fail():
            async with stay.lock(NAME, ttl=0.3):
                try:
                    await stay.locks.force_release(NAME)
                    await asyncio.Event().wait()
                finally:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert asyncio.current_task().cancelling() == 0

    run_scenario(engine_url, namespace, scenario)


def test_an_engine_unavailable_at_release_does_not_mask_the_bodys_exception(engine_url, namespace):
    async def scenario(stay):
        submit = stay.engine.submit

        async def away(op):
            raise EngineUnavailable("away")

        async def fail():
            async with stay.lock(NAME):
                stay.engine.submit = away
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        stay.engine.submit = submit

        async def free():
            return not (await stay.locks.inspect(NAME)).held

        assert await soon(free)

    run_scenario(engine_url, namespace, scenario)


def test_a_lease_lost_inside_one_lock_does_not_end_the_one_around_it(engine_url, namespace):
    async def scenario(stay):
        async def lose():
            async with stay.lock("inner", ttl=0.3):
                await stay.locks.force_release("inner")
                await asyncio.Event().wait()

        async with stay.lock("outer") as outer:
            with pytest.raises(LeaseLost):
                await lose()
            outer.check()
        assert asyncio.current_task().cancelling() == 0

    run_scenario(engine_url, namespace, scenario)


def test_a_blocking_body_raises_at_check_and_at_exit(engine_url, connect):
    stay = connect(engine_url)
    leases = []

    def body():
        with stay.lock(NAME, ttl=0.3) as lease:
            leases.append(lease)
            stay.locks.force_release(NAME)
            assert lease.lost.wait(WITHIN)
            with pytest.raises(LeaseLost):
                lease.check()

    with pytest.raises(LeaseLost) as caught:
        body()
    assert caught.value.fence == leases[0].fence
    assert not stay._core.held_leases


def test_a_blocking_bodys_own_exception_is_never_masked(engine_url, connect):
    stay = connect(engine_url)

    def body():
        with stay.lock(NAME, ttl=0.3) as lease:
            stay.locks.force_release(NAME)
            assert eventually(lambda: lease.is_lost)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    assert not stay._core.held_leases


def test_closing_inside_a_body_does_not_mask_its_exception(engine_url, namespace):
    async def main():
        stay = await Backstay(engine_url, namespace=namespace).open()
        async with stay.lock("x"):
            await stay.close()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        asyncio.run(main())


def test_a_cancelled_release_does_not_count_as_a_lost_lease(engine_url, namespace):
    async def main():
        async with Backstay(engine_url, namespace=namespace) as stay:
            async with stay.lock("x") as lease:
                releasing = asyncio.create_task(lease.release())
                await asyncio.sleep(0)
                releasing.cancel()
                with suppress(asyncio.CancelledError):
                    await releasing
            async with stay.lock("x", wait=WITHIN):
                pass

    asyncio.run(main())


def test_waiting_for_the_loss_with_a_timeout_leaves_nothing_behind(engine_url, namespace):
    async def loss(lease):
        return await lease.lost

    async def main():
        async with Backstay(engine_url, namespace=namespace) as stay, stay.lock(NAME, ttl=30) as lease:
            for _ in range(50):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(loss(lease), 0.001)
            assert not lease._on_end
            waiting = asyncio.ensure_future(loss(lease))
            await asyncio.sleep(0)
            await lease.release()
            assert await waiting is False

    asyncio.run(main())
