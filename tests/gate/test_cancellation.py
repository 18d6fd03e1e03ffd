"""A cancellation at any await point leaves no holder, no ticket and no local state behind."""

from __future__ import annotations

import asyncio

import pytest
from cancel_at import CancelAt

from backstay import Backstay
from backstay.testing.waiting import WITHIN, soon

NAME = "invoice:42"
#: No operation suspends this often.
MOST = 60

WHEN = pytest.mark.parametrize("when", ["at once", "too late"])


async def acquire_and_release(stay):
    lease = await stay.lock(NAME).acquire()
    await lease.release()


async def acquire_for_an_execution(stay):
    lease = await stay.lock(NAME).acquire(execution_id="execution", wait=WITHIN)
    await lease.release()


async def enter_and_leave(stay):
    async with stay.lock(NAME):
        await asyncio.sleep(0)


async def enter_within_a_timeout(stay):
    async with asyncio.timeout(30), stay.semaphore(NAME, permits=1):
        await asyncio.sleep(0)


async def enter_twice(stay):
    async with stay.lock(NAME, reentrant=True), stay.lock(NAME, reentrant=True):
        await asyncio.sleep(0)


async def read_and_write(stay):
    async with stay.rwlock(NAME).read():
        await asyncio.sleep(0)
    async with stay.rwlock(NAME).write():
        await asyncio.sleep(0)


OPERATIONS = pytest.mark.parametrize(
    "operation",
    [
        acquire_and_release,
        acquire_for_an_execution,
        enter_and_leave,
        enter_within_a_timeout,
        enter_twice,
        read_and_write,
    ],
)


async def assert_nothing_left(stay):
    """Assert that the lock has no holder and no waiter, that no local state is left, and that it can be acquired."""

    async def empty():
        return (await stay.locks.inspect(NAME)).count == 0 and not stay._core.latches and not stay._core.held_leases

    assert await soon(empty, 5), (await stay.locks.inspect(NAME), stay._core.latches, stay._core.held_leases)
    lease = await stay.lock(NAME).acquire(wait=0)
    await lease.release()


async def run_until_done(stay, cancelling, held):
    """Run the operation to its end and return its task; release `held` as soon as the operation waits for it."""

    async def run():
        await cancelling

    task = asyncio.create_task(run())

    async def waits():
        return task.done() or (await stay.locks.inspect(NAME)).waiter_count

    if held is not None:
        assert await soon(waits)
        await held.release()
    await asyncio.wait([task])
    return task


async def cancel_at_suspension(stay_of, operation, when, k, *, contended=False):
    """Run `operation` with a cancellation at suspension k. Return whether it suspended that often."""
    async with stay_of() as stay:
        held = None
        if contended:
            gate = stay.rwlock(NAME).write() if operation is read_and_write else stay.lock(NAME)
            held = await gate.acquire()
        cancelling = CancelAt(operation(stay), k, when)
        task = await run_until_done(stay, cancelling, held)
        if cancelling.fired:
            # A cancellation at the arrival of the last reply may come after the operation is done.
            assert task.cancelled() or (task.exception() is None and when == "too late")
        else:
            await task
        await assert_nothing_left(stay)
        return cancelling.fired


def cancel_at_every_suspension(url, namespace, operation, when, **options):
    """Cancel at each suspension in turn until the operation completes; return the number of suspensions."""

    def stay_of():
        return Backstay(url, namespace=namespace)

    async def scenario():
        for k in range(1, MOST):
            if not await cancel_at_suspension(stay_of, operation, when, k, **options):
                return k - 1
        pytest.fail(f"still suspending after {MOST} steps")

    return asyncio.run(scenario())


@WHEN
@OPERATIONS
def test_cancelling_an_uncontended_lock_leaves_nothing_behind(engine_url, namespace, operation, when):
    assert cancel_at_every_suspension(engine_url, namespace, operation, when) >= 2


@WHEN
@OPERATIONS
def test_cancelling_a_contended_lock_leaves_nothing_behind(engine_url, namespace, operation, when):
    assert cancel_at_every_suspension(engine_url, namespace, operation, when, contended=True) >= 3


@WHEN
def test_a_cancelled_release_still_releases_the_lock(engine_url, namespace, when):
    async def scenario():
        for k in range(1, MOST):
            async with Backstay(engine_url, namespace=namespace) as stay:
                lease = await stay.lock(NAME).acquire()
                cancelling = CancelAt(lease.release(), k, when)
                await run_until_done(stay, cancelling, None)
                await assert_nothing_left(stay)
                if not cancelling.fired:
                    return
        pytest.fail("a release never ends")

    asyncio.run(scenario())


@WHEN
def test_a_cancelled_waiter_does_not_delay_the_next_waiter(engine_url, namespace, when):
    """Its offer goes to the next waiter at once, not only when the offer lapses."""

    async def scenario():
        for k in range(1, MOST):
            async with Backstay(engine_url, namespace=namespace) as stay:
                held = await stay.lock(NAME).acquire()
                cancelling = CancelAt(acquire_and_release(stay), k, when)
                async with asyncio.timeout(1.5):
                    await run_until_done(stay, cancelling, held)
                    behind = await stay.lock(NAME).acquire()
                await behind.release()
                if not cancelling.fired:
                    return
        pytest.fail("an acquire never ends")

    asyncio.run(scenario())
