"""Who shares an engine hears of its connections, too."""

from __future__ import annotations

import asyncio

import pytest

from backstay import Backstay


@pytest.mark.redis
def test_a_blocking_function_beside_async_code_takes_nobodys_telemetry_away(backstay_redis, namespace):
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
