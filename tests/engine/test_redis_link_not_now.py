"""A server that is there and cannot serve: scripts it has forgotten, data it loads, a script it is stuck in."""

import asyncio

import pytest

import backstay
import backstay.sync
from backstay.engine.redis.address import parse
from backstay.engine.redis.link.blocking_link import BlockingLink
from backstay.engine.redis.link.protocol import pack
from backstay.testing.impostor import Impostor
from backstay.testing.servers import RedisServer
from backstay.testing.waiting import WITHIN, eventually

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
def test_a_server_that_cannot_serve_now_is_asked_again(code, backstay_redis):
    """Nothing was done, so the lock is simply taken at the next attempt."""
    retries = 0

    def count(event):
        nonlocal retries
        retries += event.kind == "engine.retry"

    def not_now(_):
        return f"-{code} come back later\r\n".encode() if retries < 2 else b"-ERR this far and no further\r\n"

    with Impostor(not_now) as server, backstay.sync.Backstay(server.url) as stay:
        stay.telemetry.subscribe(count)
        with pytest.raises(backstay.EngineRefused, match="this far"):
            stay.lock("x", wait=0).acquire()
        assert retries == 2


def test_a_server_busy_with_a_script_is_waited_for():
    with RedisServer(options=("--busy-reply-threshold", "50")) as server:
        address = parse(server.url + "?timeout=30")
        hog = BlockingLink(address, "hog", None)
        judge = BlockingLink(address, "judge", None)
        with backstay.sync.Backstay(server.url) as stay:
            hog._sock.sendall(pack("EVAL", "while true do end", "0"))

            def busy():
                return "BUSY" in str(judge.call_many([pack("PING")])[0])

            assert eventually(busy)
            retried = []

            def kill(event):
                if event.kind == "engine.retry" and not retried:
                    retried.append(event)
                    judge.call_many([pack("SCRIPT", "KILL")])

            stay.telemetry.subscribe(kill)
            with stay.lock("x", ttl=5, wait=WITHIN):
                assert retried
        hog.close()
        judge.close()
