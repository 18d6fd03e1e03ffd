"""Publish and listen, on every hub, in both APIs and between processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

import backstay
from backstay import Backstay, ConfigError, sync
from backstay.channel.listeners import Listener
from backstay.testing.servers import RedisServer
from backstay.testing.waiting import WITHIN

REDIS = pytest.param("redis", marks=pytest.mark.redis)
POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)

PUBLISHER = """
import sys
from backstay.sync import Backstay
url, channel, *payloads = sys.argv[1:]
with Backstay(url) as stay:
    for payload in payloads:
        stay.hub.publish(channel, payload)
"""


def publish_elsewhere(url: str, channel: str, *payloads: str) -> None:
    subprocess.run([sys.executable, "-c", PUBLISHER, url, channel, *payloads], check=True, timeout=30)


@pytest.fixture(params=["memory", "sqlite", REDIS, POSTGRES])
def url(request, tmp_path):
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/hub.db"
    return request.getfixturevalue(f"backstay_{request.param}").url


@pytest.fixture(params=["sqlite", REDIS, POSTGRES])
def shared_url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/hub.db"
    return request.getfixturevalue(f"backstay_{request.param}").url


def test_a_message_reaches_every_listener_in_order(url, unique):
    async def main():
        async with Backstay(url) as stay, stay.hub.listen(unique) as one, stay.hub.listen(unique) as two:
            for i in range(50):
                await stay.hub.publish(unique, str(i))
            for news in (one, two):
                received = [await news.next(timeout=WITHIN) for _ in range(50)]
                assert [m.payload for m in received if m] == [str(i) for i in range(50)]
                assert {m.channel for m in received if m} == {unique}

    asyncio.run(main())


def test_messages_reach_other_threads(url, unique):
    with sync.Backstay(url) as stay:
        received: list[str] = []
        ready = threading.Event()

        def listen():
            with stay.hub.listen(unique) as messages:
                ready.set()
                for message in messages:
                    received.append(message.payload)
                    if message.payload == "end":
                        return

        thread = threading.Thread(target=listen)
        thread.start()
        assert ready.wait(WITHIN)
        stay.hub.publish(unique, "hello")
        stay.hub.publish(unique, "end")
        thread.join(WITHIN)
        assert received == ["hello", "end"]


def test_messages_of_another_process_arrive(shared_url, unique):
    async def main():
        async with Backstay(shared_url) as stay, stay.hub.listen(unique) as messages:
            await asyncio.to_thread(publish_elsewhere, shared_url, unique, "a", "b: {}\né")
            assert (await messages.next(timeout=WITHIN)) == backstay.Message(unique, "a")
            assert (await messages.next(timeout=WITHIN)) == backstay.Message(unique, "b: {}\né")

    asyncio.run(main())


def test_channels_and_namespaces_are_isolated(url, unique):
    async def main():
        async with (
            Backstay(url, namespace=f"one-{unique}") as stay,
            Backstay(url, namespace=f"two-{unique}") as other,
            stay.hub.listen("news") as messages,
        ):
            await stay.hub.publish("newsletter", "no")
            await other.hub.publish("news", "no")
            await stay.hub.publish("news", "yes")
            message = await messages.next(timeout=WITHIN)
            assert message is not None
            assert message.payload == "yes"

    asyncio.run(main())


def test_a_listener_receives_nothing_before_entering_or_after_leaving(url, unique):
    async def main():
        async with Backstay(url) as stay:
            await stay.hub.publish(unique, "too early")
            news = stay.hub.listen(unique)
            async with news:
                await stay.hub.publish(unique, "now")
                message = await news.next(timeout=WITHIN)
                assert message is not None
                assert message.payload == "now"
            await stay.hub.publish(unique, "too late")
            async with stay.hub.listen(unique) as again:
                await stay.hub.publish(unique, "again")
                message = await again.next(timeout=WITHIN)
                assert message is not None
                assert message.payload == "again"

    asyncio.run(main())


def test_a_listener_that_never_reads_gets_a_gap(url, unique):
    async def main():
        async with Backstay(url) as stay, stay.hub.listen(unique) as lazy, stay.hub.listen(unique) as keen:
            for i in range(1500):
                await stay.hub.publish(unique, str(i))
                message = await keen.next(timeout=WITHIN)
                assert message is not None
                assert message.payload == str(i)
            first = await lazy.next(timeout=WITHIN)
            assert first is not None
            assert first.missed

    asyncio.run(main())


def test_every_channel_that_lost_messages_reports_a_gap(url, unique, monkeypatch):
    """The buffer is shared: a noisy channel evicts the messages of a quiet one."""
    monkeypatch.setattr(Listener.__init__, "__kwdefaults__", {"buffer": 10})
    quiet, noisy, silent = (f"{unique}-{name}" for name in ("quiet", "noisy", "silent"))

    async def main():
        async with (
            Backstay(url) as stay,
            stay.hub.listen(quiet, noisy, silent) as lazy,
            stay.hub.listen(quiet, noisy) as keen,
        ):
            for channel, payload in [(quiet, "precious"), *((noisy, str(i)) for i in range(10))]:
                await stay.hub.publish(channel, payload)
                message = await keen.next(timeout=WITHIN)
                assert message is not None
                assert message.payload == payload
            received = [await lazy.next(timeout=WITHIN) for _ in range(2)]
            assert received == [backstay.Message(channel, "", missed=True) for channel in (quiet, noisy)]
            assert stay.telemetry.counts["hub.overflow"] == 2
            await stay.hub.publish(silent, "next")
            assert await lazy.next(timeout=WITHIN) == backstay.Message(silent, "next")

    asyncio.run(main())


def test_many_listeners_share_one_subscription(backstay_redis, unique):
    import redis

    async def main():
        async with Backstay(backstay_redis.url) as stay:
            many = [stay.hub.listen(unique) for _ in range(200)]
            for news in many:
                await news.__aenter__()
            counts = redis.Redis(port=backstay_redis.port).pubsub_numsub(f"backstay:{unique}")
            assert counts == [(f"backstay:{unique}".encode(), 1)]
            await stay.hub.publish(unique, "all")
            for news in many:
                message = await news.next(timeout=WITHIN)
                assert message is not None
                assert message.payload == "all"
            for news in many:
                await news.__aexit__(None, None, None)

    asyncio.run(main())


def test_bad_channels_and_payloads_are_refused(unique):
    with sync.Backstay("memory://") as stay:
        with pytest.raises(ConfigError, match="channel"):
            stay.hub.publish("", "x")
        with pytest.raises(ConfigError, match="payload"):
            stay.hub.publish(unique, b"bytes")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="enter the listener"):
            stay.hub.listen(unique).next(timeout=0)


@pytest.mark.chaos
@pytest.mark.parametrize("api", ["async", "blocking"])
def test_after_a_restart_listeners_get_one_gap_and_then_further_messages(api, unique):
    with RedisServer() as server:
        if api == "async":

            async def main():
                async with Backstay(server.url) as stay, stay.hub.listen(unique) as messages:
                    await asyncio.to_thread(server.restart)
                    message = await messages.next(timeout=WITHIN)
                    assert message is not None
                    assert message.missed
                    await asyncio.to_thread(publish_elsewhere, server.url, unique, "back")
                    message = await messages.next(timeout=WITHIN)
                    assert message is not None
                    assert message.payload == "back"

            asyncio.run(main())
        else:
            with sync.Backstay(server.url) as stay, stay.hub.listen(unique) as messages:
                server.restart()
                message = messages.next(timeout=WITHIN)
                assert message is not None
                assert message.missed
                publish_elsewhere(server.url, unique, "back")
                message = messages.next(timeout=WITHIN)
                assert message is not None
                assert message.payload == "back"


def test_closing_leaves_no_thread_and_no_task_behind(url, unique):
    async def main():
        stay = Backstay(url)
        async with stay.hub.listen(unique):
            await stay.hub.publish(unique, "x")
        await stay.close()
        await stay.close()
        assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []

    before = set(threading.enumerate())
    asyncio.run(main())
    left = [t for t in set(threading.enumerate()) - before if t.name.startswith("backstay")]
    assert left == []
