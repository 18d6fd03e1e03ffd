"""A caller that waits for a result survives a restart of the database server."""

from __future__ import annotations

import asyncio

import pytest

import backstay
from backstay import EngineError, ResultTimeout
from backstay.job.api.completion_waiters import COMPLETION_WAITERS
from backstay.testing.servers.postgres import PostgresServer
from backstay.testing.waiting import soon
from support.app import working
from support.event_loop import on_a_loop

pytestmark = [pytest.mark.postgres, pytest.mark.chaos, pytest.mark.slow]


@on_a_loop
async def test_a_waiter_survives_a_server_restart_and_gets_the_result():
    with PostgresServer() as server:
        async with backstay.Backstay(server.url) as stay:

            @stay.job()
            async def add(a: int, b: int) -> int:
                return a + b

            handle = await add.enqueue(1, 2)
            waiting = asyncio.create_task(handle.result(60))

            async def listens():
                return stay._core.services.get(COMPLETION_WAITERS).is_listening

            assert await soon(listens)
            await asyncio.to_thread(server.restart)
            async with working(stay):
                assert await waiting == 3


@on_a_loop
async def test_a_waiters_timeout_holds_while_the_server_is_down():
    server = PostgresServer().start()
    try:
        async with backstay.Backstay(server.url) as stay:

            @stay.job()
            async def add(a: int, b: int) -> int:
                return a + b

            handle = await add.enqueue(1, 2)
            await asyncio.to_thread(server.stop)
            began = asyncio.get_running_loop().time()
            with pytest.raises((EngineError, ResultTimeout)):
                await handle.result(1)
            assert asyncio.get_running_loop().time() - began < 30
    finally:
        server.stop()
