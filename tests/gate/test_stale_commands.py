"""A waiter prepares its next command before it sleeps; after a long sleep it builds a new one, since the old one may
expire.
"""

from __future__ import annotations

import asyncio

import pytest

from backstay import Backstay
from backstay.gate import flows
from backstay.gate.commands import Acquire
from backstay.runtime.lost_replies import COMMAND_LIFE_MICROS
from backstay.testing.waiting import soon

#: How long the waiter sleeps, and so how much its prepared command ages, in µs.
LONG, SHORT = 1_000_000, 300_000


class AcquireRecorder:
    """Record every acquire that is sent and the rest of its life at that time."""

    def __init__(self, engine):
        self._engine, self._submit = engine, engine.submit
        self.sent = []
        engine.submit = self

    def __call__(self, op):
        if isinstance(getattr(op, "command", None), Acquire):
            self.sent.append((op, op.command.not_after - self._engine.now()))
        return self._submit(op)


async def wait_for_a_turn(stay, slept):
    """Return the acquire that a waiter sent after it slept for `slept` seconds, and the rest of its life."""
    held = await stay.lock("x", ttl=60).acquire()
    recorder = AcquireRecorder(stay.engine)
    waiter = asyncio.create_task(stay.lock("x", ttl=60).acquire())

    async def queued():
        return (await stay.locks.inspect("x")).waiter_count == 1 and stay._core.latches

    assert await soon(queued)
    await asyncio.sleep(slept)
    asked = len(recorder.sent)
    await held.release()
    lease = await waiter
    assert len(recorder.sent) == asked + 1, "the hint was enough: one command more"
    await lease.release()
    return recorder.sent[-1]


def test_a_waiter_that_slept_long_sends_a_new_command(engine_url, namespace, monkeypatch):
    monkeypatch.setattr(flows, "STILL_FRESH", 0.2)

    async def scenario():
        async with Backstay(engine_url, namespace=namespace) as stay:
            return await wait_for_a_turn(stay, LONG / 1_000_000)

    op, left = asyncio.run(scenario())
    assert left > COMMAND_LIFE_MICROS - LONG / 2
    assert not op.encoded


@pytest.mark.redis
def test_a_waiter_that_slept_briefly_sends_its_prepared_command(backstay_redis, namespace):
    async def scenario():
        async with Backstay(backstay_redis.url, namespace=namespace) as stay:
            return await wait_for_a_turn(stay, SHORT / 1_000_000)

    op, left = asyncio.run(scenario())
    assert op.encoded
    assert (
        left <= COMMAND_LIFE_MICROS - SHORT / 2
    )  # a new command would have all of it; half allows for clock corrections


def test_a_prepared_command_has_at_least_half_of_its_life_left():
    """The slowest allowed handoff still arrives before the command expires."""
    assert flows.STILL_FRESH * 2 * 1_000_000 <= COMMAND_LIFE_MICROS
