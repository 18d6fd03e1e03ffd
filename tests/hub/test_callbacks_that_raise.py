"""Whatever a subscriber's callback raises is its own trouble: it hears what comes next, and so does everybody else."""

from __future__ import annotations

import asyncio
import threading

import pytest

from backstay import Backstay, EngineUnavailable
from backstay.hub.mailbox import Mailbox
from backstay.hub.multiplexer import Listener, Subscriber
from backstay.testing.waiting import WITHIN, eventually, soon

#: What no `except Exception` catches. KeyboardInterrupt is another matter in the main thread.
STRAYS = {error.__name__: error for error in (SystemExit, asyncio.CancelledError, GeneratorExit)}


class Raising:
    """Raises what the payload names."""

    def __init__(self, errors):
        self.errors = errors
        self.heard = []

    def __call__(self, payload):
        self.heard.append(payload)
        if payload in self.errors:
            raise self.errors[payload]

    def ready(self):
        raise SystemExit(3)


def in_time(work):
    """A thread that is stuck fails the test and does not hang it."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(WITHIN)
    return not thread.is_alive()


@pytest.mark.parametrize("prompt", [False, True], ids=["own thread", "prompt"])
def test_a_callback_that_raises_hears_on_and_disturbs_nobody(engine_url, connect, namespace, prompt, caplog):
    stay = connect(engine_url)
    bad = Raising(STRAYS | {"KeyboardInterrupt": KeyboardInterrupt})
    peer = []
    payloads = [*bad.errors, "last"]

    def scene():
        with stay.lock("unrelated", ttl=5, wait=WITHIN):
            for payload in payloads:
                stay.hub.publish("news", payload)

    subscriptions = [
        stay._core.hub.subscribe(f"{namespace}:news", bad, bad.ready, prompt=prompt),
        stay._core.hub.subscribe(f"{namespace}:news", peer.append, prompt=True),
    ]
    assert eventually(lambda: all(subscription.is_ready for subscription in subscriptions))
    assert in_time(scene)
    assert eventually(lambda: peer == payloads)
    assert eventually(lambda: bad.heard == payloads)
    assert eventually(lambda: caplog.text.count("a subscriber failed") == len(bad.errors) + 1)
    for subscription in subscriptions:
        subscription.close()


def test_a_callback_that_raises_on_the_loop_hears_on(engine_url, namespace):
    async def scene():
        bad = Raising(STRAYS)
        payloads = [*STRAYS, "last"]
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
            assert bad.heard == payloads
            subscription.close()

    asyncio.run(scene())


def test_a_telemetry_subscriber_that_raises_stops_no_thread(engine_url, connect):
    stay = connect(engine_url)

    def leave(event):
        raise SystemExit(3)

    end = stay.telemetry.subscribe(leave)
    with stay.hub.listen("news") as messages:
        assert in_time(lambda: stay.hub.publish("news", "x"))
        assert messages.next(WITHIN).payload == "x"
        end()
        assert in_time(lambda: stay.hub.publish("news", "y"))
        assert messages.next(WITHIN).payload == "y"


def interrupt(payload=None):
    raise KeyboardInterrupt


def test_ctrl_c_in_the_main_thread_comes_out_when_all_are_told():
    listener = Listener("news", start=lambda _: None, stop=lambda _: None)
    heard, ready = [], []
    listener.add(Subscriber(interrupt, interrupt))
    listener.add(Subscriber(heard.append, lambda: ready.append(True)))
    with pytest.raises(KeyboardInterrupt):
        listener.opened()
    assert ready == [True]
    with pytest.raises(KeyboardInterrupt):
        listener.dispatch("x")
    assert heard == ["x"]
    assert listener.state == "running"


def test_ctrl_c_while_a_channel_opens_leaves_it_as_it_was(connect, namespace):
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
    listener = Listener("news", start=interrupt, stop=interrupt)
    first = Subscriber(lambda _: None, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        listener.add(first)
    assert listener.state == "idle"
    assert "interrupted" in str(first.error)


def test_a_mailbox_whose_thread_could_not_start_tries_again_at_the_next_message(monkeypatch):
    heard = []
    mailbox = Mailbox(heard.append, lambda: None)
    with monkeypatch.context() as patch:

        def full(thread):
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", full)
        with pytest.raises(RuntimeError):
            mailbox.message("1")
    mailbox.message("2")
    assert eventually(lambda: heard == ["1", "2"])
    mailbox.close()


@pytest.mark.redis
def test_a_subscription_whose_task_was_cancelled_begins_anew_for_the_next_listener(backstay_redis, namespace):
    async def scene():
        async with Backstay(backstay_redis.url, namespace=namespace) as stay, stay.hub.listen("news") as first:
            (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "backstay-hub"]
            task.cancel()
            await asyncio.wait([task])
            async with stay.hub.listen("news") as second:
                await stay.hub.publish("news", "x")
                heard = [await ear.next(WITHIN) for ear in (first, first, second)]
            assert [(message.payload, message.missed) for message in heard] == [("", True), ("x", False), ("x", False)]

    asyncio.run(scene())


@pytest.mark.postgres
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_hub_whose_thread_ended_begins_anew_for_the_next_listener(backstay_postgres, connect, monkeypatch):
    stay = connect(backstay_postgres.url)
    ended = []
    with monkeypatch.context() as patch:

        def fail(hub, session):
            ended.append(threading.current_thread())
            raise AssertionError("a mistake of ours")

        patch.setattr(type(stay._core.hub), "_attend", fail)
        with pytest.raises(EngineUnavailable):
            stay.hub.listen("news").__enter__()
        for thread in ended:  # until then its exception may still be told, to whichever test is on
            thread.join(WITHIN)
    with stay.hub.listen("news") as messages:
        stay.hub.publish("news", "x")
        assert messages.next(WITHIN).payload == "x"
