"""The shared listener on a real server behind a fault-injecting proxy."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import redis

from backstay import Backstay, EngineRefused, EngineUnavailable
from backstay.hub.redis_subscription import PING_EVERY
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.waiting import WITHIN, eventually, soon

pytestmark = [pytest.mark.redis, pytest.mark.chaos]
#: With their lengths: UNSUBSCRIBE contains SUBSCRIBE.
SUBSCRIBE, UNSUBSCRIBE = b"$9\r\nSUBSCRIBE", b"$11\r\nUNSUBSCRIBE"


@pytest.fixture
def proxy(backstay_redis):
    with FaultProxy(backstay_redis.port) as proxy:
        yield proxy


@pytest.fixture
def publisher(connect, backstay_redis):
    """A Backstay whose connection is never cut."""
    return connect(backstay_redis.url)


@pytest.fixture
def listeners(connect, proxy, tmp_path):
    """A Backstay whose hub is behind the proxy and whose engine is not."""
    return connect(f"sqlite:///{tmp_path / 'state.db'}", hub=proxy.url)


def text(message):
    assert message is not None
    assert not message.missed
    return message.payload


def test_a_refused_subscription_fails_and_succeeds_once_it_is_allowed(namespace, connect):
    with RedisServer() as server, redis.Redis(port=server.port) as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "resetchannels")
        stay = connect(f"redis://app:secret@127.0.0.1:{server.port}/0")
        with pytest.raises(EngineRefused, match="channel"):
            stay.hub.listen("news").__enter__()
        assert stay.hub.states() == {}
        admin.execute_command("ACL", "SETUSER", "app", f"&{namespace}:*")
        with stay.hub.listen("news") as messages:
            stay.hub.publish("news", "x")
            assert text(messages.next(timeout=WITHIN)) == "x"


def test_a_refused_channel_does_not_affect_other_channels(namespace):
    """This includes the async API, in which all channels share one connection."""
    with RedisServer() as server, redis.Redis(port=server.port) as admin:
        admin.execute_command(
            "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "resetchannels", f"&{namespace}:good"
        )

        async def main():
            url = f"redis://app:secret@127.0.0.1:{server.port}/0"
            async with Backstay(url, namespace=namespace) as stay, stay.hub.listen("good") as messages:
                with pytest.raises(EngineRefused, match="channel"):
                    await stay.hub.listen("bad").__aenter__()
                with pytest.raises(EngineRefused, match="channel"):
                    await stay.hub.listen("good", "bad").__aenter__()
                await stay.hub.publish("good", "x")
                assert text(await messages.next(timeout=WITHIN)) == "x"
                assert stay.hub.states() == {f"{namespace}:good": "running"}
                assert stay.telemetry.counts["hub.reconnected"] == 0

        asyncio.run(main())


def test_a_subscription_without_a_server_fails_and_a_later_one_succeeds(connect, monkeypatch, tmp_path):
    monkeypatch.setattr("backstay.channel.listeners.OPEN_WAIT", 0.3)
    server = RedisServer()
    try:
        stay = connect(f"sqlite:///{tmp_path / 'state.db'}", hub=server.url)
        with pytest.raises(EngineUnavailable, match="was not ready"):
            stay.hub.listen("news").__enter__()
        server.start()
        monkeypatch.setattr("backstay.channel.listeners.OPEN_WAIT", 5.0)
        with stay.hub.listen("news") as messages:
            stay.hub.publish("news", "x")
            assert text(messages.next(timeout=WITHIN)) == "x"
    finally:
        server.stop()


def test_a_listener_works_after_a_failed_unsubscribe(listeners, proxy, publisher):
    with listeners.hub.listen("other") as others:
        cut = proxy.once("cut-before", UNSUBSCRIBE)
        with listeners.hub.listen("news"):
            pass
        assert cut.applied.wait(WITHIN)
        message = others.next(timeout=WITHIN)
        assert message is not None
        assert message.missed, "the same connection carried it"
        with listeners.hub.listen("news") as again:
            publisher.hub.publish("news", "x")
            assert text(again.next(timeout=WITHIN)) == "x"
        publisher.hub.publish("other", "y")
        assert text(others.next(timeout=WITHIN)) == "y"


def test_a_subscriber_during_teardown_is_served(listeners, proxy, publisher, namespace):
    slow = proxy.once("delay", UNSUBSCRIBE, seconds=0.4)
    with listeners.hub.listen("news"):
        pass
    assert listeners.hub.states() == {f"{namespace}:news": "stopping"}
    with listeners.hub.listen("news") as messages:
        assert slow.applied.is_set()
        publisher.hub.publish("news", "x")
        assert text(messages.next(timeout=WITHIN)) == "x"


def test_a_message_after_leaving_is_not_dispatched(listeners, proxy, publisher, namespace):
    """The server still sends the message: UNSUBSCRIBE has not arrived yet."""
    received = []
    ready = threading.Event()
    with listeners.hub.listen("other") as others:
        held = proxy.once("hold", UNSUBSCRIBE)
        leaving = listeners._core.hub.subscribe(f"{namespace}:news", received.append, ready.set)
        assert ready.wait(WITHIN)
        leaving.close()
        assert held.applied.wait(WITHIN)
        publisher.hub.publish("news", "late")
        publisher.hub.publish("other", "after it on the same connection")
        assert text(others.next(timeout=WITHIN)).startswith("after")
        assert received == []


def test_leaving_while_a_listener_starts_stops_it(proxy, namespace, tmp_path):
    async def main():
        url = f"sqlite:///{tmp_path / 'state.db'}"
        async with Backstay(url, namespace=namespace, hub=proxy.url) as stay, stay.hub.listen("other"):  # connected
            proxy.once("delay", SUBSCRIBE, seconds=0.4)
            entering = asyncio.create_task(stay.hub.listen("news").__aenter__())
            assert await asyncio.to_thread(eventually, lambda: proxy.applied["delay"] == 1)
            assert stay.hub.states()[f"{namespace}:news"] == "starting"
            entering.cancel()
            await asyncio.wait([entering])
            assert entering.cancelled()
            assert await asyncio.to_thread(eventually, lambda: f"{namespace}:news" not in stay.hub.states())
            async with stay.hub.listen("news") as messages:
                await stay.hub.publish("news", "x")
                assert text(await messages.next(timeout=WITHIN)) == "x"

    asyncio.run(main())


@pytest.mark.parametrize("api", ["async", "blocking"])
def test_closing_while_a_listener_starts_leaves_no_thread_and_no_task(api, proxy, namespace, tmp_path, connect):
    url = f"sqlite:///{tmp_path / 'state.db'}"
    proxy.rule("blackhole")
    if api == "blocking":
        stay = connect(url, hub=f"{proxy.url}?connect_timeout=1")
        stay._core.hub.subscribe(f"{namespace}:news", lambda _: None)
        assert stay.hub.states() == {f"{namespace}:news": "starting"}
        stay.close()
        assert not [t for t in threading.enumerate() if t.name in ("backstay-hub", "backstay-relay")]
        return

    async def main():
        stay = Backstay(url, namespace=namespace, hub=proxy.url)
        await stay.open()
        stay._core.hub.subscribe(f"{namespace}:news", lambda _: None)
        assert stay.hub.states() == {f"{namespace}:news": "starting"}
        await stay.close()
        assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []

    asyncio.run(main())


def test_ten_thousand_listeners_share_one_subscription(backstay_redis, namespace):
    async def main():
        async with Backstay(backstay_redis.url, namespace=namespace) as stay:
            many = [stay.hub.listen("news") for _ in range(10_000)]
            for listener in many:
                await listener.__aenter__()
            with redis.Redis(port=backstay_redis.port) as plain:
                counts = plain.pubsub_numsub(f"{namespace}:news")
                assert counts == [(f"{namespace}:news".encode(), 1)]
            await stay.hub.publish("news", "all")
            for listener in many:
                assert text(await listener.next(timeout=WITHIN)) == "all"
            assert stay.telemetry.counts["hub.received"] == 1
            for listener in many:
                await listener.__aexit__(None, None, None)

    asyncio.run(main())


def test_a_hub_that_failed_to_start_starts_for_the_next_listener(backstay_redis, namespace):
    """Subscribing outside the hub's loop fails for that subscriber only."""

    async def main():
        async with Backstay(backstay_redis.url, namespace=namespace) as stay:
            hub = stay._core.hub
            failed = await asyncio.to_thread(hub.subscribe, f"{namespace}:news", lambda _: None)
            assert isinstance(failed.error, RuntimeError)
            async with stay.hub.listen("news") as messages:
                await stay.hub.publish("news", "x")
                assert text(await messages.next(timeout=WITHIN)) == "x"

    asyncio.run(main())


