"""The thread behind an SQL engine answers everybody, whatever happens to it on the way."""

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
from backstay.engine.commit_thread import LATER, Group
from backstay.engine.loop_batcher import Turn
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.errors import Closed, EngineUnavailable
from backstay.gate.machine import GATE, Acquire, Granted, Queued, Release, Released, Who
from backstay.testing.waiting import eventually

#: Long enough for a machine that is busy; a thread that is lost stays lost.
WITHIN = 10.0


class Caller:
    """Asks a group and waits for its answers."""

    def __init__(self, group, ops=1):
        self._group = group
        self._ops = [Ping()] * ops
        self._box = {}
        self._answered = threading.Event()

    def ask(self):
        self._group.put(self._ops, self._answer)
        return self

    def _answer(self, results):
        self._box.update(results)
        if len(self._box) == len(self._ops):
            self._answered.set()

    def answers(self):
        assert self._answered.wait(WITHIN), "nobody answered"
        return [self._box[i] for i in range(len(self._ops))]


@contextmanager
def running(**parts):
    group = Group("test", **parts)
    try:
        yield group
    finally:
        stopping = threading.Thread(target=group.stop, daemon=True)  # one that hangs must not hang us
        stopping.start()
        stopping.join(WITHIN)


def put_off_once(seen):
    """A commit that puts every item off, the first time it comes."""

    def commit(items):
        results = ["done" if id(item) in seen else LATER for item in items]
        seen.update({id(item): item for item in items})  # kept: the next one may else get its number
        return results

    return commit


@pytest.fixture
def interrupt():
    """Sends a thread a signal that has a handler, and keeps it and all others from running for some seconds then."""
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


def test_a_thread_that_was_held_up_beyond_its_pause_goes_on(monkeypatch, interrupt):
    """A pause that is interrupted, and found to be over by then, is over: it does not last for ever."""
    monkeypatch.setattr(groups, "AGAIN", 0.1)
    seen = {}
    with running(commit=put_off_once(seen)) as group:
        for nth in range(1, 4):
            caller = Caller(group).ask()
            assert eventually(lambda n=nth: len(seen) == n)
            interrupt(group._thread, 0.2)
            assert caller.answers() == ["done"]


def test_what_is_put_off_is_tried_again_until_it_is_done():
    tries = []

    def commit(items):
        tries.append(len(items))
        return [LATER if len(tries) < 5 else "done" for _ in items]

    with running(commit=commit) as group:
        assert Caller(group, 3).ask().answers() == ["done"] * 3
    assert tries == [3] * 5


def test_who_asks_meanwhile_is_served_along_with_what_was_put_off(monkeypatch):
    monkeypatch.setattr(groups, "AGAIN", WITHIN * 2)
    tried = threading.Event()
    first = []

    def commit(items):
        if not first:
            first.extend(items)
            tried.set()
            return [LATER for _ in items]
        return ["done" for _ in items]

    with running(commit=commit) as group:
        patient = Caller(group).ask()
        assert tried.wait(WITHIN)
        assert Caller(group).ask().answers() == ["done"]
        assert patient.answers() == ["done"]


def test_a_commit_that_throws_is_its_callers_trouble_and_the_next_are_served():
    broken = [ValueError("a mistake of ours")]

    def commit(items):
        if broken:
            raise broken.pop()
        return ["done" for _ in items]

    with running(commit=commit) as group:
        assert [type(answer) for answer in Caller(group, 2).ask().answers()] == [ValueError] * 2
        assert Caller(group).ask().answers() == ["done"]


def test_a_tick_that_throws_holds_up_nobody(caplog):
    ticks = []

    def tick():
        ticks.append(1)
        raise ValueError("a mistake of ours")

    with caplog.at_level(logging.ERROR), running(commit=lambda items: ["done" for _ in items], tick=tick) as group:
        for _ in range(3):
            assert Caller(group).ask().answers() == ["done"]
    assert len(ticks) >= 2
    assert "a mistake of ours" in caplog.text


def test_where_no_thread_can_be_started_callers_are_told_and_the_next_try_again(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with running(commit=lambda items: ["done" for _ in items]) as group:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert [type(answer) for answer in Caller(group, 2).ask().answers()] == [EngineUnavailable] * 2
        assert Caller(group).ask().answers() == ["done"]


def test_what_a_loop_turn_cannot_hand_over_is_answered_with_the_reason():
    def flush(loop, asked):
        raise ValueError("a mistake of ours")

    async def ask():
        turn = Turn(flush)
        both = asyncio.gather(turn.submit(Ping()), turn.submit(Ping()), return_exceptions=True)
        return await asyncio.wait_for(both, WITHIN)

    assert [type(answer) for answer in asyncio.run(ask())] == [ValueError] * 2


def test_a_hint_that_cannot_be_told_is_not_its_senders_trouble(tmp_path, caplog):
    """What is committed is committed: the answer says so."""

    def deaf(wakes):
        raise RuntimeError("can't start new thread")

    with caplog.at_level(logging.ERROR):
        engine = SqliteEngine(str(tmp_path / "x.db"))
        engine.attach("somebody", deaf)
        soon = engine.now() + 60_000_000
        first, second = (
            Apply(GATE, "x", Acquire(soon, ticket, ticket, True, 1, 60_000_000, "i", 9, Who())) for ticket in "ab"
        )
        try:
            assert isinstance(engine.apply(first), Granted)
            assert isinstance(engine.apply(second), Queued)
            assert isinstance(engine.apply(Apply(GATE, "x", Release(soon, "a", "a", 0, 0))), Released)
        finally:
            engine.close_blocking()
    assert "hints were lost" in caplog.text


def test_what_was_queued_before_the_end_is_answered_and_nothing_after_it():
    begun, go_on = threading.Event(), threading.Event()
    ended = []

    def commit(items):
        begun.set()
        assert go_on.wait(WITHIN)
        return ["done" for _ in items]

    group = Group("test", commit=commit, end=lambda: ended.append(1))
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


def test_what_is_put_off_while_the_group_ends_is_answered_first():
    tries = []

    def commit(items):
        tries.append(1)
        return [LATER if len(tries) < 4 else "done" for _ in items]

    group = Group("test", commit=commit)
    caller = Caller(group).ask()
    started = steady()
    group.stop()
    assert caller.answers() == ["done"]
    assert steady() - started < WITHIN


def test_an_idle_group_ends_at_once():
    with running(commit=lambda items: ["done" for _ in items]) as group:
        assert Caller(group).ask().answers() == ["done"]
        started = steady()
        group.stop()
        assert steady() - started < WITHIN
