"""Clients learn of a failover from a Sentinel: none stays with a replaced master, even if it still serves."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import backstay
import backstay.sync
from backstay import EngineUnavailable
from backstay.testing.plugin import started_or_skip
from backstay.testing.servers import RedisSentinel, say
from backstay.testing.waiting import WITHIN, eventually, soon
from support.fake_server import FakeServer, array, bulk

pytestmark = [pytest.mark.redis, pytest.mark.chaos, pytest.mark.timed]

#: "At once": what a test on a busy machine may take for it.
AT_ONCE = 1.5
NO_RETRIES = backstay.Policy(lock_retries=0)


@pytest.fixture
def group():
    group = RedisSentinel()
    try:
        yield started_or_skip(group)
    finally:
        group.stop()


def replaced_while_it_lives(group):
    """A planned failover: the old master goes on for seconds, as one does that Sentinels cannot reach any more."""
    old = group.master()
    say(old, "WAIT", len(group.servers) - 1, 1000)
    alive = next(sentinel for sentinel in group.sentinels if sentinel.running)
    say(alive, "SENTINEL", "FAILOVER", group.service)
    return old, group.await_failover(old)


def still_serves(server):
    return say(server, "ROLE")[0] == b"master" and say(server, "SET", "probe", "1") == b"OK"


def watched(stay, group):
    """Wait until the watch is subscribed to a Sentinel; return which one."""
    watch = stay.engine._watch
    assert eventually(lambda: watch.is_running and list(watch._hub.states().values()) == ["running", "running"])
    return next(sentinel for sentinel in group.sentinels if sentinel.port == watch._sentinel.port)


def test_an_idle_thread_leaves_a_master_that_was_replaced_and_still_serves(group):
    with backstay.sync.Backstay(group.url) as stay:
        stay.lock("x", wait=0).acquire().release()
        link = stay.engine._thread_link()
        watched(stay, group)
        old, new = replaced_while_it_lives(group)
        assert eventually(lambda: not link.ready, within=AT_ONCE)
        assert still_serves(old)
        with stay.lock("y", wait=0):
            key = stay.engine.key("gate", "y")
            assert (say(new, "EXISTS", key), say(old, "EXISTS", key)) == (1, 0)


def test_an_idle_loop_leaves_a_master_that_was_replaced_and_still_serves(group):
    async def act():
        async with backstay.Backstay(group.url) as stay:
            await (await stay.lock("x", wait=0).acquire()).release()
            link = stay.engine._link
            await asyncio.to_thread(watched, stay, group)
            old, new = await asyncio.to_thread(replaced_while_it_lives, group)
            assert await soon(lambda: asyncio.sleep(0, not link.ready), within=AT_ONCE)
            assert still_serves(old)
            async with stay.lock("y", wait=0):
                key = stay.engine.key("gate", "y")
                assert (say(new, "EXISTS", key), say(old, "EXISTS", key)) == (1, 0)

    asyncio.run(act())


@pytest.mark.parametrize("api", ["async", "blocking"])
def test_an_idle_client_switches_to_the_new_master_at_once(group, api):
    """The old one stands still: without the news, the first command would wait for its time-out."""
    old = group.master()

    def fail_over():
        old.pause()
        group.await_failover(old)

    async def act():
        async with backstay.Backstay(group.url, profile=NO_RETRIES) as stay:
            await (await stay.lock("x", wait=0).acquire()).release()
            link = stay.engine._link
            await asyncio.to_thread(watched, stay, group)
            await asyncio.to_thread(fail_over)
            assert await soon(lambda: asyncio.sleep(0, not link.ready), within=AT_ONCE)
            began = time.monotonic()
            await (await stay.lock("x", wait=0).acquire()).release()
            return time.monotonic() - began, stay.telemetry.counts["engine.resend"]

    def block():
        with backstay.sync.Backstay(group.url, profile=NO_RETRIES) as stay:
            stay.lock("x", wait=0).acquire().release()
            link = stay.engine._thread_link()
            watched(stay, group)
            fail_over()
            assert eventually(lambda: not link.ready, within=AT_ONCE)
            began = time.monotonic()
            stay.lock("x", wait=0).acquire().release()
            return time.monotonic() - began, stay.telemetry.counts["engine.resend"]

    try:
        took, resends = asyncio.run(act()) if api == "async" else block()
    finally:
        old.resume()
    assert took < AT_ONCE
    assert resends == 0


@pytest.mark.parametrize("api", ["async", "blocking"])
def test_a_queued_waiter_keeps_waiting_at_the_new_master(group, api):
    """Its record came along; the place where it listened did not."""
    with backstay.sync.Backstay(group.url) as stay:
        held = stay.lock("x", ttl=60).acquire(wait=0)
        got = []

        def wait():
            if api == "blocking":
                with stay.lock("x", wait=60) as lease:
                    got.append(lease.fence)
                return

            async def act():
                async with backstay.Backstay(group.url) as other, other.lock("x", wait=60) as lease:
                    got.append(lease.fence)

            asyncio.run(act())

        thread = threading.Thread(target=wait)
        thread.start()
        assert eventually(lambda: len(stay.locks.inspect("x").queue) == 1)
        watched(stay, group)
        old, new = replaced_while_it_lives(group)

        def heard_there():
            subscribed = say(new, "PUBSUB", "CHANNELS", "backstay:inbox:*")
            return stay.engine._thread_link().address.port == new.port and len(subscribed) == 1

        assert eventually(heard_there, within=5)
        assert still_serves(old)
        began = time.monotonic()
        held.release()
        thread.join(30)
        assert got[0] > held.fence
        assert time.monotonic() - began < AT_ONCE  # it was notified; its own poll would come seconds later


def test_a_subscription_moves_to_the_new_master(group):
    with backstay.sync.Backstay(group.url) as stay, stay.hub.listen("news") as news:
        watched(stay, group)
        old, new = replaced_while_it_lives(group)
        assert news.next(WITHIN).missed
        assert still_serves(old)
        say(new, "PUBLISH", "backstay:news", "hello")
        assert news.next(WITHIN).payload == "hello"


def test_the_watch_moves_to_another_sentinel_when_the_first_is_gone(group):
    with backstay.sync.Backstay(group.url) as stay:
        stay.lock("x", wait=0).acquire().release()
        first = watched(stay, group)
        first.kill()
        assert eventually(lambda: stay.engine._watch._sentinel.port != first.port)
        watched(stay, group)
        link = stay.engine._thread_link()
        old, _ = replaced_while_it_lives(group)
        assert eventually(lambda: not link.ready, within=AT_ONCE)
        assert still_serves(old)


def test_a_missed_failover_is_found_when_a_sentinel_is_reachable_again(group):
    with backstay.sync.Backstay(group.url) as stay:
        stay.lock("x", wait=0).acquire().release()
        link = stay.engine._thread_link()
        watched(stay, group)
        heard = stay.engine._watch.connect_blocking
        closed = threading.Event()

        def deaf(client_name, patience=None):
            if not closed.is_set():
                raise EngineUnavailable("cut off from all Sentinels")
            return heard(client_name, patience)

        stay.engine._watch.connect_blocking = deaf
        for sentinel in group.sentinels:
            say(sentinel, "CLIENT", "KILL", "TYPE", "pubsub")
        old, _ = replaced_while_it_lives(group)
        assert link.ready
        closed.set()
        assert eventually(lambda: not link.ready, within=AT_ONCE + 1.0)  # it tries once a second
        assert still_serves(old)


def test_a_sentinel_with_an_older_epoch_is_ignored(group):
    """It names the old master, which is a master still."""
    old = group.master()
    real = group.sentinels[0]

    def behind(command):
        if b"MASTER" in command:
            return array(bulk("config-epoch"), bulk("0"))
        if b"GET-MASTER-ADDR-BY-NAME" in command:
            return array(bulk("127.0.0.1"), bulk(str(old.port)))
        return None

    with FakeServer(greet=behind) as stale:
        url = f"redis+sentinel://127.0.0.1:{real.port},127.0.0.1:{stale.port}/{group.service}?failover=0.5"
        with backstay.sync.Backstay(url, profile=NO_RETRIES) as stay:
            stay.lock("x", wait=0).acquire().release()
            link = stay.engine._thread_link()
            watched(stay, group)
            replaced_while_it_lives(group)
            assert eventually(lambda: not link.ready, within=AT_ONCE)
            real.kill()
            with pytest.raises(EngineUnavailable, match="does not know of the last failover"):
                stay.lock("y", wait=0).acquire()
            assert still_serves(old)
            assert say(old, "EXISTS", stay.engine.key("gate", "y")) == 0


def test_reconfigured_sentinels_are_trusted_again(quiet_sentinel):
    """They count failovers from the beginning again."""
    with backstay.sync.Backstay(quiet_sentinel.url) as stay:
        stay.lock("anew", wait=0).acquire().release()
        stay.engine._epoch = 99
        stay.engine._thread_link().close()
        stay.lock("anew", wait=0).acquire().release()


def test_closing_stops_the_sentinel_watch(quiet_sentinel):
    def watching():
        return [thread for thread in threading.enumerate() if thread.name == "backstay-sentinel"]

    with backstay.sync.Backstay(quiet_sentinel.url) as stay:
        stay.lock("closing", wait=0).acquire().release()
        assert len(watching()) == 1
    assert watching() == []

    async def act():
        async with backstay.Backstay(quiet_sentinel.url) as stay:
            await stay.locks.inspect("closing")
            assert len(watching()) == 1

    asyncio.run(act())
    assert watching() == []
