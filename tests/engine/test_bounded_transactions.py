"""A burst of operations on one name delays no other caller for long: transactions are bounded, renewals run first."""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager

import pytest

from backstay.engine import commit_thread
from backstay.engine.base import Apply, Ping, Read, steady
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.batches import batch
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.sqlite import engine as sqlite_engine
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.gate.commands import Acquire, CallerIdentity, Full, Granted, Queued, Renew, Renewed
from backstay.gate.machine import GATE
from backstay.testing.waiting import WITHIN

FAR = 2**52
LEASE = 600_000_000


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def engine(request, tmp_path):
    if request.param == "sqlite":
        made = SqliteEngine(str(tmp_path / "bursts.db"), synchronous="off")
    else:
        made = PostgresEngine(parse(request.getfixturevalue("database").url))
    with closing(made):
        made.apply(Ping())
        yield made


@contextmanager
def closing(engine):
    try:
        yield engine
    finally:
        engine.close_blocking()


def acquire(ticket, name="x", max_waiters=1000):
    return Apply(GATE, name, Acquire(FAR, ticket, ticket, True, 1, LEASE, "inbox", max_waiters, CallerIdentity()))


def count_transactions(engine, monkeypatch):
    """Return a list to which each transaction of machine commands appends its number of operations."""
    sizes = []
    if isinstance(engine, SqliteEngine):
        run_ops = engine._writer._work

        def work(db, ops):
            results = run_ops(db, ops)
            sizes.append(sum(result is not commit_thread.UNSTARTED for result in results[0]))
            return results

        engine._writer._work = work
    else:
        run = batch.Batch.run

        def run_batch(self):
            results = run(self)
            sizes.append(sum(result is not commit_thread.UNSTARTED for result in results))
            return results

        monkeypatch.setattr(batch.Batch, "run", run_batch)
    return sizes


def test_a_burst_is_divided_by_the_number_of_operations(engine, monkeypatch):
    sizes = count_transactions(engine, monkeypatch)
    replies = engine.apply_many([acquire(f"t{n}", f"name-{n}") for n in range(2500)])
    assert [type(reply) for reply in replies] == [Granted] * 2500
    assert sum(sizes) == 2500
    assert max(sizes) <= commit_thread.MAX_BATCH


def test_a_burst_is_divided_by_time(engine, monkeypatch):
    """Each look at the clock takes a fifth of the time that a transaction may last."""
    ticks = itertools.count()
    for module in (sqlite_engine, batch):
        monkeypatch.setattr(module, "steady", lambda: next(ticks) * commit_thread.MAX_SECONDS / 5)
    sizes = count_transactions(engine, monkeypatch)
    replies = engine.apply_many([acquire(f"t{n}") for n in range(50)])
    assert [type(reply) for reply in replies] == [Granted] + [Queued] * 49
    assert [reply.position for reply in replies[1:]] == list(range(49))  # in the order of the calls
    assert sum(sizes) == 50
    assert max(sizes) <= 7


def test_many_commands_on_one_name_encode_its_record_once(engine, monkeypatch):
    """The record of a lock holds its whole queue: a rewrite for each waiter would cost the square of their number."""
    monkeypatch.setattr(sqlite_engine, "steady", lambda: 0.0)
    monkeypatch.setattr(batch, "steady", lambda: 0.0)
    encoded, decoded = [], []
    encode, decode = GATE.encode, GATE.decode_state
    engine.apply(acquire("holder"))
    monkeypatch.setattr(GATE, "encode", lambda value: encoded.append(1) or encode(value))
    monkeypatch.setattr(GATE, "decode_state", lambda *given: decoded.append(1) or decode(*given))
    assert {type(reply) for reply in engine.apply_many([acquire(f"t{n}") for n in range(200)])} == {Queued}
    assert (len(encoded), len(decoded)) == (1, 1)
    assert len(engine.apply(Read(GATE, "x")).state.queue) == 200


def test_a_record_that_cannot_be_stored_fails_only_the_commands_on_its_name(engine):
    bad = Apply(GATE, "bad", Acquire(FAR, "u", "u", True, 2**70, LEASE, "inbox", 0, CallerIdentity()))
    first, second, third, reading = engine.apply_many([acquire("a", "a"), bad, acquire("c", "c"), Read(GATE, "a")])
    assert isinstance(first, Granted)
    assert isinstance(second, OverflowError)
    assert isinstance(third, Granted)
    assert [holder.ticket for holder in reading.state.holders] == ["a"]
    assert engine.apply(Read(GATE, "bad")).state is None


def test_a_renewal_passes_a_burst_of_acquires(engine):
    """The burst is queued first; the keeper's renewal still gets the second transaction at the latest."""
    engine.apply(acquire("holder", "held"))
    answered = []
    all_answered = threading.Event()

    def on_results(results):
        answered.extend(results)
        if len(answered) == 10_000:
            all_answered.set()

    engine._put([acquire(f"t{n}") for n in range(10_000)], on_results, engine._commit_thread)
    (reply,) = engine.apply_many([Apply(GATE, "held", Renew(FAR, "holder", 0, LEASE))], WITHIN)
    passed = len(answered)
    assert isinstance(reply, Renewed)
    assert passed <= 3 * commit_thread.MAX_BATCH
    assert all_answered.wait(WITHIN * 6)
    assert {type(reply) for _, reply in answered} == {Granted, Queued, Full}


@pytest.mark.timed
@pytest.mark.slow
def test_a_burst_in_one_process_leaves_the_file_to_others_between_its_transactions(tmp_path):
    """Another engine on the same file renews its lease within a tenth of the time that it would otherwise lose."""
    path = str(tmp_path / "bursts.db")
    one, other = SqliteEngine(path), SqliteEngine(path)
    with closing(one), closing(other):
        other.apply(acquire("holder", "held"))
        done = threading.Event()
        left = [10_000]

        def on_results(results):
            left[0] -= len(results)
            if not left[0]:
                done.set()

        one._put([acquire(f"t{n}") for n in range(10_000)], on_results, one._commit_thread)
        longest = 0.0
        while not done.is_set():
            began = steady()
            (reply,) = other.apply_many([Apply(GATE, "held", Renew(FAR, "holder", 0, LEASE))], WITHIN)
            longest = max(longest, steady() - began)
            assert isinstance(reply, Renewed)
        print(f"longest renewal {longest * 1000:.0f} ms")
        assert longest < 1.0
