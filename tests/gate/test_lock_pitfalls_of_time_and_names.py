"""More pitfalls of naive locks: starvation, dead waiters, clocks, ids and names."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from clocked_gate import SECOND
from hypothesis import given
from hypothesis import strategies as st

from backstay import LockHeld, NotOwner
from backstay.engine.base import Ping
from backstay.engine.redis import keys
from backstay.gate.commands import Granted, Queued
from backstay.gate.machine import GATE, GRACE, LIFE, OFFER

NAME = "invoice:42"


# Pitfall: reader and writer starvation.


def test_a_stream_of_readers_does_not_starve_a_writer(gate):
    gate.read("r0")
    assert isinstance(gate.write("w"), Queued)
    for i in range(1, 6):
        assert isinstance(gate.read(f"r{i}"), Queued)
    gate.release("r0")
    assert isinstance(gate.read("r1"), Queued)
    assert isinstance(gate.write("w"), Granted)
    gate.release("w")
    assert all(isinstance(gate.read(f"r{i}"), Granted) for i in range(1, 6))


def test_a_stream_of_writers_does_not_starve_a_reader(gate):
    gate.write("w0")
    assert isinstance(gate.write("w1"), Queued)
    assert isinstance(gate.read("r"), Queued)
    assert isinstance(gate.write("w2"), Queued)
    gate.release("w0")
    assert isinstance(gate.write("w1"), Granted)
    gate.release("w1")
    assert isinstance(gate.write("w2"), Queued)
    assert isinstance(gate.read("r"), Granted)
    assert isinstance(gate.write("w2"), Queued)


# Pitfall: dead waiters.


def test_a_dead_waiter_costs_one_offer_window(gate):
    gate.acquire("holder")
    gate.acquire("dead")
    gate.acquire("alive")
    gate.release("holder")
    assert isinstance(waiting := gate.acquire("alive"), Queued)
    assert waiting.recheck_after <= 2 * OFFER + 1_000
    gate.now += OFFER - 1
    assert isinstance(gate.acquire("alive"), Queued)
    gate.now += 1
    assert isinstance(gate.acquire("alive"), Granted)


def test_a_waiter_without_a_heartbeat_leaves_the_queue(gate):
    gate.acquire("holder", ttl=3600 * SECOND)
    gate.acquire("dead")
    gate.now += LIFE
    assert gate.acquire("alive").position == 0  # an expired ticket is passed over at once, and removed after a grace
    gate.now += GRACE
    gate.acquire("alive")
    assert [w.ticket for w in gate.read_state().queue] == ["alive"]


def test_a_waiter_that_paused_too_long_loses_its_turn_but_not_its_rank(gate):
    gate.acquire("holder")
    for ticket in ("paused", "next", "last"):
        gate.acquire(ticket)
    gate.release("holder")
    gate.now += OFFER
    assert isinstance(gate.acquire("next"), Granted)
    assert isinstance(gate.acquire("paused"), Queued)
    gate.release("next")
    assert isinstance(gate.acquire("last"), Queued)
    assert isinstance(gate.acquire("paused"), Granted)


# Pitfall: the clock of the client.


@pytest.mark.redis
@pytest.mark.parametrize("wrong", [-86_400, -60, 60, 86_400])
def test_a_client_with_a_wrong_clock_gets_the_servers_time(backstay_redis, connect, wrong):
    stay, other = connect(backstay_redis.url).open(), connect(backstay_redis.url).open()
    stay.engine._offset += wrong
    (before,) = other.engine.apply_many([Ping()])
    lease = stay.lock(NAME, ttl=30).acquire(wait=0)
    granted = lease.acquired_at.timestamp() * 1_000_000
    assert before - 1 <= granted <= before + 5 * SECOND
    assert timedelta(seconds=29) < lease.expires_at - lease.acquired_at <= timedelta(seconds=30)
    with pytest.raises(LockHeld):
        other.lock(NAME).acquire(wait=0)
    lease.renew()
    assert lease.release().released


def test_a_clock_that_is_set_back_does_not_repeat_a_fence(gate):
    fences = []
    for step in (0, -3600 * SECOND, 1, -7200 * SECOND, 5 * SECOND):
        gate.now += step
        fences.append(gate.acquire("holder").fence)
        gate.release("holder")
    assert fences == sorted(set(fences))


def test_a_lease_has_the_engines_time_in_utc(engine_url, connect):
    lease = connect(engine_url).lock(NAME).acquire()
    assert abs(datetime.now(UTC) - lease.acquired_at) < timedelta(minutes=1)


# Pitfall: two locks of one execution share an id.


def test_two_locks_of_one_execution_do_not_share_an_id(engine_url, connect):
    stay = connect(engine_url)
    one = stay.lock("a").acquire(execution_id="execution")
    two = stay.lock("b").acquire(execution_id="execution")
    assert one.id != two.id
    with pytest.raises(NotOwner):
        stay.locks.release("b", one.id)
    assert stay.locks.inspect("b").held


def test_one_lock_id_on_two_names_is_two_locks(engine_url, connect):
    stay = connect(engine_url)
    one = stay.lock("a").acquire(lock_id="same", execution_id="execution")
    stay.lock("b").acquire(lock_id="same", execution_id="execution")
    one.release()
    assert stay.locks.inspect("b").held
    assert stay.locks.cleanup("execution").scopes == ("b",)


# Pitfall: colons and braces in names.


@given(st.lists(st.text(alphabet="ab{}:%*7BD25\n\0é", min_size=1, max_size=8), min_size=2, max_size=2, unique=True))
def test_no_two_names_share_a_key_and_none_breaks_the_hash_tag(names):
    one, other = (keys.state("space", GATE.name, name) for name in names)
    assert one != other
    for name, key in zip(names, (one, other), strict=True):
        assert keys.name_of("space", GATE.name, key) == name
        tag = re.search(r"\{([^}]+)\}", key, re.DOTALL)
        assert tag is not None
        assert key == f"space:{GATE.name}:{{{tag[1]}}}"


def test_colons_and_braces_do_not_collide(engine_url, connect):
    stay = connect(engine_url)
    names = ["a", "{a}", "a:b", "{a}:b", "{a:b}", "a}", "{a", "gate:a", "gate:{a}", "%7Ba%7D", "a-tag:{b}"]
    leases = [stay.lock(name).acquire(wait=0, execution_id=name) for name in names]
    for name, lease in zip(names, leases, strict=True):
        assert [h.lock_id for h in stay.locks.inspect(name).holders] == [lease.lock_id]
        assert stay.locks.cleanup(name).scopes == (name,)
