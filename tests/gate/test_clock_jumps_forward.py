"""The engine's clock jumps forward past the life of all tickets: waiters that ask again keep their position."""

from __future__ import annotations

import asyncio
import time

import pytest
from clocked_gate import SECOND

from backstay import Backstay
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.gate.commands import Granted, Queued
from backstay.gate.machine import GRACE, LONGEST_JUMP
from backstay.testing.waiting import WITHIN, soon

NAME = "invoice:42"


def test_waiters_that_ask_again_after_a_jump_keep_their_position(gate):
    gate.acquire("a", ttl=300 * SECOND)
    for ticket in ("b", "c", "d"):
        gate.acquire(ticket)
    gate.now += 60 * SECOND
    assert gate.acquire("e").position == 0  # the others are passed over until they ask again
    assert [gate.acquire(ticket).position for ticket in ("d", "c", "b", "e")] == [0, 0, 0, 3]
    gate.release("a")
    assert isinstance(gate.acquire("c"), Queued)
    assert isinstance(gate.acquire("b"), Granted)


def test_a_waiter_that_stays_silent_after_a_jump_is_removed(gate):
    gate.acquire("a", ttl=300 * SECOND)
    gate.acquire("b")
    gate.now += 60 * SECOND
    gate.renew("a", ttl=300 * SECOND)
    assert [w.ticket for w in gate.read_state().queue] == ["b"]
    gate.now += GRACE
    gate.renew("a", ttl=300 * SECOND)
    assert gate.read_state().queue == ()


def test_a_ticket_that_expired_long_ago_is_removed_at_once(gate):
    gate.acquire("a", ttl=10 * LONGEST_JUMP)
    gate.acquire("b")
    gate.now += 2 * LONGEST_JUMP
    gate.renew("a", ttl=300 * SECOND)
    assert gate.read_state().queue == ()


@pytest.mark.timed
def test_waiters_beside_a_lock_that_a_jump_freed_are_served_at_once_and_in_order():
    class HostClock:
        off = 0

        def __call__(self):
            return time.time_ns() // 1000 + self.off

    async def scenario():
        clock = HostClock()
        async with Backstay(engine=SqliteEngine(":memory:", clock=clock)) as stay:
            served = []
            held = await stay.lock(NAME, ttl=50, renew=False).acquire()

            async def wait(number):
                async with stay.lock(NAME, ttl=300):
                    served.append(number)

            waiters = []
            for number in range(3):
                waiters.append(asyncio.create_task(wait(number)))
                assert await soon(lambda n=number: _queued(stay, n + 1))
            clock.off += 60 * SECOND  # ends the holder's lease, too
            began = time.monotonic()
            waiters.append(asyncio.create_task(wait("newcomer")))
            await asyncio.wait_for(asyncio.gather(*waiters), WITHIN)
            assert time.monotonic() - began < 5.0  # a lost wake-up would cost up to ten seconds
            assert [each for each in served if each != "newcomer"] == [0, 1, 2]
            del held

    asyncio.run(scenario())


async def _queued(stay, count):
    return (await stay.locks.inspect(NAME)).waiter_count == count
