"""Replies match their commands despite cancellations, floods, timeouts, garbage and flushed scripts."""

import asyncio
import random
import time

import pytest

import backstay
import backstay.sync
from backstay import EngineError, EngineUnavailable, OutcomeUnknown
from backstay.engine.base import Ping, Read, steady
from backstay.engine.redis.address import parse
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.link import async_link
from backstay.engine.redis.link.async_link import AsyncLink
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.gate.machine import GATE
from backstay.testing.proxy import FaultProxy
from backstay.testing.waiting import soon
from support.fake_server import FakeServer, Hangup, bulk

pytestmark = [pytest.mark.redis, pytest.mark.chaos]


async def connect(url):
    return await AsyncLink.connect(parse(url), "test", None)


async def closing(link):
    """Let the transport close before the loop ends."""
    link.abort()
    await asyncio.sleep(0)


def test_handoffs_among_other_commands_get_their_own_replies(backstay_redis):
    """A handoff may carry an extra command whose reply is discarded, depending on the commands in flight."""

    async def crowd():
        link = await connect(backstay_redis.url)
        dice = random.Random(2)

        async def echo(n):
            await asyncio.sleep(dice.uniform(0, 0.002))
            send = link.send_after_ping if n % 2 else link.send
            assert await send(pack("ECHO", str(n))) == str(n).encode()

        await asyncio.gather(*[echo(n) for n in range(500)])
        for n in range(50):
            assert await link.send_after_ping(pack("ECHO", str(n))) == str(n).encode()
        link.abort()
        with pytest.raises(EngineUnavailable):
            await link.send_after_ping(pack("ECHO", "late"))
        await closing(link)

    asyncio.run(crowd())


def test_many_cancellations_never_mix_up_replies(backstay_redis):
    async def storm():
        link = await connect(backstay_redis.url)
        dice = random.Random(1)
        answered = 0

        async def echo(n):
            nonlocal answered
            assert await link.send(pack("ECHO", str(n))) == str(n).encode()
            answered += 1

        for turn in range(60):
            tasks = [asyncio.create_task(echo(turn * 1000 + i)) for i in range(100)]
            for task in tasks:
                if dice.random() < 0.3:
                    asyncio.get_running_loop().call_later(dice.uniform(0, 0.002), task.cancel)
            if turn % 3:
                await asyncio.sleep(0)
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(r is None or isinstance(r, asyncio.CancelledError) for r in done)
        assert link.ready
        await closing(link)
        return answered

    assert asyncio.run(storm()) > 3000


def test_many_cancelled_acquires_leave_no_ticket(backstay_redis, request):
    name = request.node.name

    async def storm():
        dice = random.Random(2)
        async with backstay.Backstay(backstay_redis.url) as stay:

            async def hold():
                async with stay.lock(name, ttl=5):
                    await asyncio.sleep(dice.uniform(0, 0.002))

            tasks = [asyncio.create_task(hold()) for _ in range(200)]
            for task in tasks:
                if dice.random() < 0.7:
                    asyncio.get_running_loop().call_later(dice.uniform(0, 0.2), task.cancel)
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert not [r for r in done if isinstance(r, Exception)]
            assert [r for r in done if r is None]
            return (await stay.locks.inspect(name)).count

    assert asyncio.run(storm()) == 0


def test_commands_in_flight_are_bounded_and_further_ones_are_queued_in_the_client(monkeypatch):
    monkeypatch.setattr(async_link, "IN_FLIGHT", 10)

    async def flood():
        seen = 0

        def silent(command):
            nonlocal seen
            seen += 1
            return b""

        with FakeServer(silent) as server:
            link = await connect(server.url)
            futures = [link.send(pack("ECHO", str(i))) for i in range(50)]
            assert await soon(lambda: asyncio.sleep(0, seen == 10))
            futures[30].cancel()
            link.abort()
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert seen == 10
            assert all(isinstance(r, OutcomeUnknown) for r in results[:10])
            unsent = results[10:30] + results[31:]
            assert all(isinstance(r, EngineUnavailable) for r in unsent)

    asyncio.run(flood())


