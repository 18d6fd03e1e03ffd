"""A lost reentrant lease cancels the outer body, also after an inner block has ended."""

from __future__ import annotations

import asyncio

import pytest

from backstay import Backstay, LeaseLost
from backstay.testing.waiting import WITHIN


@pytest.mark.parametrize("inside", [True, False])
def test_the_outer_body_is_cancelled_when_the_lease_is_lost(engine_url, namespace, inside):
    async def scenario():
        async with Backstay(engine_url, namespace=namespace) as stay:
            reached = []

            async def body():
                async with stay.lock("x", ttl=0.6, reentrant=True):
                    async with stay.lock("x", ttl=0.6, reentrant=True):
                        if inside:
                            await stay.locks.force_release("x")
                            await asyncio.sleep(30)
                    await stay.locks.force_release("x")
                    await asyncio.sleep(30)
                    reached.append("end")

            with pytest.raises(LeaseLost):
                await body()
            assert not reached

    asyncio.run(asyncio.wait_for(scenario(), WITHIN))
