"""Engine time on SQLite continues when the clock is set back and never compares uptimes of different hosts."""

from __future__ import annotations

import threading

import pytest

from backstay.engine.base import Apply, Ping
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.errors import Closed
from backstay.gate.commands import Acquire, Busy, CallerIdentity, Granted
from backstay.gate.machine import GATE
from backstay.testing.waiting import WITHIN

SECOND = 1_000_000
HOUR = 3600 * SECOND
NOON = 1_700_000_000 * SECOND


class Host:
    """A host: its clock, its uptime and its boot id."""

    def __init__(self, path, *, clock: int, uptime: int, boot: str) -> None:
        self.clock, self.uptime = clock, uptime
        self.engine = SqliteEngine(str(path), clock=lambda: self.clock, ticks=lambda: self.uptime, boot=boot)

    def acquire(self, ticket: str):
        command = Acquire(2**60, ticket, ticket, True, 1, 30 * SECOND, "inbox", 0, CallerIdentity())
        (reply,) = self.engine.apply_many([Apply(GATE, "x", command)])
        return reply

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.engine.close_blocking()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.db"


def test_a_clock_set_back_does_not_stop_time(path):
    with Host(path, clock=NOON, uptime=HOUR, boot="a") as host:
        assert isinstance(host.acquire("one"), Granted)
        host.clock -= HOUR
        host.uptime += 29 * SECOND
        assert isinstance(host.acquire("two"), Busy)
        host.uptime += 2 * SECOND
        assert isinstance(host.acquire("two"), Granted)


def test_time_does_not_jump_when_the_file_moves_to_a_host_with_a_longer_uptime(path):
    with Host(path, clock=NOON, uptime=HOUR, boot="a") as host:
        assert isinstance(host.acquire("one"), Granted)
    with Host(path, clock=NOON + SECOND, uptime=2400 * HOUR, boot="b") as other:
        assert isinstance(other.acquire("two"), Busy)
        assert other.engine.apply_many([Ping()]) == [NOON + SECOND]


def test_time_goes_on_after_a_restart_of_the_host_with_its_clock_behind(path):
    with Host(path, clock=NOON, uptime=100 * HOUR, boot="a") as host:
        assert isinstance(host.acquire("one"), Granted)
    with Host(path, clock=NOON - 60 * SECOND, uptime=SECOND, boot="b") as again:
        assert isinstance(again.acquire("two"), Busy)
        again.uptime += 31 * SECOND
        assert isinstance(again.acquire("two"), Granted)


def test_calls_during_close_get_a_result_or_closed():
    engine = SqliteEngine(":memory:")
    replies: list[object] = []

    def ask():
        while not any(isinstance(answer, Closed) for answer in replies):
            replies.extend(engine.apply_many([Ping()]))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    engine.close_blocking()
    for thread in threads:
        thread.join(WITHIN)
        assert not thread.is_alive()
    engine._closed = False
    assert [type(a) for a in engine.apply_many([Ping()])] == [Closed], "the writer does not start again"
