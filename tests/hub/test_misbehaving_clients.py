"""Slow readers, callbacks that raise and malformed bytes of other programs never affect other listeners."""

from __future__ import annotations

import asyncio
import threading
import uuid

import pytest
import redis

from backstay import Backstay
from backstay.testing.waiting import WITHIN, eventually

HINT = str(uuid.uuid4())
BYTES = [
    b"\xff\xfe\x00bad utf-8",
    HINT.encode() + b":\xff\xfe",
    HINT.encode() + b":",
    HINT.encode(),
    b"",
    b"t" * 513,
    b"x" * 10_000,
    b"y" * 2_000_000,  # above 32 MB the server disconnects its subscribers
    HINT.encode() + b":" + b"t" * 5000,
]


@pytest.mark.redis
@pytest.mark.parametrize("api", ["async", "blocking"])
def test_malformed_payloads_are_skipped(api, connect, backstay_redis, namespace):
    with redis.Redis(port=backstay_redis.port) as client:

        def disturb():
            for channel in ("sched", "chainc", "owls"):
                for payload in BYTES:
                    client.publish(f"{namespace}:{channel}", payload)

        if api == "blocking":
            stay = connect(backstay_redis.url)
            with stay.hub.listen_scheduled(["resize"]) as jobs, stay.hub.listen_ownership_lost("j1") as lost:
                disturb()
                stay.hub.publish_scheduled("resize")
                stay.hub.publish_ownership_lost("j1")
                notice = jobs.next(timeout=WITHIN)
                assert notice is not None
                assert notice.type == "resize"
                notice = lost.next(timeout=WITHIN)
                assert notice is not None
                assert notice.job_id == "j1"
                assert stay.telemetry.counts["hub.malformed"] >= len(BYTES) - 1
                assert stay.telemetry.counts["hub.reconnected"] == 0
            return

        async def main():
            async with (
                Backstay(backstay_redis.url, namespace=namespace) as stay,
                stay.hub.listen_scheduled(["resize"]) as jobs,
                stay.hub.listen_chain_completed("c1") as chains,
            ):
                await asyncio.to_thread(disturb)
                await stay.hub.publish_scheduled("resize")
                await stay.hub.publish_chain_completed("c1")
                notice = await jobs.next(timeout=WITHIN)
                assert notice is not None
                assert notice.type == "resize"
                notice = await chains.next(timeout=WITHIN)
                assert notice is not None
                assert notice.id == "c1"
                assert stay.telemetry.counts["hub.reconnected"] == 0

        asyncio.run(main())


@pytest.mark.redis
def test_a_payload_that_is_too_long_is_dropped(connect, backstay_redis, namespace):
    stay = connect(backstay_redis.url)
    with redis.Redis(port=backstay_redis.port) as client, stay.hub.listen("news") as messages:
        client.publish(f"{namespace}:news", b"z" * 7001)
        client.publish(f"{namespace}:news", b"z" * 7000)
        message = messages.next(timeout=WITHIN)
        assert message is not None
        assert len(message.payload) == 7000


def test_a_slow_reader_does_not_slow_other_readers(engine_url, connect):
    stay = connect(engine_url)
    at_work, go_on = threading.Event(), threading.Event()

    def slow():
        with stay.hub.listen("news") as messages:
            ready.set()
            for _ in messages:
                at_work.set()
                go_on.wait(30)
                return

    ready = threading.Event()
    thread = threading.Thread(target=slow)
    thread.start()
    assert ready.wait(WITHIN)
    with stay.hub.listen("news") as quick:
        stay.hub.publish("news", "first")
        assert at_work.wait(WITHIN)
        for i in range(100):
            stay.hub.publish("news", str(i))
        received = [quick.next(timeout=WITHIN) for _ in range(101)]
        assert [m.payload for m in received if m] == ["first", *map(str, range(100))]
    go_on.set()
    thread.join(WITHIN)
    assert not thread.is_alive()