@pytest.fixture
def server_with_acl(namespace):
    """A server, its administrator, and the URL of a user who may subscribe to all channels at first."""
    with RedisServer() as server, redis.Redis(port=server.port) as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "allchannels")
        yield server, admin, f"redis://app:secret@127.0.0.1:{server.port}/0"


def test_a_listener_resubscribes_when_its_channel_permission_is_restored(namespace, connect, server_with_acl):
    """It retries without a new subscriber, at a limited rate, also while another channel is always busy."""
    server, admin, url = server_with_acl
    stay, publisher = connect(url), connect(server.url)
    news = f"{namespace}:news"
    stop = threading.Event()
    began = time.monotonic()

    def publish_noise():
        while not stop.wait(0.05):
            publisher.hub.publish("noise", "x")

    with stay.hub.listen("noise"), stay.hub.listen("news") as messages:
        admin.execute_command(
            "ACL", "SETUSER", "app", "resetchannels", f"&{namespace}:noise"
        )  # disconnects the subscribers
        noise_thread = threading.Thread(target=publish_noise)
        noise_thread.start()
        try:
            assert eventually(lambda: stay.telemetry.counts["hub.reconnected"] == 1)
            assert eventually(lambda: stay.hub.states() == {f"{namespace}:noise": "running", news: "idle"})
            with pytest.raises(EngineRefused):
                stay.hub.listen("news").__enter__()
            refused = admin.info("commandstats")["cmdstat_subscribe"]["rejected_calls"]
            admin.execute_command("ACL", "SETUSER", "app", "allchannels")
            message = messages.next(timeout=WITHIN)
        finally:
            stop.set()
            noise_thread.join()
        assert message is not None
        assert message.missed
        assert refused <= 3 + (time.monotonic() - began) / PING_EVERY
        publisher.hub.publish("news", "x")
        assert text(messages.next(timeout=WITHIN)) == "x"
        assert stay.telemetry.counts["hub.reconnected"] == 1


def test_a_listener_on_an_event_loop_resubscribes_when_its_permission_is_restored(namespace, server_with_acl):
    server, admin, url = server_with_acl

    async def main():
        async with (
            Backstay(server.url, namespace=namespace) as publisher,
            Backstay(url, namespace=namespace) as stay,
            stay.hub.listen("news") as messages,
        ):
            admin.execute_command("ACL", "SETUSER", "app", "resetchannels")
            assert await soon(lambda: asyncio.sleep(0, stay.telemetry.counts["hub.reconnected"] == 1))
            assert await soon(lambda: asyncio.sleep(0, stay.hub.states() == {f"{namespace}:news": "idle"}))
            admin.execute_command("ACL", "SETUSER", "app", "allchannels")
            message = await messages.next(timeout=WITHIN)
            assert message is not None
            assert message.missed
            await publisher.hub.publish("news", "x")
            assert text(await messages.next(timeout=WITHIN)) == "x"

    asyncio.run(main())
