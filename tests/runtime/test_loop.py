"""The background loop starts, ticks, backs off, drains and stops; each call is idempotent."""

from __future__ import annotations

import asyncio

from backstay.runtime import loop as loops
from backstay.runtime.loop import Loop
from backstay.telemetry import Telemetry
from backstay.testing.waiting import WITHIN
from support.event_loop import on_a_loop


class Part:
    """A background part that counts its ticks."""

    def __init__(self, every=60.0, fails=0, delay=None):
        self.telemetry = Telemetry()
        self.ticks = 0
        self.fails = fails
        self.delay = delay
        self.ticked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.ended = 0
        self.loop = Loop(self.tick, name="part", every=every, telemetry=self.telemetry)

    async def tick(self):
        self.ticks += 1
        self.ticked.set()
        if self.ticks <= self.fails:
            raise RuntimeError("not yet")
        await self.gate.wait()
        self.ended += 1
        return self.delay

    async def next(self):
        await asyncio.wait_for(self.ticked.wait(), WITHIN)
        self.ticked.clear()


@on_a_loop
async def test_a_loop_ticks_at_once_and_on_wake():
    part = Part()
    part.loop.start()
    await part.next()
    part.loop.wake()
    await part.next()
    assert part.ticks == 2
    await part.loop.stop()


@on_a_loop
async def test_starting_twice_makes_one_loop_and_stopping_twice_is_safe():
    part = Part()
    part.loop.start()
    part.loop.start()
    await part.next()
    await asyncio.sleep(0)
    assert part.ticks == 1
    await part.loop.stop()
    await part.loop.stop()
    assert not part.loop.is_running
    part.loop.start()
    await part.next()
    assert part.ticks == 2
    await part.loop.stop()


@on_a_loop
async def test_a_tick_may_return_the_delay_until_the_next_one():
    part = Part(delay=0.0)
    part.loop.start()
    for _ in range(3):
        await part.next()
    await part.loop.stop()


@on_a_loop
async def test_a_tick_that_raises_is_counted_and_retried(monkeypatch):
    monkeypatch.setattr(loops, "FIRST_PAUSE", 0.001)
    part = Part(fails=3)
    part.loop.start()
    for _ in range(4):
        await part.next()
    assert part.telemetry.counts["loop.failed"] == 3
    assert part.loop.is_running
    await part.loop.stop()


@on_a_loop
async def test_pauses_grow_while_ticks_fail():
    part = Part(fails=100)
    pauses = [await part.loop._once() for _ in range(12)]
    assert 0.25 <= pauses[0] <= 0.5
    assert pauses[5] >= 8
    assert max(pauses) <= 60


@on_a_loop
async def test_draining_waits_for_the_tick_under_way():
    part = Part()
    part.gate.clear()
    part.loop.start()
    await part.next()
    drained = asyncio.create_task(part.loop.drain())
    await asyncio.sleep(0.01)
    assert not drained.done()
    part.gate.set()
    await asyncio.wait_for(drained, WITHIN)
    assert part.ended == 1
    assert not part.loop.is_running


@on_a_loop
async def test_stopping_cancels_a_tick_that_does_not_end():
    part = Part()
    part.gate.clear()
    part.loop.start()
    await part.next()
    await part.loop.stop(within=0.01)
    assert part.ended == 0
    assert not part.loop.is_running
