"""The states of the shared listener: idle, starting, running, stopping."""

from __future__ import annotations

import pytest

from backstay.hub.multiplexer import ChannelMultiplexer, Subscriber


class FakeTransport:
    """A transport that the test controls."""

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


class Recorder:
    def __init__(self) -> None:
        self.received: list[str | None] = []
        self.ready = 0
        self.subscriber = Subscriber(self.received.append, self._ready)

    def _ready(self) -> None:
        self.ready += 1


@pytest.fixture
def transport():
    return FakeTransport()


@pytest.fixture
def listener(transport):
    return ChannelMultiplexer("news", start=transport.start, stop=transport.stop)


def running(listener: ChannelMultiplexer) -> Recorder:
    recorder = Recorder()
    listener.add(recorder.subscriber)
    listener.on_opened()
    assert listener.state == "running"
    return recorder


def test_a_listener_starts_with_the_first_subscriber_and_stops_with_the_last(listener, transport):
    first, second = Recorder(), Recorder()
    assert listener.state == "idle"
    listener.add(first.subscriber)
    listener.add(second.subscriber)
    assert listener.state == "starting"
    assert transport.asked == ["open"]
    listener.on_opened()
    assert listener.state == "running"
    assert (first.ready, second.ready) == (1, 1)
    listener.remove(first.subscriber)
    assert transport.asked == ["open"]
    listener.remove(second.subscriber)
    assert listener.state == "stopping"
    listener.on_closed()
    assert listener.state == "idle"
    assert transport.asked == ["open", "close"]


def test_a_subscriber_of_a_running_listener_is_ready_at_once(listener, transport):
    running(listener)
    late = Recorder()
    listener.add(late.subscriber)
    assert late.ready == 1
    assert transport.asked == ["open"]


def test_a_failed_open_returns_to_idle_and_a_later_subscriber_tries_again(listener, transport):
    transport.open_error = OSError("no route")
    first = Recorder()
    listener.add(first.subscriber)
    assert listener.state == "idle"
    assert isinstance(first.subscriber.error, OSError)
    assert first.ready == 1
    transport.open_error = None
    second = Recorder()
    listener.add(second.subscriber)
    listener.on_opened()
    listener.dispatch("hello")
    assert second.received == ["hello"]
    assert first.received == []


def test_an_open_that_fails_later_also_returns_to_idle(listener, transport):
    first = Recorder()
    listener.add(first.subscriber)
    listener.on_open_failed(OSError("refused"))
    assert listener.state == "idle"
    assert isinstance(first.subscriber.error, OSError)
    listener.add(Recorder().subscriber)
    assert transport.asked == ["open", "open"]


def test_a_listener_works_after_a_failed_close(listener, transport):
    recorder = running(listener)
    transport.close_error = OSError("broken pipe")
    listener.remove(recorder.subscriber)
    assert listener.state == "idle"
    again = running(listener)
    listener.dispatch("still here")
    assert again.received == ["still here"]


def test_a_subscriber_during_teardown_is_served(listener, transport):
    first = running(listener)
    listener.remove(first.subscriber)
    second = Recorder()
    listener.add(second.subscriber)
    assert listener.state == "stopping"
    assert second.ready == 0
    listener.dispatch("for those before you")
    listener.on_closed()
    assert listener.state == "starting"
    listener.on_opened()
    assert second.ready == 1
    listener.dispatch("for you")
    assert second.received == ["for you"]


def test_a_subscriber_that_leaves_while_starting_lets_it_stop(listener, transport):
    recorder = Recorder()
    listener.add(recorder.subscriber)
    listener.remove(recorder.subscriber)
    assert listener.state == "starting"
    listener.on_opened()
    assert listener.state == "stopping"
    assert transport.asked == ["open", "close"]
    listener.on_closed()
    assert listener.state == "idle"


def test_a_callback_that_raises_does_not_affect_other_subscribers(listener, caplog):
    def throw(payload: str | None) -> None:
        raise RuntimeError("bad day")

    bad = Subscriber(throw, lambda: None)
    good = Recorder()
    listener.add(bad)
    listener.add(good.subscriber)
    listener.on_opened()
    listener.dispatch("one")
    listener.dispatch("two")
    assert good.received == ["one", "two"]
    assert "bad day" in caplog.text


def test_a_closed_subscription_receives_nothing(listener):
    recorder, other = running(listener), Recorder()
    listener.add(other.subscriber)
    listener.remove(recorder.subscriber)
    listener.remove(recorder.subscriber)
    listener.dispatch("late")
    recorder.subscriber.deliver("later")
    assert recorder.received == []
    assert other.received == ["late"]


def test_a_callback_may_close_its_subscription(listener):
    first, second = Recorder(), Recorder()
    leaving = Subscriber(lambda _: listener.remove(leaving), lambda: None)
    listener.add(first.subscriber)
    listener.add(leaving)
    listener.add(second.subscriber)
    listener.on_opened()
    listener.dispatch("x")
    assert first.received == ["x"]
    assert second.received == ["x"]
    assert leaving not in listener.subscribers


def test_after_an_interruption_every_subscriber_gets_one_gap(listener, transport):
    old = running(listener)
    listener.on_disconnected()
    assert listener.state == "starting"
    new = Recorder()
    listener.add(new.subscriber)
    listener.on_opened()
    listener.on_opened()
    assert old.received == [None]
    assert new.received == []
    assert new.ready == 1
    assert transport.asked == ["open"], "the transport opens again by itself"


def test_an_interruption_during_teardown_stops_the_listener(listener):
    recorder = running(listener)
    listener.remove(recorder.subscriber)
    listener.on_disconnected()
    assert listener.state == "idle"


def test_unexpected_events_change_nothing(listener, transport):
    listener.on_closed()
    listener.on_opened()
    listener.on_disconnected()
    listener.on_open_failed(OSError())
    assert listener.state == "idle"
    assert transport.asked == []
