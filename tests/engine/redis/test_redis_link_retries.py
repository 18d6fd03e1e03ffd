"""A reachable server that cannot serve yet: flushed scripts, loading data, a busy script."""

import asyncio

import pytest

import backstay
import backstay.sync
from backstay.engine.redis.address import parse
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.testing.servers import RedisServer
from backstay.testing.waiting import WITHIN, eventually
from support.fake_server import FakeServer

pytestmark = [pytest.mark.redis, pytest.mark.chaos]


def test_scripts_flushed_under_load_are_loaded_again(backstay_redis, request):
    name = request.node.name
    flusher = BlockingLink(parse(backstay_redis.url), "flusher", None)

    async def load():
        async with backstay.Backstay(backstay_redis.url) as stay:

            async def pairs(n):
                for _ in range(20):
                    async with stay.lock(f"{name}-{n}", ttl=5, wait=30):
                        pass

            async def flush():
                for _ in range(30):
                    await asyncio.to_thread(flusher.call_many, [pack("SCRIPT", "FLUSH")])

            await asyncio.gather(flush(), *[pairs(n % 5) for n in range(20)])

    asyncio.run(load())
    with backstay.sync.Backstay(backstay_redis.url) as stay:
        for _ in range(10):
            flusher.call_many([pack("SCRIPT", "FLUSH")])
            with stay.lock(name, ttl=5, wait=WITHIN):
                pass
    flusher.close()


@pytest.mark.parametrize("code", ["LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN"])
def test_a_command_that_the_server_cannot_run_yet_is_retried(code, backstay_redis):
    """The server did nothing, so the next attempt acquires the lock."""
    retries = 0

    def count(event):
        nonlocal retries
        retries += event.kind == "engine.retry"

    def refuse_twice(_):
        return f"-{code} come back later\r\n".encode() if retries < 2 else b"-ERR this far and no further\r\n"

    with FakeServer(refuse_twice) as server, backstay.sync.Backstay(server.url) as stay:
        stay.telemetry.subscribe(count)
        with pytest.raises(backstay.EngineRefused, match="this far"):
            stay.lock("x", wait=0).acquire()
        assert retries == 2


def test_an_acquire_retries_while_the_server_is_busy_with_a_script():
    with RedisServer(options=("--busy-reply-threshold", "50")) as server:
        address = parse(server.url + "?timeout=30")
        hog = BlockingLink(address, "hog", None)
        prober = BlockingLink(address, "prober", None)
        with backstay.sync.Backstay(server.url) as stay:
            hog._sock.sendall(pack("EVAL", "while true do end", "0"))

            def busy():
                return "BUSY" in str(prober.call_many([pack("PING")])[0])

            assert eventually(busy)
            retried = []

            def kill(event):
                if event.kind == "engine.retry" and not retried:
                    retried.append(event)
                    prober.call_many([pack("SCRIPT", "KILL")])

            stay.telemetry.subscribe(kill)
            with stay.lock("x", ttl=5, wait=WITHIN):
                assert retried
        hog.close()
        prober.close()
