"""A callback that raises gets the next message, and so does every other subscriber."""

from __future__ import annotations

import asyncio
import threading

import pytest

from backstay import Backstay, EngineUnavailable
from backstay.hub.mailbox import Mailbox
from backstay.hub.multiplexer import ChannelMultiplexer, Subscriber
from backstay.testing.waiting import WITHIN, eventually, soon

#: Not caught by `except Exception`. KeyboardInterrupt is tested apart: it is raised in the main thread.
BASE_EXCEPTIONS = {error.__name__: error for error in (SystemExit, asyncio.CancelledError, GeneratorExit)}


class Raising:
    """A callback that raises the exception named by the payload."""

    def __init__(self, errors):
        self.errors = errors
        self.received = []

    def __call__(self, payload):
        self.received.append(payload)
        if payload in self.errors:
            raise self.errors[payload]

    def ready(self):
        raise SystemExit(3)


def finishes_in_time(work):
    """Run `work` in a thread, so that a deadlock fails the test instead of hanging it."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(WITHIN)
    return not thread.is_alive()


@pytest.mark.parametrize("prompt", [False, True], ids=["own thread", "prompt"])
def test_a_callback_that_raises_gets_later_messages_and_affects_no_other_subscriber(
    engine_url, connect, namespace, prompt, caplog
):
    stay = connect(engine_url)
    bad = Raising(BASE_EXCEPTIONS | {"KeyboardInterrupt": KeyboardInterrupt})
    peer = []
    payloads = [*bad.errors, "last"]

    def scenario():
        with stay.lock("unrelated", ttl=5, wait=WITHIN):
            for payload in payloads:
                stay.hub.publish("news", payload)

    subscriptions = [
        stay._core.hub.subscribe(f"{namespace}:news", bad, bad.ready, prompt=prompt),
        stay._core.hub.subscribe(f"{namespace}:news", peer.append, prompt=True),
    ]
    assert eventually(lambda: all(subscription.is_ready for subscription in subscriptions))
    assert finishes_in_time(scenario)
    assert eventually(lambda: peer == payloads)
    assert eventually(lambda: bad.received == payloads)
    assert eventually(lambda: caplog.text.count("a subscriber failed") == len(bad.errors) + 1)
    for subscription in subscriptions:
        subscription.close()


def test_a_callback_that_raises_on_the_event_loop_gets_later_messages(engine_url, namespace):
    async def scenario():
        bad = Raising(BASE_EXCEPTIONS)
        payloads = [*BASE_EXCEPTIONS, "last"]
        async with Backstay(engine_url, namespace=namespace) as stay, asyncio.timeout(30):
            subscription = stay._core.hub.subscribe(f"{namespace}:news", bad, bad.ready, prompt=True)
            assert await soon(lambda: asyncio.sleep(0, subscription.is_ready))
            async with stay.hub.listen("news") as same:
                for payload in payloads:
                    await stay.hub.publish("news", payload)
                    message = await same.next(WITHIN)
                    assert message is not None
                    assert message.payload == payload
                    assert not message.missed
            assert bad.received == payloads
            subscription.close()

    asyncio.run(scenario())


def test_a_telemetry_subscriber_that_raises_stops_no_thread(engine_url, connect):
    stay = connect(engine_url)

    def leave(event):
        raise SystemExit(3)

    end = stay.telemetry.subscribe(leave)
    with stay.hub.listen("news") as messages:
        assert finishes_in_time(lambda: stay.hub.publish("news", "x"))
        assert messages.next(WITHIN).payload == "x"
        end()
        assert finishes_in_time(lambda: stay.hub.publish("news", "y"))
        assert messages.next(WITHIN).payload == "y"


def interrupt(payload=None):
    raise KeyboardInterrupt


def test_ctrl_c_in_the_main_thread_is_raised_after_all_subscribers_were_called():
    listener = ChannelMultiplexer("news", start=lambda _: None, stop=lambda _: None)
    received, ready = [], []
    listener.add(Subscriber(interrupt, interrupt))
    listener.add(Subscriber(received.append, lambda: ready.append(True)))
    with pytest.raises(KeyboardInterrupt):
        listener.on_opened()
    assert ready == [True]
    with pytest.raises(KeyboardInterrupt):
        listener.dispatch("x")
    assert received == ["x"]
    assert listener.state == "running"


def test_ctrl_c_while_a_channel_opens_leaves_the_hub_usable(connect, namespace):
    stay = connect("memory://")
    hub = stay._core.hub
    with pytest.raises(KeyboardInterrupt):
        hub.subscribe(f"{namespace}:news", lambda _: None, interrupt, prompt=True)
    assert hub.states() == {}
    assert hub._lock.acquire(blocking=False)
    hub._lock.release()
    with stay.hub.listen("news") as messages:
        stay.hub.publish("news", "x")
        assert messages.next(WITHIN).payload == "x"


def test_ctrl_c_inside_the_transport_leaves_no_channel_half_open():
    listener = ChannelMultiplexer("news", start=interrupt, stop=interrupt)
    first = Subscriber(lambda _: None, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        listener.add(first)
    assert listener.state == "idle"
    assert "interrupted" in str(first.error)


def test_a_mailbox_whose_thread_failed_to_start_retries_at_the_next_message(monkeypatch):
    received = []
    mailbox = Mailbox(received.append, lambda: None)
    with monkeypatch.context() as patch:

        def full(thread):
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", full)
        with pytest.raises(RuntimeError):
            mailbox.put_message("1")
    mailbox.put_message("2")
    assert eventually(lambda: received == ["1", "2"])
    mailbox.close()


@pytest.mark.redis
def test_a_hub_whose_task_was_cancelled_restarts_for_the_next_listener(backstay_redis, namespace):
    async def scenario():
        async with Backstay(backstay_redis.url, namespace=namespace) as stay, stay.hub.listen("news") as first:
            (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "backstay-hub"]
            task.cancel()
            await asyncio.wait([task])
            async with stay.hub.listen("news") as second:
                await stay.hub.publish("news", "x")
                received = [await messages.next(WITHIN) for messages in (first, first, second)]
            assert [(message.payload, message.missed) for message in received] == [
                ("", True),
                ("x", False),
                ("x", False),
            ]

    asyncio.run(scenario())


@pytest.mark.postgres
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_hub_whose_thread_ended_restarts_for_the_next_listener(backstay_postgres, connect, monkeypatch):
    stay = connect(backstay_postgres.url)
    ended = []
    with monkeypatch.context() as patch:

        def fail(hub, session):
            ended.append(threading.current_thread())
            raise AssertionError("a bug")

        patch.setattr(type(stay._core.hub), "_serve", fail)
        with pytest.raises(EngineUnavailable):
            stay.hub.listen("news").__enter__()
        for thread in ended:  # until then its exception could be reported in another test
            thread.join(WITHIN)
    with stay.hub.listen("news") as messages:
        stay.hub.publish("news", "x")
        assert messages.next(WITHIN).payload == "x"
