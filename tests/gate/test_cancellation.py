"""Cancelled at any await point, nothing of a lock is left behind."""

from __future__ import annotations

import asyncio

import pytest
from stepping import CancelAt

from holdfast import Holdfast
from holdfast.testing.waiting import WITHIN, soon

NAME = "invoice:42"
#: No operation suspends that often.
MOST = 60

WHEN = pytest.mark.parametrize("when", ["at once", "too late"])


async def acquire_and_release(hf):
    lease = await hf.lock(NAME).acquire()
    await lease.release()


async def acquire_for_an_execution(hf):
    lease = await hf.lock(NAME).acquire(execution_id="execution", wait=WITHIN)
    await lease.release()


async def enter_and_leave(hf):
    async with hf.lock(NAME):
        await asyncio.sleep(0)


async def enter_within_a_timeout(hf):
    async with asyncio.timeout(30), hf.semaphore(NAME, permits=1):
        await asyncio.sleep(0)


async def enter_twice(hf):
    async with hf.lock(NAME, reentrant=True), hf.lock(NAME, reentrant=True):
        await asyncio.sleep(0)


async def read_and_write(hf):
    async with hf.rwlock(NAME).read():
        await asyncio.sleep(0)
    async with hf.rwlock(NAME).write():
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


async def clean(hf):
    """Nobody holds it, nobody waits, this process remembers nothing, and it can be had at once."""

    async def empty():
        return (await hf.locks.inspect(NAME)).count == 0 and not hf._core.latches and not hf._core.held

    assert await soon(empty, 5), (await hf.locks.inspect(NAME), hf._core.latches, hf._core.held)
    lease = await hf.lock(NAME).acquire(wait=0)
    await lease.release()


async def play(hf, stepping, held):
    """Run it to its end; `held` is released as soon as it waits for that (or has ended). Answers its task."""

    async def run():
        await stepping

    task = asyncio.create_task(run())

    async def waits():
        return task.done() or (await hf.locks.inspect(NAME)).waiter_count

    if held is not None:
        assert await soon(waits)
        await held.release()
    await asyncio.wait([task])
    return task


async def step_through(hf_of, act, when, k, *, rival=False):
    """Play `act` with a cancellation at suspension k. True when it came to that."""
    async with hf_of() as hf:
        held = None
        if rival:
            gate = hf.rwlock(NAME).write() if act is read_and_write else hf.lock(NAME)
            held = await gate.acquire()
        stepping = CancelAt(act(hf), k, when)
        task = await play(hf, stepping, held)
        if stepping.fired:
            # A cancellation that came as the last answer arrived may find everything done.
            assert task.cancelled() or (task.exception() is None and when == "too late")
        else:
            await task
        await clean(hf)
        return stepping.fired


def walk(url, namespace, act, when, **options):
    """Every suspension in turn, until the act ends undisturbed. Answers how many there were."""

    def hf_of():
        return Holdfast(url, namespace=namespace)

    async def everything():
        for k in range(1, MOST):
            if not await step_through(hf_of, act, when, k, **options):
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
            async with Holdfast(engine_url, namespace=namespace) as hf:
                lease = await hf.lock(NAME).acquire()
                stepping = CancelAt(lease.release(), k, when)
                await play(hf, stepping, None)
                await clean(hf)
                if not stepping.fired:
                    return
        pytest.fail("a release never ends")

    asyncio.run(everything())


@WHEN
def test_a_cancelled_waiter_does_not_keep_others_waiting(engine_url, namespace, when):
    """The place that was offered to it is offered on: nobody waits until the offer lapses."""

    async def everything():
        for k in range(1, MOST):
            async with Holdfast(engine_url, namespace=namespace) as hf:
                held = await hf.lock(NAME).acquire()
                stepping = CancelAt(acquire_and_release(hf), k, when)
                async with asyncio.timeout(1.5):
                    await play(hf, stepping, held)
                    behind = await hf.lock(NAME).acquire()
                await behind.release()
                if not stepping.fired:
                    return
        pytest.fail("an acquire never ends")

    asyncio.run(everything())
