"""Cancelled at any await point, nothing of a lock is left behind."""

from __future__ import annotations

import asyncio

import pytest
from stepping import CancelAt

from backstay import Backstay
from backstay.testing.waiting import WITHIN, soon

NAME = "invoice:42"
#: No operation suspends that often.
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


ACTS = pytest.mark.parametrize(
    "act",
    [
        acquire_and_release,
        acquire_for_an_execution,
        enter_and_leave,
        enter_within_a_timeout,
        enter_twice,
        read_and_write,
    ],
)


async def clean(stay):
    """Nobody holds it, nobody waits, this process remembers nothing, and it can be had at once."""

    async def empty():
        return (await stay.locks.inspect(NAME)).count == 0 and not stay._core.latches and not stay._core.held

    assert await soon(empty, 5), (await stay.locks.inspect(NAME), stay._core.latches, stay._core.held)
    lease = await stay.lock(NAME).acquire(wait=0)
    await lease.release()


async def play(stay, stepping, held):
    """Run it to its end; `held` is released as soon as it waits for that (or has ended). Answers its task."""

    async def run():
        await stepping

    task = asyncio.create_task(run())

    async def waits():
        return task.done() or (await stay.locks.inspect(NAME)).waiter_count

    if held is not None:
        assert await soon(waits)
        await held.release()
    await asyncio.wait([task])
    return task


async def step_through(stay_of, act, when, k, *, rival=False):
    """Play `act` with a cancellation at suspension k. True when it came to that."""
    async with stay_of() as stay:
        held = None
        if rival:
            gate = stay.rwlock(NAME).write() if act is read_and_write else stay.lock(NAME)
            held = await gate.acquire()
        stepping = CancelAt(act(stay), k, when)
        task = await play(stay, stepping, held)
        if stepping.fired:
            # A cancellation that came as the last answer arrived may find everything done.
            assert task.cancelled() or (task.exception() is None and when == "too late")
        else:
            await task
        await clean(stay)
        return stepping.fired


def walk(url, namespace, act, when, **options):
    """Every suspension in turn, until the act ends undisturbed. Answers how many there were."""

    def stay_of():
        return Backstay(url, namespace=namespace)

    async def everything():
        for k in range(1, MOST):
            if not await step_through(stay_of, act, when, k, **options):
                return k - 1
        pytest.fail(f"still suspending after {MOST} steps")

    return asyncio.run(everything())


@WHEN
@ACTS
def test_nothing_is_left_of_an_undisputed_lock(engine_url, namespace, act, when):
    assert walk(engine_url, namespace, act, when) >= 2


@WHEN
@ACTS
def test_nothing_is_left_of_a_lock_that_was_waited_for(engine_url, namespace, act, when):
    assert walk(engine_url, namespace, act, when, rival=True) >= 3


@WHEN
def test_a_release_that_is_cancelled_happens_all_the_same(engine_url, namespace, when):
    async def everything():
        for k in range(1, MOST):
            async with Backstay(engine_url, namespace=namespace) as stay:
                lease = await stay.lock(NAME).acquire()
                stepping = CancelAt(lease.release(), k, when)
                await play(stay, stepping, None)
                await clean(stay)
                if not stepping.fired:
                    return
        pytest.fail("a release never ends")

    asyncio.run(everything())


@WHEN
def test_a_cancelled_waiter_does_not_keep_others_waiting(engine_url, namespace, when):
    """The place that was offered to it is offered on: nobody waits until the offer lapses."""

    async def everything():
        for k in range(1, MOST):
            async with Backstay(engine_url, namespace=namespace) as stay:
                held = await stay.lock(NAME).acquire()
                stepping = CancelAt(acquire_and_release(stay), k, when)
                async with asyncio.timeout(1.5):
                    await play(stay, stepping, held)
                    behind = await stay.lock(NAME).acquire()
                await behind.release()
                if not stepping.fired:
                    return
        pytest.fail("an acquire never ends")

    asyncio.run(everything())
