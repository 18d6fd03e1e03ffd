"""The commit thread of an SQL engine gives every caller a result, whatever fails on the way."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from contextlib import contextmanager

import pytest

from backstay.engine import commit_thread as groups
from backstay.engine.base import Apply, Ping, Publish, steady
from backstay.engine.commit_thread import DEFERRED, MAX_BATCH, UNSTARTED, CommitThread
from backstay.engine.loop_batcher import LoopBatcher
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.errors import Closed, EngineUnavailable
from backstay.gate.commands import Acquire, CallerIdentity, Granted, Queued, Release, Released, Renew
from backstay.gate.machine import GATE
from backstay.testing.waiting import eventually

#: Long enough for a busy host.
WITHIN = 10.0


class Caller:
    """Submit operations to a commit thread and wait for their results."""

    def __init__(self, group, ops=1):
        self._commit_thread = group
        self._ops = [Ping()] * ops
        self._results = {}
        self._done = threading.Event()

    def submit(self):
        self._commit_thread.put(self._ops, self._receive)
        return self

    def _receive(self, results):
        self._results.update(results)
        if len(self._results) == len(self._ops):
            self._done.set()

    def results(self):
        assert self._done.wait(WITHIN), "no result arrived"
        return [self._results[i] for i in range(len(self._ops))]


@contextmanager
def running(**parts):
    group = CommitThread("test", **parts)
    try:
        yield group
    finally:
        stopping = threading.Thread(target=group.stop, daemon=True)  # a stop that hangs must not hang the test run
        stopping.start()
        stopping.join(WITHIN)


def defer_once(seen):
    """Return a commit function that defers every item once."""

    def commit(items):
        results = ["done" if id(item) in seen else DEFERRED for item in items]
        seen.update({id(item): item for item in items})  # keep the item alive: its id must not be reused
        return results

    return commit


@pytest.fixture
def interrupt():
    """Send a signal to a thread, then keep all other threads from running for some seconds."""
    before = signal.signal(signal.SIGUSR2, lambda *_: None)

    def interrupt(thread, seconds):
        interval = sys.getswitchinterval()
        sys.setswitchinterval(WITHIN)
        try:
            signal.pthread_kill(thread.ident, signal.SIGUSR2)
            until = steady() + seconds
            while steady() < until:
                pass
        finally:
            sys.setswitchinterval(interval)

    yield interrupt
    signal.signal(signal.SIGUSR2, before)


def test_a_commit_thread_interrupted_beyond_its_retry_delay_continues(monkeypatch, interrupt):
    """A retry delay that ends while the thread is interrupted does not make it wait forever."""
    monkeypatch.setattr(groups, "RETRY_DELAY", 0.1)
    seen = {}
    with running(commit=defer_once(seen)) as group:
        for nth in range(1, 4):
            caller = Caller(group).submit()
            assert eventually(lambda n=nth: len(seen) == n)
            interrupt(group._thread, 0.2)
            assert caller.results() == ["done"]


def test_a_deferred_operation_is_retried_until_it_is_done():
    tries = []

    def commit(items):
        tries.append(len(items))
        return [DEFERRED if len(tries) < 5 else "done" for _ in items]

    with running(commit=commit) as group:
        assert Caller(group, 3).submit().results() == ["done"] * 3
    assert tries == [3] * 5


def test_a_new_operation_is_committed_together_with_deferred_ones(monkeypatch):
    monkeypatch.setattr(groups, "RETRY_DELAY", WITHIN * 2)
    tried = threading.Event()
    first = []

    def commit(items):
        if not first:
            first.extend(items)
            tried.set()
            return [DEFERRED for _ in items]
        return ["done" for _ in items]

    with running(commit=commit) as group:
        caller = Caller(group).submit()
        assert tried.wait(WITHIN)
        assert Caller(group).submit().results() == ["done"]
        assert caller.results() == ["done"]


class BlockedThread:
    """A commit function whose first batch lasts until `go_on`. It notes the operations of each batch."""

    def __init__(self, results=None):
        self.batches = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._results = results or (lambda items: ["done" for _ in items])

    def __call__(self, items):
        self.batches.append([item.op for item in items])
        if len(self.batches) == 1:
            self.begun.set()
            assert self.go_on.wait(WITHIN)
        return self._results(items)


def renewal(ticket="t"):
    return Apply(GATE, "x", Renew(2**53, ticket, 0, 1_000_000))


def test_a_transaction_takes_a_bounded_number_of_operations():
    """The operations of one caller's batch are divided, too."""
    commit = BlockedThread()
    commit.go_on.set()
    with running(commit=commit) as group:
        assert Caller(group, 2500).submit().results() == ["done"] * 2500
    assert [len(batch) for batch in commit.batches] == [MAX_BATCH, MAX_BATCH, 500]


@pytest.mark.parametrize("how", ["a renewal", "an urgent call"])
def test_lease_renewals_run_before_operations_that_were_queued_earlier(how):
    commit = BlockedThread()
    op = renewal() if how == "a renewal" else Publish("channel", "urgent")
    done = threading.Event()
    with running(commit=commit) as group:
        first = Caller(group).submit()
        assert commit.begun.wait(WITHIN)
        rest = Caller(group, 3000).submit()
        group.put([op], lambda _: done.set(), urgent=how == "an urgent call")
        commit.go_on.set()
        assert done.wait(WITHIN)
        assert first.results() == ["done"]
        assert rest.results() == ["done"] * 3000
    assert commit.batches[1][0] is op


