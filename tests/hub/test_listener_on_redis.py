"""The shared listener's situations, on a real server behind a proxy that fails on purpose."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import redis

from backstay import Backstay, EngineRefused, EngineUnavailable
from backstay.hub.redis_connection import PING_EVERY
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.waiting import WITHIN, eventually, soon

pytestmark = [pytest.mark.redis, pytest.mark.chaos]
#: Whole commands: one of these words ends with the other.
SUBSCRIBE, UNSUBSCRIBE = b"$9\r\nSUBSCRIBE", b"$11\r\nUNSUBSCRIBE"


@pytest.fixture
def proxy(backstay_redis):
    with FaultProxy(backstay_redis.port) as proxy:
        yield proxy


@pytest.fixture
def speaker(connect, backstay_redis):
    """Somebody whose connection is never cut."""
    return connect(backstay_redis.url)


@pytest.fixture
def listeners(connect, proxy, tmp_path):
    """A Backstay that hears through the proxy, and says everything else elsewhere."""
    return connect(f"sqlite:///{tmp_path / 'state.db'}", hub=proxy.url)


def text(message):
    assert message is not None
    assert not message.missed
    return message.payload


def test_an_open_that_is_refused_fails_and_works_once_it_is_allowed(namespace, connect):
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


def test_a_refused_channel_leaves_its_neighbours_alone(namespace):
    """In the async API too, where one connection carries everything."""
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


def test_an_open_without_a_server_fails_and_a_later_one_works(connect, monkeypatch, tmp_path):
    monkeypatch.setattr("backstay.channel.listeners.OPEN_WAIT", 0.3)
    server = RedisServer()
    try:
        stay = connect(f"sqlite:///{tmp_path / 'state.db'}", hub=server.url)
        with pytest.raises(EngineUnavailable, match="could not be opened"):
            stay.hub.listen("news").__enter__()
        server.start()
        monkeypatch.setattr("backstay.channel.listeners.OPEN_WAIT", 5.0)
        with stay.hub.listen("news") as messages:
            stay.hub.publish("news", "x")
            assert text(messages.next(timeout=WITHIN)) == "x"
    finally:
        server.stop()


def test_a_failed_unsubscribe_does_not_poison_the_listener(listeners, proxy, speaker):
    with listeners.hub.listen("other") as others:
        cut = proxy.once("cut-before", UNSUBSCRIBE)
        with listeners.hub.listen("news"):
            pass
        assert cut.struck.wait(WITHIN)
        message = others.next(timeout=WITHIN)
        assert message is not None
        assert message.missed, "the same connection carried it"
        with listeners.hub.listen("news") as again:
            speaker.hub.publish("news", "x")
            assert text(again.next(timeout=WITHIN)) == "x"
        speaker.hub.publish("other", "y")
        assert text(others.next(timeout=WITHIN)) == "y"


def test_a_subscriber_during_teardown_is_served(listeners, proxy, speaker, namespace):
    slow = proxy.once("delay", UNSUBSCRIBE, seconds=0.4)
    with listeners.hub.listen("news"):
        pass
    assert listeners.hub.states() == {f"{namespace}:news": "stopping"}
    with listeners.hub.listen("news") as messages:
        assert slow.struck.is_set()
        speaker.hub.publish("news", "x")
        assert text(messages.next(timeout=WITHIN)) == "x"


def test_nothing_is_dispatched_to_who_has_left(listeners, proxy, speaker, namespace):
    """The server still sends: it has not heard of the leaving yet."""
    heard = []
    ready = threading.Event()
    with listeners.hub.listen("other") as others:
        held = proxy.once("hold", UNSUBSCRIBE)
        leaving = listeners._core.hub.subscribe(f"{namespace}:news", heard.append, ready.set)
        assert ready.wait(WITHIN)
        leaving.close()
        assert held.struck.wait(WITHIN)
        speaker.hub.publish("news", "late")
        speaker.hub.publish("other", "after it on the same connection")
        assert text(others.next(timeout=WITHIN)).startswith("after")
        assert heard == []


def test_leaving_while_it_starts_ends_it(proxy, namespace, tmp_path):
    async def main():
        url = f"sqlite:///{tmp_path / 'state.db'}"
        async with Backstay(url, namespace=namespace, hub=proxy.url) as stay, stay.hub.listen("other"):  # connected
            proxy.once("delay", SUBSCRIBE, seconds=0.4)
            entering = asyncio.create_task(stay.hub.listen("news").__aenter__())
            assert await asyncio.to_thread(eventually, lambda: proxy.struck["delay"] == 1)
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
def test_closing_while_it_starts_is_clean(api, proxy, namespace, tmp_path, connect):
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
            ears = [stay.hub.listen("news") for _ in range(10_000)]
            for ear in ears:
                await ear.__aenter__()
            with redis.Redis(port=backstay_redis.port) as plain:
                counts = plain.pubsub_numsub(f"{namespace}:news")
                assert counts == [(f"{namespace}:news".encode(), 1)]
            await stay.hub.publish("news", "all")
            for ear in ears:
                assert text(await ear.next(timeout=WITHIN)) == "all"
            assert stay.telemetry.counts["hub.received"] == 1
            for ear in ears:
                await ear.__aexit__(None, None, None)

    asyncio.run(main())


def test_a_hub_that_could_not_start_starts_for_the_next(backstay_redis, namespace):
    """An async hub outside its loop: an error for that one, and nothing is poisoned."""

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
def lent(namespace):
    """A server, its administrator, and a user who may hear everything at first."""
    with RedisServer() as server, redis.Redis(port=server.port) as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "allchannels")
        yield server, admin, f"redis://app:secret@127.0.0.1:{server.port}/0"


def test_a_listener_that_lost_its_right_hears_again_when_it_is_given_back(namespace, connect, lent):
    """By itself, also while another channel is never silent; and it does not hammer the server meanwhile."""
    server, admin, url = lent
    stay, speaker = connect(url), connect(server.url)
    news = f"{namespace}:news"
    stop = threading.Event()
    began = time.monotonic()

    def chatter():
        while not stop.wait(0.05):
            speaker.hub.publish("noise", "x")

    with stay.hub.listen("noise"), stay.hub.listen("news") as messages:
        admin.execute_command("ACL", "SETUSER", "app", "resetchannels", f"&{namespace}:noise")  # cuts who listens
        talker = threading.Thread(target=chatter)
        talker.start()
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
            talker.join()
        assert message is not None
        assert message.missed
        assert refused <= 3 + (time.monotonic() - began) / PING_EVERY
        speaker.hub.publish("news", "x")
        assert text(messages.next(timeout=WITHIN)) == "x"
        assert stay.telemetry.counts["hub.reconnected"] == 1


def test_a_listener_on_a_loop_hears_again_when_its_right_is_given_back(namespace, lent):
    server, admin, url = lent

    async def main():
        async with (
            Backstay(server.url, namespace=namespace) as speaker,
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
            await speaker.hub.publish("news", "x")
            assert text(await messages.next(timeout=WITHIN)) == "x"

    asyncio.run(main())
