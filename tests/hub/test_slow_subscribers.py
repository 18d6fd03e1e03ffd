"""A blocking callback delays no lock and no other subscriber, on every engine and in both APIs."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from backstay import Backstay
from backstay.hub import mailbox
from backstay.testing.waiting import WITHIN, eventually, soon

#: The limit for "at once" on a busy host; a waiter without a hint rechecks after 10 s.
AT_ONCE = 4.0


class BlockingCallback:
    """A callback that blocks its thread until the test releases it."""

    def __init__(self):
        self.received = []
        self.at_work, self.go_on = threading.Event(), threading.Event()

    def __call__(self, payload):
        self.received.append(payload)
        self.at_work.set()
        assert self.go_on.wait(60)


@pytest.fixture
def blocking_callback():
    callback = BlockingCallback()
    yield callback
    callback.go_on.set()


@pytest.mark.timed
def test_a_blocking_callback_delays_no_other_thread(engine_url, connect, namespace, blocking_callback):
    stay = connect(engine_url)
    granted = []

    def visit():
        with stay.lock("x", ttl=60) as lease:
            granted.append(lease.fence)

    with stay.hub.listen("news") as same, stay.hub.listen("other") as other:
        subscription = stay._core.hub.subscribe(f"{namespace}:news", blocking_callback)
        assert eventually(lambda: subscription.is_ready)
        stay.hub.publish("news", "1")
        assert blocking_callback.at_work.wait(WITHIN)
        stay.hub.publish("other", "2")
        stay.hub.publish("news", "3")
        assert [message.payload for message in (same.next(AT_ONCE), same.next(AT_ONCE), other.next(AT_ONCE))] == [
            "1",
            "3",
            "2",
        ]
        held = stay.lock("x", ttl=60).acquire()
        thread = threading.Thread(target=visit)
        thread.start()
        assert eventually(lambda: stay.locks.inspect("x").waiter_count == 1)
        began = time.monotonic()
        held.release()
        thread.join(30)
        assert time.monotonic() - began < AT_ONCE
        assert granted[0] > held.fence
        assert blocking_callback.received == ["1"]  # it was blocked all the time
        blocking_callback.go_on.set()
        assert eventually(lambda: blocking_callback.received == ["1", "3"])
        subscription.close()


@pytest.mark.timed
def test_a_blocking_callback_delays_no_event_loop(engine_url, namespace, blocking_callback):
    async def scenario():
        async with Backstay(engine_url, namespace=namespace) as stay, stay.hub.listen("news") as same:
            subscription = stay._core.hub.subscribe(f"{namespace}:news", blocking_callback)
            assert await soon(lambda: asyncio.sleep(0, subscription.is_ready))
            await stay.hub.publish("news", "1")
            assert (await same.next(AT_ONCE)).payload == "1"
            assert await asyncio.to_thread(blocking_callback.at_work.wait, 10)
            held = await stay.lock("x", ttl=60).acquire()

            async def visit():
                async with stay.lock("x", ttl=60) as lease:
                    return lease.fence

            waiter = asyncio.create_task(visit())

            async def queued():
                return (await stay.locks.inspect("x")).waiter_count == 1

            assert await soon(queued)
            await held.release()
            async with asyncio.timeout(AT_ONCE):
                assert await waiter > held.fence
            assert blocking_callback.received == ["1"]
            blocking_callback.go_on.set()
            subscription.close()

    asyncio.run(scenario())


def test_a_callback_that_blocks_too_long_gets_a_gap(connect, namespace, blocking_callback, monkeypatch):
    monkeypatch.setattr(mailbox, "MAX_QUEUED", 5)
    stay = connect("memory://")
    with stay.hub.listen("news") as same:
        subscription = stay._core.hub.subscribe(f"{namespace}:news", blocking_callback)
        stay.hub.publish("news", "first")
        assert blocking_callback.at_work.wait(WITHIN)
        for turn in range(7):
            stay.hub.publish("news", str(turn))
        assert [same.next(AT_ONCE).payload for _ in range(8)][-1] == "6"
        blocking_callback.go_on.set()
        assert eventually(lambda: blocking_callback.received == ["first", None, "6"])
        subscription.close()


def test_no_callback_starts_after_its_subscription_is_closed(connect, namespace, blocking_callback):
    stay = connect("memory://")
    with stay.hub.listen("news") as same:
        subscription = stay._core.hub.subscribe(f"{namespace}:news", blocking_callback)
        for payload in ("1", "2"):
            stay.hub.publish("news", payload)
            assert same.next(AT_ONCE).payload == payload
        assert blocking_callback.at_work.wait(WITHIN)
        subscription.close()
        blocking_callback.go_on.set()
        assert eventually(lambda: not [t for t in threading.enumerate() if t.name == "backstay-mailbox"])
        assert blocking_callback.received == ["1"]


def test_an_idle_mailbox_has_no_thread(connect, namespace, monkeypatch):
    monkeypatch.setattr(mailbox, "IDLE", 0.01)
    stay = connect("memory://")
    received = []
    subscription = stay._core.hub.subscribe(f"{namespace}:news", received.append)
    for turn in range(3):
        stay.hub.publish("news", str(turn))
        assert eventually(lambda: len(received) == turn + 1)  # noqa: B023 - used before the next iteration
        assert eventually(lambda: not subscription._mailbox._running)
    assert received == ["0", "1", "2"]
    subscription.close()
