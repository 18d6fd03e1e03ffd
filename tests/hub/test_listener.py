"""The four-state shared listener, as a machine of events."""

from __future__ import annotations

import pytest

from backstay.hub.multiplexer import Listener, Subscriber


class Wire:
    """A transport that does what it is told, when it is told."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open_error: Exception | None = None
        self.close_error: Exception | None = None

    def start(self, channel: str) -> None:
        self.asked.append("open")
        if self.open_error is not None:
            raise self.open_error

    def stop(self, channel: str) -> None:
        self.asked.append("close")
        if self.close_error is not None:
            raise self.close_error


class Ear:
    def __init__(self) -> None:
        self.heard: list[str | None] = []
        self.ready = 0
        self.subscriber = Subscriber(self.heard.append, self._ready)

    def _ready(self) -> None:
        self.ready += 1


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def listener(wire):
    return Listener("news", start=wire.start, stop=wire.stop)


def running(listener: Listener) -> Ear:
    ear = Ear()
    listener.add(ear.subscriber)
    listener.opened()
    assert listener.state == "running"
    return ear


def test_it_starts_with_the_first_subscriber_and_stops_with_the_last(listener, wire):
    first, second = Ear(), Ear()
    assert listener.state == "idle"
    listener.add(first.subscriber)
    listener.add(second.subscriber)
    assert listener.state == "starting"
    assert wire.asked == ["open"]
    listener.opened()
    assert listener.state == "running"
    assert (first.ready, second.ready) == (1, 1)
    listener.remove(first.subscriber)
    assert wire.asked == ["open"]
    listener.remove(second.subscriber)
    assert listener.state == "stopping"
    listener.closed()
    assert listener.state == "idle"
    assert wire.asked == ["open", "close"]


def test_a_subscriber_of_a_running_listener_is_ready_at_once(listener, wire):
    running(listener)
    late = Ear()
    listener.add(late.subscriber)
    assert late.ready == 1
    assert wire.asked == ["open"]


def test_a_failed_open_returns_to_idle_and_a_later_subscriber_tries_again(listener, wire):
    wire.open_error = OSError("no route")
    first = Ear()
    listener.add(first.subscriber)
    assert listener.state == "idle"
    assert isinstance(first.subscriber.error, OSError)
    assert first.ready == 1
    wire.open_error = None
    second = Ear()
    listener.add(second.subscriber)
    listener.opened()
    listener.dispatch("hello")
    assert second.heard == ["hello"]
    assert first.heard == []


def test_an_open_that_fails_later_returns_to_idle_too(listener, wire):
    first = Ear()
    listener.add(first.subscriber)
    listener.open_failed(OSError("refused"))
    assert listener.state == "idle"
    assert isinstance(first.subscriber.error, OSError)
    listener.add(Ear().subscriber)
    assert wire.asked == ["open", "open"]


def test_a_failed_close_does_not_poison_the_listener(listener, wire):
    ear = running(listener)
    wire.close_error = OSError("broken pipe")
    listener.remove(ear.subscriber)
    assert listener.state == "idle"
    again = running(listener)
    listener.dispatch("still here")
    assert again.heard == ["still here"]


def test_a_subscriber_during_teardown_is_served(listener, wire):
    first = running(listener)
    listener.remove(first.subscriber)
    second = Ear()
    listener.add(second.subscriber)
    assert listener.state == "stopping"
    assert second.ready == 0
    listener.dispatch("for those before you")
    listener.closed()
    assert listener.state == "starting"
    listener.opened()
    assert second.ready == 1
    listener.dispatch("for you")
    assert second.heard == ["for you"]


def test_a_subscriber_that_leaves_while_starting_lets_it_stop(listener, wire):
    ear = Ear()
    listener.add(ear.subscriber)
    listener.remove(ear.subscriber)
    assert listener.state == "starting"
    listener.opened()
    assert listener.state == "stopping"
    assert wire.asked == ["open", "close"]
    listener.closed()
    assert listener.state == "idle"


def test_one_throwing_callback_does_not_break_its_peers(listener, caplog):
    def throw(payload: str | None) -> None:
        raise RuntimeError("bad day")

    bad = Subscriber(throw, lambda: None)
    good = Ear()
    listener.add(bad)
    listener.add(good.subscriber)
    listener.opened()
    listener.dispatch("one")
    listener.dispatch("two")
    assert good.heard == ["one", "two"]
    assert "bad day" in caplog.text


def test_nothing_is_heard_after_leaving(listener):
    ear, other = running(listener), Ear()
    listener.add(other.subscriber)
    listener.remove(ear.subscriber)
    listener.remove(ear.subscriber)
    listener.dispatch("late")
    ear.subscriber.tell("later")
    assert ear.heard == []
    assert other.heard == ["late"]


def test_a_callback_may_leave_while_it_is_told(listener):
    first, second = Ear(), Ear()
    leaving = Subscriber(lambda _: listener.remove(leaving), lambda: None)
    listener.add(first.subscriber)
    listener.add(leaving)
    listener.add(second.subscriber)
    listener.opened()
    listener.dispatch("x")
    assert first.heard == ["x"]
    assert second.heard == ["x"]
    assert leaving not in listener.subscribers


def test_after_a_break_everybody_is_told_once(listener, wire):
    old = running(listener)
    listener.interrupted()
    assert listener.state == "starting"
    new = Ear()
    listener.add(new.subscriber)
    listener.opened()
    listener.opened()
    assert old.heard == [None]
    assert new.heard == []
    assert new.ready == 1
    assert wire.asked == ["open"], "the transport opens again by itself"


def test_a_break_during_teardown_ends_it(listener):
    ear = running(listener)
    listener.remove(ear.subscriber)
    listener.interrupted()
    assert listener.state == "idle"


def test_stray_events_change_nothing(listener, wire):
    listener.closed()
    listener.opened()
    listener.interrupted()
    listener.open_failed(OSError())
    assert listener.state == "idle"
    assert wire.asked == []