@pytest.mark.parametrize("prompt", [True, False], ids=["on the hub's thread", "on its own"])
def test_a_callback_that_raises_loses_no_message_of_a_listener(engine_url, connect, namespace, caplog, prompt):
    stay = connect(engine_url)

    def fail(payload):
        raise RuntimeError("bad day")

    def fail_on_ready():
        raise RuntimeError("not even ready")

    bad = stay._core.hub.subscribe(f"{namespace}:news", fail, fail_on_ready, prompt=prompt)
    with stay.hub.listen("news") as messages:
        for i in range(3):
            stay.hub.publish("news", str(i))
        assert [m.payload for m in (messages.next(timeout=WITHIN) for _ in range(3)) if m] == ["0", "1", "2"]
    assert eventually(lambda: caplog.text.count("bad day") >= 3)
    bad.close()


def test_a_telemetry_subscriber_that_raises_loses_no_message(engine_url, connect):
    stay = connect(engine_url)

    def fail(event):
        raise RuntimeError("bad day")

    stay.telemetry.subscribe(fail)
    with stay.hub.listen("news") as messages:
        stay.hub.publish("news", "x")
        assert messages.next(timeout=WITHIN) is not None


def test_a_blocking_loop_over_a_channel_ends_when_the_backstay_closes(engine_url, connect):
    """Iteration ends; `next` would raise Closed."""
    stay = connect(engine_url)
    ready, ended = threading.Event(), threading.Event()

    def wait():
        with stay.hub.listen("news") as messages:
            ready.set()
            for _ in messages:
                pass
            ended.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert ready.wait(WITHIN)
    stay.close()
    assert ended.wait(WITHIN)
    thread.join(WITHIN)


def test_an_async_loop_over_a_channel_ends_when_the_backstay_closes(engine_url, namespace):
    async def main():
        stay = Backstay(engine_url, namespace=namespace)
        ready = asyncio.Event()

        async def wait():
            async with stay.hub.listen("news") as messages:
                ready.set()
                return [message async for message in messages]

        waiting = asyncio.create_task(wait())
        await ready.wait()
        await stay.close()
        assert await asyncio.wait_for(waiting, WITHIN) == []

    asyncio.run(main())


def test_a_listener_is_entered_once_at_a_time_and_may_be_entered_again(engine_url, connect):
    from backstay import ConfigError

    stay = connect(engine_url)
    listener = stay.hub.listen("news")
    with listener, pytest.raises(ConfigError, match="entered already"):
        listener.__enter__()
    with listener:
        stay.hub.publish("news", "again")
        message = listener.next(timeout=WITHIN)
        assert message is not None
        assert message.payload == "again"
    assert eventually(lambda: stay.hub.states() == {})


def test_several_readers_of_one_listener_share_its_messages(engine_url, namespace):
    async def main():
        async with Backstay(engine_url, namespace=namespace) as stay, stay.hub.listen("news") as messages:
            readers = [asyncio.create_task(messages.next(timeout=WITHIN)) for _ in range(5)]
            await asyncio.sleep(0)  # the readers wait now
            for i in range(5):
                await stay.hub.publish("news", str(i))
            received = [m.payload for m in await asyncio.gather(*readers) if m]
            assert sorted(received) == ["0", "1", "2", "3", "4"]

    asyncio.run(main())


def test_a_pending_next_raises_closed_when_its_listener_is_left(engine_url, namespace):
    from backstay import Closed

    async def main():
        async with Backstay(engine_url, namespace=namespace) as stay:
            async with stay.hub.listen("news") as messages:
                waiting = asyncio.create_task(messages.next())
                await asyncio.sleep(0)
            with pytest.raises(Closed):
                await asyncio.wait_for(waiting, WITHIN)

    asyncio.run(main())


def test_next_returns_none_after_its_timeout(engine_url, connect):
    stay = connect(engine_url)
    with stay.hub.listen("news") as messages:
        assert [messages.next(timeout=seconds) for seconds in (0, 0.01)] == [None, None]
