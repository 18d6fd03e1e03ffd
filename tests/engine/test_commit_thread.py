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
from backstay.engine.base import Apply, Ping, steady
from backstay.engine.commit_thread import DEFERRED, CommitThread
from backstay.engine.loop_batcher import LoopBatcher
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.errors import Closed, EngineUnavailable
from backstay.gate.commands import Acquire, CallerIdentity, Granted, Queued, Release, Released
from backstay.gate.machine import GATE
from backstay.testing.waiting import eventually

#: Long enough for a busy host.
WITHIN = 10.0


class Caller:
    """Submit operations to a commit thread and wait for their results."""

    def __init__(self, group, ops=1):
        self._commit_thread = group
        self._ops = [Ping()] * ops
        self._box = {}
        self._answered = threading.Event()

    def ask(self):
        self._commit_thread.put(self._ops, self._answer)
        return self

    def _answer(self, results):
        self._box.update(results)
        if len(self._box) == len(self._ops):
            self._answered.set()

    def answers(self):
        assert self._answered.wait(WITHIN), "no result arrived"
        return [self._box[i] for i in range(len(self._ops))]


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
    """A pause whose end passes during an interruption ends; it does not last forever."""
    monkeypatch.setattr(groups, "RETRY_DELAY", 0.1)
    seen = {}
    with running(commit=defer_once(seen)) as group:
        for nth in range(1, 4):
            caller = Caller(group).ask()
            assert eventually(lambda n=nth: len(seen) == n)
            interrupt(group._thread, 0.2)
            assert caller.answers() == ["done"]


def test_a_deferred_operation_is_retried_until_it_is_done():
    tries = []

    def commit(items):
        tries.append(len(items))
        return [DEFERRED if len(tries) < 5 else "done" for _ in items]

    with running(commit=commit) as group:
        assert Caller(group, 3).ask().answers() == ["done"] * 3
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
        patient = Caller(group).ask()
        assert tried.wait(WITHIN)
        assert Caller(group).ask().answers() == ["done"]
        assert patient.answers() == ["done"]


def test_an_exception_in_a_commit_fails_its_callers_only():
    broken = [ValueError("a bug")]

    def commit(items):
        if broken:
            raise broken.pop()
        return ["done" for _ in items]

    with running(commit=commit) as group:
        assert [type(answer) for answer in Caller(group, 2).ask().answers()] == [ValueError] * 2
        assert Caller(group).ask().answers() == ["done"]


def test_an_exception_in_a_tick_delays_no_caller(caplog):
    ticks = []

    def tick():
        ticks.append(1)
        raise ValueError("a bug")

    with caplog.at_level(logging.ERROR), running(commit=lambda items: ["done" for _ in items], tick=tick) as group:
        for _ in range(3):
            assert Caller(group).ask().answers() == ["done"]
    assert len(ticks) >= 2
    assert "a bug" in caplog.text


def test_callers_get_an_error_when_no_thread_starts_and_the_next_call_tries_again(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with running(commit=lambda items: ["done" for _ in items]) as group:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert [type(answer) for answer in Caller(group, 2).ask().answers()] == [EngineUnavailable] * 2
        assert Caller(group).ask().answers() == ["done"]


def test_a_failed_flush_of_a_loop_batch_fails_its_operations():
    def flush(loop, asked):
        raise ValueError("a bug")

    async def ask():
        turn = LoopBatcher(flush)
        both = asyncio.gather(turn.submit(Ping()), turn.submit(Ping()), return_exceptions=True)
        return await asyncio.wait_for(both, WITHIN)

    assert [type(answer) for answer in asyncio.run(ask())] == [ValueError] * 2


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
    first = Caller(group).ask()
    assert begun.wait(WITHIN)
    second = Caller(group, 2).ask()
    stopping = threading.Thread(target=group.stop)
    stopping.start()
    go_on.set()
    stopping.join(WITHIN)
    assert first.answers() == ["done"]
    assert second.answers() == ["done"] * 2
    assert ended == [1]
    assert [type(answer) for answer in Caller(group).ask().answers()] == [Closed]
    group.stop()


def test_stop_completes_deferred_operations():
    tries = []

    def commit(items):
        tries.append(1)
        return [DEFERRED if len(tries) < 4 else "done" for _ in items]

    group = CommitThread("test", commit=commit)
    caller = Caller(group).ask()
    started = steady()
    group.stop()
    assert caller.answers() == ["done"]
    assert steady() - started < WITHIN


def test_an_idle_commit_thread_stops_at_once():
    with running(commit=lambda items: ["done" for _ in items]) as group:
        assert Caller(group).ask().answers() == ["done"]
        started = steady()
        group.stop()
        assert steady() - started < WITHIN
