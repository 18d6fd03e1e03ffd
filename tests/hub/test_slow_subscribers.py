"""A callback that blocks holds up nobody's lock and no other subscriber, on every engine and in both APIs."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from backstay import Backstay
from backstay.hub import mailbox
from backstay.testing.waiting import WITHIN, eventually, soon

#: What "at once" may take on a busy machine; a waiter that nobody tells looks after 10 s.
TOLD = 4.0


class Stuck:
    """A callback that blocks its thread until it is let go."""

    def __init__(self):
        self.heard = []
        self.at_work, self.go_on = threading.Event(), threading.Event()

    def __call__(self, payload):
        self.heard.append(payload)
        self.at_work.set()
        assert self.go_on.wait(60)


@pytest.fixture
def stuck():
    callback = Stuck()
    yield callback
    callback.go_on.set()


@pytest.mark.timed
def test_a_callback_that_blocks_holds_up_no_thread(engine_url, connect, namespace, stuck):
    stay = connect(engine_url)
    granted = []

    def visit():
        with stay.lock("x", ttl=60) as lease:
            granted.append(lease.fence)

    with stay.hub.listen("news") as same, stay.hub.listen("other") as other:
        subscription = stay._core.hub.subscribe(f"{namespace}:news", stuck)
        assert eventually(lambda: subscription.is_ready)
        stay.hub.publish("news", "1")
        assert stuck.at_work.wait(WITHIN)
        stay.hub.publish("other", "2")
        stay.hub.publish("news", "3")
        assert [message.payload for message in (same.next(TOLD), same.next(TOLD), other.next(TOLD))] == ["1", "3", "2"]
        held = stay.lock("x", ttl=60).acquire()
        thread = threading.Thread(target=visit)
        thread.start()
        assert eventually(lambda: stay.locks.inspect("x").waiter_count == 1)
        began = time.monotonic()
        held.release()
        thread.join(30)
        assert time.monotonic() - began < TOLD
        assert granted[0] > held.fence
        assert stuck.heard == ["1"]  # it stood still all the time
        stuck.go_on.set()
        assert eventually(lambda: stuck.heard == ["1", "3"])
        subscription.close()


@pytest.mark.timed
def test_a_callback_that_blocks_holds_up_no_loop(engine_url, namespace, stuck):
    async def scene():
        async with Backstay(engine_url, namespace=namespace) as stay, stay.hub.listen("news") as same:
            subscription = stay._core.hub.subscribe(f"{namespace}:news", stuck)
            assert await soon(lambda: asyncio.sleep(0, subscription.is_ready))
            await stay.hub.publish("news", "1")
            assert (await same.next(TOLD)).payload == "1"
            assert await asyncio.to_thread(stuck.at_work.wait, 10)
            held = await stay.lock("x", ttl=60).acquire()

            async def visit():
                async with stay.lock("x", ttl=60) as lease:
                    return lease.fence

            waiter = asyncio.create_task(visit())

            async def queued():
                return (await stay.locks.inspect("x")).waiter_count == 1

            assert await soon(queued)
            await held.release()
            async with asyncio.timeout(TOLD):
                assert await waiter > held.fence
            assert stuck.heard == ["1"]
            stuck.go_on.set()
            subscription.close()

    asyncio.run(scene())


def test_a_callback_that_blocks_too_long_is_told_that_it_missed_something(connect, namespace, stuck, monkeypatch):
    monkeypatch.setattr(mailbox, "MOST", 5)
    stay = connect("memory://")
    with stay.hub.listen("news") as same:
        subscription = stay._core.hub.subscribe(f"{namespace}:news", stuck)
        stay.hub.publish("news", "first")
        assert stuck.at_work.wait(WITHIN)
        for turn in range(7):
            stay.hub.publish("news", str(turn))
        assert [same.next(TOLD).payload for _ in range(8)][-1] == "6"
        stuck.go_on.set()
        assert eventually(lambda: stuck.heard == ["first", None, "6"])
        subscription.close()


def test_no_call_begins_after_leaving(connect, namespace, stuck):
    stay = connect("memory://")
    with stay.hub.listen("news") as same:
        subscription = stay._core.hub.subscribe(f"{namespace}:news", stuck)
        for payload in ("1", "2"):
            stay.hub.publish("news", payload)
            assert same.next(TOLD).payload == payload
        assert stuck.at_work.wait(WITHIN)
        subscription.close()
        stuck.go_on.set()
        assert eventually(lambda: not [t for t in threading.enumerate() if t.name == "backstay-mailbox"])
        assert stuck.heard == ["1"]


def test_a_mailbox_that_has_nothing_to_do_has_no_thread(connect, namespace, monkeypatch):
    monkeypatch.setattr(mailbox, "IDLE", 0.01)
    stay = connect("memory://")
    heard = []
    subscription = stay._core.hub.subscribe(f"{namespace}:news", heard.append)
    for turn in range(3):
        stay.hub.publish("news", str(turn))
        assert eventually(lambda: len(heard) == turn + 1)  # noqa: B023 - looked at before the next turn
        assert eventually(lambda: not subscription._mailbox._running)
    assert heard == ["0", "1", "2"]
    subscription.close()
