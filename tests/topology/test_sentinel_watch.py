"""Clients subscribe to failover events of a Sentinel: they leave a replaced master at once, even if it still serves."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import backstay
import backstay.sync
from backstay import EngineUnavailable
from backstay.testing.servers import RedisSentinel, say
from backstay.testing.waiting import WITHIN, eventually, soon
from support.fake_server import FakeServer, array, bulk
from support.servers import running

pytestmark = [pytest.mark.redis, pytest.mark.chaos, pytest.mark.timed]

#: Seconds that "at once" may take on a busy machine.
AT_ONCE = 1.5
NO_RETRIES = backstay.Policy(lock_retries=0)


@pytest.fixture
def group():
    with running(RedisSentinel()) as group:
        yield group


def replace_live_master(group):
    """Start a planned failover and return the old and the new master. The old one stays a master for seconds, like one
    that the Sentinels cannot reach.
    """
    old = group.master()
    say(old, "WAIT", len(group.servers) - 1, 1000)
    alive = next(sentinel for sentinel in group.sentinels if sentinel.running)
    say(alive, "SENTINEL", "FAILOVER", group.service)
    return old, group.await_failover(old)


def still_serves(server):
    return say(server, "ROLE")[0] == b"master" and say(server, "SET", "probe", "1") == b"OK"


def await_watch(stay, group):
    """Wait until the client has subscribed to a Sentinel, and return that Sentinel."""
    watch = stay.engine._watch
    assert eventually(lambda: watch.is_running and list(watch._hub.states().values()) == ["running", "running"])
    return next(sentinel for sentinel in group.sentinels if sentinel.port == watch._sentinel.port)


def test_an_idle_thread_leaves_a_master_that_was_replaced_and_still_serves(group):
    with backstay.sync.Backstay(group.url) as stay:
        stay.lock("x", wait=0).acquire().release()
        link = stay.engine._thread_link()
        await_watch(stay, group)
        old, new = replace_live_master(group)
        assert eventually(lambda: not link.ready, within=AT_ONCE)
        assert still_serves(old)
        with stay.lock("y", wait=0):
            key = stay.engine.key("gate", "y")
            assert (say(new, "EXISTS", key), say(old, "EXISTS", key)) == (1, 0)


def test_an_idle_loop_leaves_a_master_that_was_replaced_and_still_serves(group):
    async def main():
        async with backstay.Backstay(group.url) as stay:
            await (await stay.lock("x", wait=0).acquire()).release()
            link = stay.engine._link
            await asyncio.to_thread(await_watch, stay, group)
            old, new = await asyncio.to_thread(replace_live_master, group)
            assert await soon(lambda: asyncio.sleep(0, not link.ready), within=AT_ONCE)
            assert still_serves(old)
            async with stay.lock("y", wait=0):
                key = stay.engine.key("gate", "y")
                assert (say(new, "EXISTS", key), say(old, "EXISTS", key)) == (1, 0)

    asyncio.run(main())


@pytest.mark.parametrize("api", ["async", "blocking"])
def test_an_idle_client_switches_to_the_new_master_at_once(group, api):
    """The old master is paused: without the event, the first command would wait for its timeout."""
    old = group.master()

    def fail_over():
        old.pause()
        group.await_failover(old)

    async def switch_async():
        async with backstay.Backstay(group.url, profile=NO_RETRIES) as stay:
            await (await stay.lock("x", wait=0).acquire()).release()
            link = stay.engine._link
            await asyncio.to_thread(await_watch, stay, group)
            await asyncio.to_thread(fail_over)
            assert await soon(lambda: asyncio.sleep(0, not link.ready), within=AT_ONCE)
            began = time.monotonic()
            await (await stay.lock("x", wait=0).acquire()).release()
            return time.monotonic() - began, stay.telemetry.counts["engine.resend"]

    def switch_blocking():
        with backstay.sync.Backstay(group.url, profile=NO_RETRIES) as stay:
            stay.lock("x", wait=0).acquire().release()
            link = stay.engine._thread_link()
            await_watch(stay, group)
            fail_over()
            assert eventually(lambda: not link.ready, within=AT_ONCE)
            began = time.monotonic()
            stay.lock("x", wait=0).acquire().release()
            return time.monotonic() - began, stay.telemetry.counts["engine.resend"]

    try:
        took, resends = asyncio.run(switch_async()) if api == "async" else switch_blocking()
    finally:
        old.resume()
    assert took < AT_ONCE
    assert resends == 0


@pytest.mark.parametrize("api", ["async", "blocking"])
def test_a_queued_waiter_keeps_waiting_at_the_new_master(group, api):
    """Its record was replicated, but its subscription ends with the connection to the old master."""
    with backstay.sync.Backstay(group.url) as stay:
        held = stay.lock("x", ttl=60).acquire(wait=0)
        fences = []

        def wait():
            if api == "blocking":
                with stay.lock("x", wait=60) as lease:
                    fences.append(lease.fence)
                return

            async def wait_async():
                async with backstay.Backstay(group.url) as other, other.lock("x", wait=60) as lease:
                    fences.append(lease.fence)

            asyncio.run(wait_async())

        thread = threading.Thread(target=wait)
        thread.start()
        assert eventually(lambda: len(stay.locks.inspect("x").queue) == 1)
        await_watch(stay, group)
        old, new = replace_live_master(group)

        def is_subscribed():
            subscribed = say(new, "PUBSUB", "CHANNELS", "backstay:inbox:*")
            return stay.engine._thread_link().address.port == new.port and len(subscribed) == 1

        assert eventually(is_subscribed, within=5)
        assert still_serves(old)
        began = time.monotonic()
        held.release()
        thread.join(30)
        assert fences[0] > held.fence
        assert time.monotonic() - began < AT_ONCE  # by a hint: its own poll would come seconds later


def test_a_subscription_moves_to_the_new_master(group):
    with backstay.sync.Backstay(group.url) as stay, stay.hub.listen("news") as news:
        await_watch(stay, group)
        old, new = replace_live_master(group)
        assert news.next(WITHIN).missed
        assert still_serves(old)
        say(new, "PUBLISH", "backstay:news", "hello")
        assert news.next(WITHIN).payload == "hello"


def test_the_watch_moves_to_another_sentinel_when_the_first_is_gone(group):
    with backstay.sync.Backstay(group.url) as stay:
        stay.lock("x", wait=0).acquire().release()
        first = await_watch(stay, group)
        first.kill()
        assert eventually(lambda: stay.engine._watch._sentinel.port != first.port)
        await_watch(stay, group)
        link = stay.engine._thread_link()
        old, _ = replace_live_master(group)
        assert eventually(lambda: not link.ready, within=AT_ONCE)
        assert still_serves(old)


def test_a_missed_failover_is_found_when_a_sentinel_is_reachable_again(group):
    with backstay.sync.Backstay(group.url) as stay:
        stay.lock("x", wait=0).acquire().release()
        link = stay.engine._thread_link()
        await_watch(stay, group)
        connect = stay.engine._watch.connect_blocking
        reachable = threading.Event()

        def connect_when_reachable(client_name, patience=None):
            if not reachable.is_set():
                raise EngineUnavailable("no Sentinel is reachable")
            return connect(client_name, patience)

        stay.engine._watch.connect_blocking = connect_when_reachable
        for sentinel in group.sentinels:
            say(sentinel, "CLIENT", "KILL", "TYPE", "pubsub")
        old, _ = replace_live_master(group)
        assert link.ready
        reachable.set()
        assert eventually(lambda: not link.ready, within=AT_ONCE + 1.0)  # the watch reconnects once a second
        assert still_serves(old)


def test_a_sentinel_with_an_older_epoch_is_ignored(group):
    """The Sentinel names the old master, which still is a master."""
    old = group.master()
    real = group.sentinels[0]

    def reply_with_epoch_0(command):
        if b"MASTER" in command:
            return array(bulk("config-epoch"), bulk("0"))
        if b"GET-MASTER-ADDR-BY-NAME" in command:
            return array(bulk("127.0.0.1"), bulk(str(old.port)))
        return None

    with FakeServer(greet=reply_with_epoch_0) as stale:
        url = f"redis+sentinel://127.0.0.1:{real.port},127.0.0.1:{stale.port}/{group.service}?failover=0.5"
        with backstay.sync.Backstay(url, profile=NO_RETRIES) as stay:
            stay.lock("x", wait=0).acquire().release()
            link = stay.engine._thread_link()
            await_watch(stay, group)
            replace_live_master(group)
            assert eventually(lambda: not link.ready, within=AT_ONCE)
            real.kill()
            with pytest.raises(EngineUnavailable, match="does not know of the last failover"):
                stay.lock("y", wait=0).acquire()
            assert still_serves(old)
            assert say(old, "EXISTS", stay.engine.key("gate", "y")) == 0


def test_reconfigured_sentinels_are_trusted_again(quiet_sentinel):
    """Their epoch starts from the beginning."""
    with backstay.sync.Backstay(quiet_sentinel.url) as stay:
        stay.lock("anew", wait=0).acquire().release()
        stay.engine._epoch = 99
        stay.engine._thread_link().close()
        stay.lock("anew", wait=0).acquire().release()


def test_closing_stops_the_sentinel_watch(quiet_sentinel):
    def watch_threads():
        return [thread for thread in threading.enumerate() if thread.name == "backstay-sentinel"]

    with backstay.sync.Backstay(quiet_sentinel.url) as stay:
        stay.lock("closing", wait=0).acquire().release()
        assert len(watch_threads()) == 1
    assert watch_threads() == []

    async def main():
        async with backstay.Backstay(quiet_sentinel.url) as stay:
            await stay.locks.inspect("closing")
            assert len(watch_threads()) == 1

    asyncio.run(main())
    assert watch_threads() == []