def test_replies_beyond_the_in_flight_bound_arrive_in_order(monkeypatch, backstay_redis):
    monkeypatch.setattr(async_link, "IN_FLIGHT", 7)

    async def flood():
        link = await connect(backstay_redis.url)
        futures = [link.send(pack("ECHO", str(i))) for i in range(500)]
        for future in futures[::3]:
            future.cancel()
        replies = await asyncio.gather(*futures, return_exceptions=True)
        for i, reply in enumerate(replies):
            if i % 3:
                assert reply == str(i).encode()
        await closing(link)

    asyncio.run(flood())


def test_the_replies_of_a_huge_pipeline_arrive_in_order(backstay_redis):
    payload = b"x" * 1000

    async def flood():
        link = await connect(backstay_redis.url)
        replies = await asyncio.gather(*[link.send(pack("ECHO", b"%d" % i + payload)) for i in range(20_000)])
        await closing(link)
        return replies

    assert asyncio.run(flood()) == [b"%d" % i + payload for i in range(20_000)]
    link = BlockingLink(parse(backstay_redis.url), "test", None)
    replies = link.call_many([pack("ECHO", str(i)) for i in range(20_000)])
    link.close()
    assert replies == [str(i).encode() for i in range(20_000)]


def test_a_missing_reply_closes_the_connection_and_the_engine_reconnects():
    async def lose():
        with FakeServer(lambda c: b"" if c[0] == b"ECHO" else bulk("fine")) as server:
            engine = RedisEngine(parse(server.url + "?timeout=0.3"))
            await engine.open()
            link = engine._link
            started = steady()
            with pytest.raises(OutcomeUnknown):
                await link.send(pack("ECHO", "lost"))
            assert 0.3 <= steady() - started < 3
            assert not link.ready
            assert await engine.submit(Ping()) > 0
            assert engine._link is not link
            await engine.close()

    asyncio.run(lose())


def test_a_short_loop_stall_does_not_time_out_a_slow_reply(backstay_redis):
    """The timeout of a command starts when it is sent, not at the last reply to an earlier command."""

    async def slow():
        loop = asyncio.get_running_loop()
        with FaultProxy(backstay_redis.port) as proxy:
            link = await connect(proxy.url + "?timeout=1")
            armed = loop.time()
            await link.send(pack("PING"))
            loop.call_at(armed + 0.97, time.sleep, 0.08)
            proxy.once("delay", b"ECHO", seconds=0.8)
            await asyncio.sleep(armed + 0.45 - loop.time())
            assert await link.send(pack("ECHO", "slow")) == b"slow"
            await closing(link)

    asyncio.run(slow())


def test_garbage_in_place_of_a_reply_is_an_unknown_outcome():
    async def garbage():
        with FakeServer(lambda _: b"!?garbage\r\n\r\n") as server:
            link = await connect(server.url)
            with pytest.raises(OutcomeUnknown):
                await link.send(pack("ECHO", "x"))
            assert not link.ready
            blocking = BlockingLink(parse(server.url), "test", None)
            with pytest.raises(OutcomeUnknown):
                blocking.call_many([pack("ECHO", "x")])
            assert not blocking.ready

    asyncio.run(garbage())


def test_surplus_replies_are_never_matched_to_later_commands():
    with FakeServer(lambda c: bulk(c[1]) + bulk("surplus")) as server:

        async def ask():
            link = await connect(server.url)
            first = await asyncio.gather(link.send(pack("ECHO", "1")), return_exceptions=True)
            await asyncio.sleep(0.05)
            second = await asyncio.gather(link.send(pack("ECHO", "2")), return_exceptions=True)
            await closing(link)
            return first, second

        first, second = asyncio.run(ask())
        assert first[0] == b"1" or isinstance(first[0], EngineError)
        assert isinstance(second[0], EngineError)
        engine = RedisEngine(parse(server.url))
        try:
            answers = engine.apply_many([Read(GATE, "x")])
            assert isinstance(answers[0], EngineError)
        finally:
            engine.close_blocking()


def test_a_truncated_reply_is_an_unknown_outcome():
    def cut(_):
        raise Hangup(b"$100\r\nhalf of")

    with FakeServer(cut) as server:

        async def ask():
            link = await connect(server.url)
            with pytest.raises(OutcomeUnknown):
                await link.send(pack("ECHO", "x"))

        asyncio.run(ask())
        blocking = BlockingLink(parse(server.url), "test", None)
        with pytest.raises(OutcomeUnknown):
            blocking.call_many([pack("ECHO", "x")])
