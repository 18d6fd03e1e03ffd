"""Each dead waiter delays the queue by one offer window at most."""

import pytest

from backstay.gate.commands import Acquire, CallerIdentity, Granted, Queued
from backstay.gate.machine import DAY, OFFER, step

TTL = 1_000_000


def acquire(now, ticket):
    return Acquire(now + DAY, ticket, ticket, True, 1, TTL, "inbox", 1000, CallerIdentity())


@pytest.mark.parametrize("dead", [1, 2, 3, 5, 8])
def test_each_dead_waiter_delays_the_queue_by_one_offer_window(dead):
    """The holder and the waiters behind it are dead; the live waiter polls at the times that the replies name."""
    now = 10**15
    state = step(None, acquire(now, "holder"), now).state
    for i in range(dead):
        now += 1000
        state = step(state, acquire(now, f"dead-{i}"), now).state
    started = now
    for _ in range(100):
        state, reply, *_ = step(state, acquire(now, "alive"), now)
        if isinstance(reply, Granted):
            break
        assert isinstance(reply, Queued)
        now += reply.recheck_after
    waited = now - started
    assert waited <= TTL + dead * OFFER + 500_000, f"{waited / 1e6:.1f} s for {dead} dead waiters"


def play(dead, living, *, hints):
    """Simulate a queue of dead and live waiters; a live one never releases. Returns the order in which the live waiters
    were served, and the simulated seconds.
    """
    start = now = 10**15
    state = step(None, acquire(now, "holder"), now).state
    for i in range(dead):
        state = step(state, acquire(now, f"dead-{i}"), now).state
    due = dict.fromkeys((f"alive-{i}" for i in range(living)), now)
    served = []
    for _ in range(5_000):
        if not due:
            break
        ticket = min(due, key=due.__getitem__)
        now = max(now, due[ticket])
        state, reply, wakes, *_ = step(state, acquire(now, ticket), now)
        if isinstance(reply, Granted):
            served.append(ticket)
            del due[ticket]
        else:
            due[ticket] = now + reply.recheck_after
        for wake in wakes:
            if hints and wake.payload in due:
                due[wake.payload] = now
    return served, (now - start) / 1e6


@pytest.mark.parametrize("living", [1, 2, 3, 10])
def test_live_waiters_behind_dead_ones_are_served_in_order(living):
    served, seconds = play(3, living, hints=True)
    assert served == [f"alive-{i}" for i in range(living)]
    assert seconds <= TTL / 1e6 * (1 + living) + 3 * OFFER / 1e6 + living


@pytest.mark.parametrize("dead", [0, 3])
@pytest.mark.parametrize("living", [1, 2, 3, 10])
def test_all_waiters_are_served_when_every_hint_is_lost(dead, living):
    """Hints only shorten the wait: a waiter also polls."""
    served, seconds = play(dead, living, hints=False)
    assert sorted(served) == sorted(f"alive-{i}" for i in range(living))
    assert seconds <= 12 * (dead + living + 1)
