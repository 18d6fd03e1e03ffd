"""Every Backstay on a shared engine gets the connection events."""

from __future__ import annotations

import asyncio

import pytest

from backstay import Backstay


@pytest.mark.redis
def test_an_async_and_a_blocking_backstay_on_one_engine_both_get_connection_events(backstay_redis, namespace):
    async def main():
        async with Backstay(backstay_redis.url, namespace=namespace) as stay:

            @stay.locked("x")
            def work():
                return "done"

            before = stay.telemetry.counts["link.connected"]
            assert before
            assert await asyncio.to_thread(work) == "done"
            assert stay.telemetry.counts["link.connected"] > before
            assert stay._blocking().telemetry.counts["link.connected"]

    asyncio.run(main())
