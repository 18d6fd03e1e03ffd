"""The SQLite hub deletes messages after a minute. A process that has not read them by then is notified: MISSED."""

from __future__ import annotations

import sqlite3

import pytest

from backstay.engine.sqlite.engine import SqliteEngine, host_clock
from backstay.engine.sqlite.sweep import HINT_LIFE
from backstay.hub.local import LocalHub
from backstay.testing.waiting import WITHIN, eventually


class Reader:
    """The hub's thread that reads the messages of other processes. `stop` and `resume` act like SIGSTOP and SIGCONT."""

    def __init__(self, monkeypatch):
        self.stopped = False
        self.polls = 0
        read = LocalHub._read_change_counter

        def read_unless_stopped(db):
            self.polls += 1
            if self.stopped:
                raise sqlite3.OperationalError("stopped")
            return read(db)

        monkeypatch.setattr(LocalHub, "_read_change_counter", staticmethod(read_unless_stopped))

    def stop(self):
        self.stopped = True
        self.wait_for_poll()

    def wait_for_poll(self):
        """Wait until a poll that is under way has ended and another one has begun."""
        before = self.polls
        assert eventually(lambda: self.polls > before + 1)

    def resume(self):
        self.stopped = False


@pytest.fixture
def reader(monkeypatch):
    return Reader(monkeypatch)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'hub.db'}?synchronous=normal"


@pytest.fixture
def sweep(tmp_path):
    """Delete what is older than a minute, in a process whose clock is a minute and a second ahead."""

    def run():
        later = SqliteEngine(str(tmp_path / "hub.db"), clock=lambda: host_clock() + HINT_LIFE + 1_000_000)
        db = later.connect()
        later._sweep(db)
        left = db.execute("SELECT count(*) FROM backstay_hint").fetchone()
        db.close()
        later.close_blocking()
        assert left == (0,)

    return run


@pytest.fixture
def two(connect, url):
    """Two Backstays on one file, like those of two processes: the first one listens."""
    return connect(url), connect(url)


def test_a_listener_whose_messages_were_deleted_unread_is_notified(two, reader, sweep):
    listener, sender = two
    with listener.hub.listen("news") as messages:
        reader.stop()
        sender.hub.publish("news", "lost")
        sweep()
        reader.resume()
        assert messages.next(WITHIN).missed
        sender.hub.publish("news", "next")
        message = messages.next(WITHIN)
        assert (message.payload, message.missed) == ("next", False)


def test_messages_that_are_left_come_after_the_notice(two, reader, sweep):
    listener, sender = two
    with listener.hub.listen("news") as messages:
        reader.stop()
        sender.hub.publish("news", "lost")
        sweep()
        sender.hub.publish("news", "left")
        reader.resume()
        assert messages.next(WITHIN).missed
        assert messages.next(WITHIN).payload == "left"


def test_every_channel_is_notified(two, reader, sweep):
    """Which channels the deleted messages were for is not known."""
    listener, sender = two
    with listener.hub.listen("news") as news, listener.hub.listen("sport") as sport:
        reader.stop()
        sender.hub.publish("news", "lost")
        sweep()
        reader.resume()
        assert news.next(WITHIN).missed
        assert sport.next(WITHIN).missed


def test_messages_that_were_read_before_they_are_deleted_cause_no_notice(two, reader, sweep):
    listener, sender = two
    with listener.hub.listen("news") as messages:
        sender.hub.publish("news", "read")
        assert messages.next(WITHIN).payload == "read"
        sweep()
        reader.wait_for_poll()
        sender.hub.publish("news", "next")
        assert messages.next(WITHIN).payload == "next"


def test_messages_that_came_before_the_first_listener_cause_no_notice(two, sweep):
    listener, sender = two
    sender.hub.publish("news", "early")
    sweep()
    with listener.hub.listen("news") as messages:
        sender.hub.publish("news", "first")
        assert messages.next(WITHIN).payload == "first"


def test_the_event_is_emitted(two, reader, sweep):
    listener, sender = two
    kinds = []
    listener.telemetry.subscribe(lambda event: kinds.append(event.kind))
    with listener.hub.listen("news") as messages:
        reader.stop()
        sender.hub.publish("news", "lost")
        sweep()
        reader.resume()
        assert messages.next(WITHIN).missed
    assert kinds.count("hub.missed") == 1