def test_operations_that_a_transaction_had_no_time_for_are_run_next_in_order(monkeypatch):
    monkeypatch.setattr(groups, "RETRY_DELAY", WITHIN * 2)  # such operations do not wait for the retry
    commit = BlockedThread(lambda items: ["done" if n < 2 else UNSTARTED for n in range(len(items))])
    ops = [Publish("channel", str(n)) for n in range(5)]
    order = []
    with running(commit=commit) as group:
        first = Caller(group).submit()
        assert commit.begun.wait(WITHIN)
        group.put(ops, order.extend)
        urgent = Caller(group)
        group.put([renewal()], urgent._receive)
        commit.go_on.set()
        assert first.results() == ["done"]
        assert urgent.results() == ["done"]
        assert eventually(lambda: len(order) == len(ops))
    assert [index for index, _ in order] == [0, 1, 2, 3, 4]
    assert [len(batch) for batch in commit.batches] == [1, 6, 4, 2]


def test_an_exception_in_a_commit_fails_its_callers_only():
    broken = [ValueError("a bug")]

    def commit(items):
        if broken:
            raise broken.pop()
        return ["done" for _ in items]

    with running(commit=commit) as group:
        assert [type(reply) for reply in Caller(group, 2).submit().results()] == [ValueError] * 2
        assert Caller(group).submit().results() == ["done"]


def test_an_exception_in_a_tick_delays_no_caller(caplog):
    ticks = []

    def tick():
        ticks.append(1)
        raise ValueError("a bug")

    with caplog.at_level(logging.ERROR), running(commit=lambda items: ["done" for _ in items], tick=tick) as group:
        for _ in range(3):
            assert Caller(group).submit().results() == ["done"]
    assert len(ticks) >= 2
    assert "a bug" in caplog.text


def test_callers_get_an_error_when_no_thread_starts_and_the_next_call_tries_again(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with running(commit=lambda items: ["done" for _ in items]) as group:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert [type(reply) for reply in Caller(group, 2).submit().results()] == [EngineUnavailable] * 2
        assert Caller(group).submit().results() == ["done"]


def test_a_failed_flush_of_a_loop_batch_fails_its_operations():
    def flush(loop, asked):
        raise ValueError("a bug")

    async def ask():
        turn = LoopBatcher(flush)
        both = asyncio.gather(turn.submit(Ping()), turn.submit(Ping()), return_exceptions=True)
        return await asyncio.wait_for(both, WITHIN)

    assert [type(reply) for reply in asyncio.run(ask())] == [ValueError] * 2


def test_a_failed_hint_delivery_does_not_fail_the_committed_operation(tmp_path, caplog):
    """The reply reports the commit although the hint was lost."""

    def fail_to_deliver(wakes):
        raise RuntimeError("can't start new thread")

    with caplog.at_level(logging.ERROR):
        engine = SqliteEngine(str(tmp_path / "x.db"))
        engine.attach("other", fail_to_deliver)
        soon = engine.now() + 60_000_000
        first, second = (
            Apply(GATE, "x", Acquire(soon, ticket, ticket, True, 1, 60_000_000, "i", 9, CallerIdentity()))
            for ticket in "ab"
        )
        try:
            assert isinstance(engine.apply(first), Granted)
            assert isinstance(engine.apply(second), Queued)
            assert isinstance(engine.apply(Apply(GATE, "x", Release(soon, "a", "a", 0, 0))), Released)
        finally:
            engine.close_blocking()
    assert "hints were lost" in caplog.text


def test_stop_completes_queued_operations_and_refuses_later_ones():
    begun, go_on = threading.Event(), threading.Event()
    ended = []

    def commit(items):
        begun.set()
        assert go_on.wait(WITHIN)
        return ["done" for _ in items]

    group = CommitThread("test", commit=commit, end=lambda: ended.append(1))
    first = Caller(group).submit()
    assert begun.wait(WITHIN)
    second = Caller(group, 2).submit()
    stopping = threading.Thread(target=group.stop)
    stopping.start()
    go_on.set()
    stopping.join(WITHIN)
    assert first.results() == ["done"]
    assert second.results() == ["done"] * 2
    assert ended == [1]
    assert [type(reply) for reply in Caller(group).submit().results()] == [Closed]
    group.stop()


def test_stop_completes_deferred_operations():
    tries = []

    def commit(items):
        tries.append(1)
        return [DEFERRED if len(tries) < 4 else "done" for _ in items]

    group = CommitThread("test", commit=commit)
    caller = Caller(group).submit()
    started = steady()
    group.stop()
    assert caller.results() == ["done"]
    assert steady() - started < WITHIN


def test_an_idle_commit_thread_stops_at_once():
    with running(commit=lambda items: ["done" for _ in items]) as group:
        assert Caller(group).submit().results() == ["done"]
        started = steady()
        group.stop()
        assert steady() - started < WITHIN
