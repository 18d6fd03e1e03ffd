"""A newcomer that a full queue refuses costs little: its refusal decodes, rewrites and stores no queue."""

from __future__ import annotations

import re

import pytest
from clocked_gate import SECOND, START

from backstay.engine.redis.address import parse
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.gate.commands import Busy, Full, Granted, Queued
from backstay.gate.machine import GRACE, LIFE, REFUSE_WITHIN


def fill(gate, waiters):
    """Let one ticket hold the gate and others wait."""
    assert isinstance(gate.acquire("holder", ttl=600 * SECOND), Granted)
    for n in range(waiters):
        assert isinstance(gate.acquire(f"waiter-{n}", queue=waiters), Queued)


def test_a_newcomer_is_refused_without_a_write(gate):
    fill(gate, 3)
    stored = gate.read_state()
    gate.now += REFUSE_WITHIN - 1
    assert gate.acquire("newcomer", queue=3) == Full(3)
    assert gate.acquire("impatient", queue=0) == Busy(4, stored.holders)
    assert gate.read_state() == stored


def test_a_waiter_in_a_full_queue_still_refreshes_its_ticket(gate):
    fill(gate, 3)
    gate.now += 1
    assert gate.acquire("waiter-1", queue=3).position == 1
    assert gate.read_state().queue[1].alive == gate.now + LIFE


def test_a_ticket_whose_text_is_part_of_another_is_a_newcomer(gate):
    fill(gate, 3)
    assert gate.acquire("waiter", queue=3) == Full(3)
    assert gate.acquire("id-waiter-1", queue=3) == Full(3)


def test_a_full_queue_of_crashed_waiters_makes_room(gate):
    """The refusals themselves let time pass: a second after the last change, a newcomer applies it."""
    fill(gate, 3)
    gate.now += LIFE
    assert gate.acquire("newcomer", queue=3) == Full(3)  # the tickets have expired, but keep their places for a while
    gate.now += GRACE
    assert isinstance(gate.acquire("newcomer", queue=3), Queued)


def test_a_newcomer_is_not_refused_when_the_lease_has_ended(gate):
    assert isinstance(gate.acquire("holder", ttl=SECOND), Granted)
    assert isinstance(gate.acquire("waiter", queue=1), Queued)
    gate.now = START + SECOND
    assert gate.acquire("newcomer", queue=1) == Full(1)
    assert gate.read_state().queue[0].offer > 0  # the command offered the free place to the waiter


def test_a_refused_newcomer_decodes_no_queue_on_redis(gate, engine_url):
    """The script of a refusal is much shorter than that of a waiter's refresh, which rewrites a queue of a thousand."""
    if not engine_url.startswith("redis"):
        pytest.skip("measured by Redis itself")
    fill(gate, 1000)
    link = BlockingLink(parse(engine_url), "test", None)

    def measure(tickets):
        """Return the statistics of Redis for the scripts and the SET commands that these acquires run."""
        link.call_many([pack("CONFIG", "RESETSTAT")])
        for ticket in tickets:
            gate.acquire(ticket, queue=1000)
        (stats,) = link.call_many([pack("INFO", "commandstats")])
        return dict(re.findall(r"cmdstat_(evalsha|set):.*usec_per_call=([\d.]+)", stats.decode()))

    try:
        refused = measure([f"newcomer-{n}" for n in range(20)])
        refreshed = measure([f"waiter-{n}" for n in range(20)])
    finally:
        link.close()
    assert "set" not in refused
    assert "set" in refreshed
    assert float(refused["evalsha"]) * 4 < float(refreshed["evalsha"])
