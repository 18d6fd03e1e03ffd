"""The local fallback of limits: during an engine outage a process counts its hits itself, and reports all of them when
the engine is back.
"""

import asyncio
import sys
import threading

import pytest
import redis

import backstay
import backstay.sync
from backstay.testing.proxy import FaultProxy
from backstay.testing.servers import RedisServer
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import WITHIN, eventually, soon
from support.servers import running

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.redis]

LIMIT = 10
RATE = f"{LIMIT}/hour"


@pytest.fixture(scope="module")
def server():
    with running(RedisServer(port=reserve_port())) as server:
        yield server


@pytest.fixture
def proxy(server):
    with FaultProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def cut_off(proxy, namespace):
    """A Backstay that cannot reach its engine, and has admitted all hits of "k" that the limit allows."""
    url = proxy.url + "?timeout=1&connect_timeout=1"
    with backstay.sync.Backstay(url, namespace=namespace, profile=backstay.MAX_AVAILABILITY) as stay:
        stay.limit("api", RATE).hit("other")
        proxy.refuse()
        assert admitted(stay) == LIMIT
        yield stay


@pytest.fixture
def direct(server, namespace):
    """The same limit, on a Backstay that does not use the proxy."""
    with backstay.sync.Backstay(server.url, namespace=namespace) as stay:
        yield stay.limit("api", RATE)


def admitted(stay, tries=LIMIT + 2):
    api = stay.limit("api", RATE)
    return sum(api.hit("k").allowed for _ in range(tries))


def test_threads_count_together(proxy, namespace):
    switching = sys.getswitchinterval()
    with backstay.sync.Backstay(proxy.url, namespace=namespace, profile=backstay.MAX_AVAILABILITY) as stay:
        api = stay.limit("api", "500/hour")
        proxy.refuse()
        assert api.hit("k").by == "local"
        counts = []
        threads = [
            threading.Thread(target=lambda: counts.append(sum(api.hit("k").allowed for _ in range(150))))
            for _ in range(8)
        ]
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(switching)
        assert sum(counts) + 1 == 500


def test_async_and_blocking_callers_count_together(proxy, namespace):
    async def main():
        async with backstay.Backstay(proxy.url, namespace=namespace, profile=backstay.MAX_AVAILABILITY) as stay:

            @stay.limited(RATE, name="api")
            async def run_async():
                return True

            @stay.limited(RATE, name="api")
            def run_blocking():
                return True

            proxy.refuse()
            for _ in range(LIMIT // 2):
                assert await run_async()
                assert await asyncio.to_thread(run_blocking)
            with pytest.raises(backstay.RateLimited):
                await run_async()
            with pytest.raises(backstay.RateLimited):
                await asyncio.to_thread(run_blocking)

    asyncio.run(main())


def test_local_hits_are_reconciled_without_further_calls(proxy, cut_off, direct):
    proxy.heal()
    assert eventually(lambda: direct.peek("k").count == LIMIT)


def test_the_local_fallback_keeps_counting_during_reconciliation(proxy, namespace, server, direct):
    async def main():
        url = proxy.url + "?timeout=5&connect_timeout=1"
        async with backstay.Backstay(url, namespace=namespace, profile=backstay.MAX_AVAILABILITY) as stay:
            api = stay.limit("api", RATE)
            await api.hit("other")
            proxy.refuse()
            count = 0
            for _ in range(LIMIT // 2):
                count += (await api.hit("k")).allowed
            proxy.heal()
            report = proxy.rule("delay", b"EVAL", seconds=0.3)
            assert await soon(lambda: asyncio.sleep(0, report.applied.is_set() or len(proxy.applied)))
            while (decision := await api.hit("k")).by == "local":  # more hits than the limit allows
                count += decision.allowed
                await asyncio.sleep(0.01)
            proxy.heal()
            count += decision.allowed
            for _ in range(3):
                count += (await api.hit("k")).allowed
        return count

    assert asyncio.run(main()) == LIMIT
    assert direct.peek("k").count == LIMIT


def test_a_failed_reconciliation_loses_no_hit(proxy, cut_off, direct):
    proxy.heal()
    failed = proxy.rule("cut-before", b"EVAL")
    assert failed.applied.wait(WITHIN)
    assert admitted(cut_off) == 0
    proxy.heal()
    assert eventually(lambda: direct.peek("k").count == LIMIT)
    assert eventually(lambda: cut_off.limit("api", RATE).peek("other").by == "engine")
    assert admitted(cut_off) == 0


def test_a_damaged_record_does_not_block_reconciliation_of_the_others(proxy, cut_off, direct, server, namespace):
    for key in ("damaged", "sound"):
        cut_off.limit("api", RATE).hit(key, 3)
    with redis.Redis(port=server.port) as client:
        client.set(f"{namespace}:limit:{{api:s3600:damaged}}", b"junk")
    proxy.heal()
    assert eventually(lambda: cut_off.limit("api", RATE).peek("other").by == "engine")
    assert (direct.peek("sound").count, direct.peek("k").count) == (3, LIMIT)


def test_closing_reconciles_local_hits(proxy, cut_off, direct):
    proxy.heal()
    cut_off.close()
    assert direct.peek("k").count == LIMIT


def test_a_cancelled_call_under_allow_refunds_nothing(proxy, server, namespace):
    """The call was not counted, so a refund would cancel another caller's hit."""

    async def main():
        url = proxy.url + "?timeout=1&connect_timeout=1"
        async with (
            backstay.Backstay(url, namespace=namespace) as stay,
            backstay.Backstay(server.url, namespace=namespace) as direct,
        ):
            api = stay.limit("api", RATE, algorithm="fixed", on_unavailable="allow")
            await api.hit("k", 3)
            lost = proxy.once("drop", b"EVAL")
            call = asyncio.create_task(api.wait("k"))
            assert await soon(lambda: asyncio.sleep(0, lost.applied.is_set()))
            call.cancel()  # before the policy decides, which it does after the timeout
            with pytest.raises(asyncio.CancelledError):
                await call
            assert stay.telemetry.counts["limit.allow"] == 1
            return (await direct.limit("api", RATE, algorithm="fixed").peek("k")).count

    assert asyncio.run(main()) == 4
