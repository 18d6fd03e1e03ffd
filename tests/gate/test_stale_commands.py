"""A waiter makes its next command ready before it sleeps. One that slept long makes another: that one may end."""

from __future__ import annotations

import asyncio

import pytest

from backstay import Backstay
from backstay.gate import flows
from backstay.gate.machine import Acquire
from backstay.runtime.flows import PATIENCE_MICROS
from backstay.testing.waiting import soon

#: What a command loses of its time by waiting, in µs.
LONG, SHORT = 1_000_000, 300_000


class Watched:
    """Notes every acquire that is sent, and how much of its time is left then."""

    def __init__(self, engine):
        self._engine, self._submit = engine, engine.submit
        self.sent = []
        engine.submit = self

    def __call__(self, op):
        if isinstance(getattr(op, "command", None), Acquire):
            self.sent.append((op, op.command.not_after - self._engine.now()))
        return self._submit(op)


async def wait_for_a_turn(stay, slept):
    """The acquire with which a waiter took its turn after it had slept for so long, and what it had left."""
    held = await stay.lock("x", ttl=60).acquire()
    watched = Watched(stay.engine)
    waiter = asyncio.create_task(stay.lock("x", ttl=60).acquire())

    async def queued():
        return (await stay.locks.inspect("x")).waiter_count == 1 and stay._core.latches

    assert await soon(queued)
    await asyncio.sleep(slept)
    asked = len(watched.sent)
    await held.release()
    lease = await waiter
    assert len(watched.sent) == asked + 1, "the hint was enough: one command more"
    await lease.release()
    return watched.sent[-1]


def test_a_waiter_that_slept_long_does_not_send_a_command_that_is_about_to_end(engine_url, namespace, monkeypatch):
    monkeypatch.setattr(flows, "STILL_FRESH", 0.2)

    async def scene():
        async with Backstay(engine_url, namespace=namespace) as stay:
            return await wait_for_a_turn(stay, LONG / 1_000_000)

    op, left = asyncio.run(scene())
    assert left > PATIENCE_MICROS - LONG / 2
    assert not op.wire


@pytest.mark.redis
def test_a_waiter_that_slept_shortly_sends_what_it_had_made_ready(backstay_redis, namespace):
    async def scene():
        async with Backstay(backstay_redis.url, namespace=namespace) as stay:
            return await wait_for_a_turn(stay, SHORT / 1_000_000)

    op, left = asyncio.run(scene())
    assert op.wire
    assert left <= PATIENCE_MICROS - SHORT / 2  # a fresh one would have all of it; clocks are corrected meanwhile


def test_what_is_still_fresh_has_half_of_its_time_left():
    """So that the slowest hand-over that is allowed still arrives in time."""
    assert flows.STILL_FRESH * 2 * 1_000_000 <= PATIENCE_MICROS
