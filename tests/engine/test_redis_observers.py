"""Who shares an engine hears of its connections, too."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast


@pytest.mark.redis
def test_a_blocking_function_beside_async_code_takes_nobodys_telemetry_away(holdfast_redis, namespace):
    async def main():
        async with Holdfast(holdfast_redis.url, namespace=namespace) as hf:

            @hf.locked("x")
            def work():
                return "done"

            before = hf.telemetry.counts["link.connected"]
            assert before
            assert await asyncio.to_thread(work) == "done"
            assert hf.telemetry.counts["link.connected"] > before
            assert hf._blocking().telemetry.counts["link.connected"]

    asyncio.run(main())
