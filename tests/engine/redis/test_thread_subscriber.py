"""A waiting thread receives hints on its own connection and loses no wake when that connection breaks."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import redis

from backstay import sync
from backstay.testing.servers import RedisServer
from backstay.testing.waiting import WITHIN, eventually

pytestmark = pytest.mark.redis
#: Below a waiter's own recheck (10 s).
SOON = 9.0


@pytest.fixture(scope="module")
def server():
    with RedisServer() as server:
        yield server


@pytest.fixture
def raw(server):
    with redis.Redis(port=server.port) as client:
        yield client


def wait_in_thread(stay, name):
    """Wait for the lock in another thread; return the thread and a list for the time of the grant."""
    granted: list[float] = []

    def wait():
        lease = stay.lock(name).acquire(wait=30)
        granted.append(time.monotonic())
        lease.release()

    thread = threading.Thread(target=wait)
    thread.start()
    assert eventually(lambda: stay.locks.inspect(name).waiter_count == 1)
    return thread, granted


def test_a_waiting_thread_receives_its_wake_on_its_own_connection(server, raw):
    with sync.Backstay(server.url, namespace="threads1") as stay:
        lease = stay.lock("x").acquire()
        thread, granted = wait_in_thread(stay, "x")
        assert eventually(lambda: raw.pubsub_channels("threads1:inbox:*"))
        released = time.monotonic()
        lease.release()
        thread.join(WITHIN)
        assert granted[0] - released < SOON
        assert stay.hub.states() == {}


def test_a_waiter_whose_connection_is_cut_subscribes_again(server, raw):
    with sync.Backstay(server.url, namespace="threads2") as stay:
        lease = stay.lock("x").acquire()
        thread, granted = wait_in_thread(stay, "x")
        assert eventually(lambda: raw.pubsub_channels("threads2:inbox:*"))
        raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        assert eventually(lambda: raw.pubsub_channels("threads2:inbox:*")), "it listens again"
        released = time.monotonic()
        lease.release()
        thread.join(WITHIN)
        assert granted[0] - released < SOON


def test_one_thread_gets_the_wakes_of_two_backstays_on_one_engine(server):
    with sync.Backstay(server.url, namespace="threads3") as one, sync.Backstay(engine=one.engine) as two:
        done: list[float] = []

        def visit():
            for stay in (one, two):
                stay.lock("x").acquire(wait=30).release()
                done.append(time.monotonic())

        first = one.lock("x").acquire()
        thread = threading.Thread(target=visit)
        thread.start()
        assert eventually(lambda: one.locks.inspect("x").waiter_count == 1)
        first.release()
        assert eventually(lambda: done)
        started = time.monotonic()
        thread.join(WITHIN)
        assert done[1] - started < SOON


def test_a_user_without_the_right_to_subscribe_acquires_by_polling(server, raw):
    raw.execute_command("ACL", "SETUSER", "nosubscribe", "on", ">pw", "~*", "&*", "+@all", "-subscribe")
    url = server.url.replace("redis://", "redis://nosubscribe:pw@")
    with sync.Backstay(url, namespace="threads4") as stay:
        lease = stay.lock("x", ttl=1, renew=False).acquire()
        thread, granted = wait_in_thread(stay, "x")
        thread.join(WITHIN)
        assert granted
        assert lease.is_lost


def test_a_user_without_the_right_to_ping_can_release_a_lock(server, raw):
    raw.execute_command("ACL", "SETUSER", "noping", "on", ">pw", "~*", "&*", "+@all", "-ping")
    url = server.url.replace("redis://", "redis://noping:pw@")
    with sync.Backstay(url, namespace="threads6") as stay:
        for _ in range(3):
            released = stay.lock("x").acquire().release()
            assert released.released
            assert not released.idempotent


def test_a_thread_that_ends_closes_its_connection(server, raw):
    with sync.Backstay(server.url, namespace="threads5") as stay:
        before = raw.info("clients")["connected_clients"]
        for _ in range(30):
            thread = threading.Thread(target=lambda: stay.lock("x").acquire().release())
            thread.start()
            thread.join()
        gc.collect()
        assert eventually(lambda: raw.info("clients")["connected_clients"] <= before + 5)
