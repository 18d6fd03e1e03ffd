"""Known pitfalls of naive locks, one by one."""

from __future__ import annotations

import re
import threading

import pytest
from clocked_gate import SECOND

from backstay import OutcomeUnknown, Policy
from backstay.engine.base import ListTagged
from backstay.engine.redis import keys
from backstay.engine.redis.link.protocol import pack
from backstay.gate.commands import (
    Absent,
    Acquire,
    Busy,
    CallerIdentity,
    Foreign,
    Granted,
    Lost,
    Queued,
    Release,
    Released,
)
from backstay.gate.machine import GATE, Expired
from backstay.testing.waiting import eventually
from support.faults import Fault

NAME = "invoice:42"


# Pitfall: a failed acquire extends the holder's TTL.


def test_failed_acquires_do_not_extend_the_holders_ttl(gate):
    gate.acquire("holder", ttl=10 * SECOND)
    for _ in range(9):
        gate.now += SECOND
        assert isinstance(gate.acquire("waiter", ttl=3600 * SECOND), Queued)
        assert isinstance(gate.acquire("passer-by", ttl=3600 * SECOND, queue=0), Busy)
    gate.now += SECOND
    assert isinstance(gate.acquire("waiter"), Granted)


# Pitfall: GET, compare and DEL in separate commands (ABA).


def test_a_release_compares_and_removes_in_one_step(gate):
    gate.acquire("first", ttl=10 * SECOND)
    gate.now += 10 * SECOND
    assert isinstance(gate.acquire("second"), Granted)
    assert isinstance(gate.release("first"), Foreign)
    assert gate.holders() == ["second"]


@pytest.mark.redis
def test_a_release_is_one_script_on_redis(backstay_redis, connect):
    stay = connect(backstay_redis.url)
    with stay.lock(NAME):  # the server has loaded the scripts
        pass
    lease = stay.lock(NAME).acquire()
    link = stay.engine._thread_link()
    link.call_many([pack("CONFIG", "RESETSTAT")])
    lease.release()
    (stats,) = link.call_many([pack("INFO", "commandstats")])
    calls = dict(re.findall(rb"cmdstat_(\S+?):calls=(\d+)", stats))
    assert calls.get(b"evalsha") == b"1"
    assert b"del" not in calls


# Pitfall: a crash between acquiring and writing the identity.


def test_the_lock_and_its_identity_are_written_together(gate):
    gate.acquire("holder", identity=CallerIdentity("execution", "workflow", "name"))
    (holder,) = gate.read_state().holders
    assert holder.caller == CallerIdentity("execution", "workflow", "name")
    assert holder.lock_id == "id-holder"
    assert holder.until > gate.now


@pytest.mark.redis
def test_a_lock_is_one_key_with_a_ttl_on_redis(backstay_redis, connect, namespace):
    stay = connect(backstay_redis.url)
    stay.lock(NAME, ttl=10).acquire()
    link = stay.engine._thread_link()
    (found,) = link.call_many([pack("KEYS", f"{namespace}:*")])
    assert found == [keys.state(namespace, GATE.name, NAME).encode()]
    (life,) = link.call_many([pack("PTTL", found[0])])
    assert life > 10_000


def test_a_crash_before_the_acquire_leaves_only_an_index_entry(engine_url, connect):
    """The execution's index is written first: clean-up may find too many names, never too few."""
    stay = connect(engine_url, profile=Policy(lock_retries=0))
    crash = RuntimeError("killed here")
    before = stay.engine.apply

    def crash_at_acquire(op):
        if isinstance(getattr(op, "command", None), Acquire):
            raise crash
        return before(op)

    stay.engine.apply = crash_at_acquire
    with pytest.raises(RuntimeError):
        stay.lock(NAME).acquire(execution_id="execution")
    stay.engine.apply = before
    assert not stay.locks.inspect(NAME).held
    assert stay.engine.apply_many([ListTagged(GATE, "execution")]) == [[NAME]]
    assert not stay.locks.cleanup("execution").cleaned


# Pitfall: a late or repeated release deletes the successor's lock.


def test_a_late_release_leaves_the_successors_lock(gate):
    first = gate.acquire("first", ttl=10 * SECOND)
    gate.now += 11 * SECOND
    second = gate.acquire("second")
    assert isinstance(gate.release("first", fence=first.fence), Foreign)
    assert isinstance(gate.renew("first", fence=first.fence), Lost)
    assert gate.holders() == ["second"]
    assert second.fence > first.fence


def test_a_repeated_release_leaves_the_successors_lock(gate):
    gate.acquire("first")
    assert isinstance(gate.release("first"), Released)
    assert isinstance(gate.release("first"), Absent)
    gate.acquire("second")
    assert isinstance(gate.release("first"), Foreign)
    assert gate.holders() == ["second"]


def test_a_release_whose_reply_was_lost_is_not_an_error(engine_url, connect):
    stay = connect(engine_url)
    fault = Fault(stay.engine)
    lease = stay.lock(NAME).acquire()
    fault.lose(Release)
    assert lease.release().released
    successor = stay.lock(NAME).acquire(wait=0)
    fault.again(fault.lost[0])
    assert [h.fence for h in stay.locks.inspect(NAME).holders] == [successor.fence]


# Pitfall: a lost reply leaves an orphan lock.


def test_a_resend_after_a_lost_reply_leaves_one_holder(engine_url, connect):
    stay = connect(engine_url)
    fault = Fault(stay.engine)
    fault.lose(Acquire)
    lease = stay.lock(NAME).acquire(wait=0)
    assert [h.fence for h in stay.locks.inspect(NAME).holders] == [lease.fence]
    lease.release()
    assert not stay.locks.inspect(NAME).held


def test_a_late_copy_of_an_acquire_does_not_acquire_again(engine_url, connect):
    stay = connect(engine_url)
    fault = Fault(stay.engine)
    fault.lose(Acquire)
    stay.lock(NAME).acquire(wait=0).release()
    assert isinstance(fault.again(fault.lost[0]), Expired)
    assert stay.locks.inspect(NAME).count == 0


def test_an_acquire_with_an_unknown_outcome_is_withdrawn_once_the_engine_is_back(engine_url, connect):
    stay = connect(engine_url, profile=Policy(lock_retries=0))
    fault = Fault(stay.engine)
    fault.away_after = True
    fault.lose(Acquire)
    with pytest.raises(OutcomeUnknown):
        stay.lock(NAME).acquire(wait=0)
    fault.away = False
    assert eventually(lambda: not stay.locks.inspect(NAME).held)
    stay.lock(NAME).acquire(wait=0)
    assert isinstance(fault.again(fault.lost[0]), (Expired, Busy))


# Pitfall: a cancelled task leaks a lease. test_cancellation.py covers every await point; this is a blocking wait.


def test_an_interrupted_wait_leaves_no_place_in_the_queue(engine_url, connect, monkeypatch):
    stay = connect(engine_url)
    stay.lock(NAME).acquire()
    core = stay._core

    async def interrupted(latch, timeout):
        raise KeyboardInterrupt

    outcome = []

    def wait():
        try:
            stay.lock(NAME).acquire()
        except BaseException as error:  # noqa: BLE001 - a KeyboardInterrupt in a thread
            outcome.append(error)

    thread = threading.Thread(target=wait)
    monkeypatch.setattr(core.port, "park", interrupted)
    thread.start()
    thread.join()
    assert isinstance(outcome[0], KeyboardInterrupt)
    seen = stay.locks.inspect(NAME)
    assert (seen.holder_count, seen.waiter_count) == (1, 0)
    assert not core.latches
