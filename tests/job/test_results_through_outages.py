"""Whoever waits for a result sits out a server that restarts."""

from __future__ import annotations

import asyncio

import pytest
from on_a_loop import on_a_loop
from workshop import working

import backstay
from backstay import EngineError, ResultTimeout
from backstay.job.api.completion_waiters import waiters_of
from backstay.testing.postgres import PostgresServer
from backstay.testing.waiting import soon

pytestmark = [pytest.mark.postgres, pytest.mark.chaos, pytest.mark.slow]


@on_a_loop
async def test_a_waiter_sits_out_a_restart_and_gets_the_result():
    with PostgresServer() as server:
        async with backstay.Backstay(server.url) as stay:

            @stay.job()
            async def add(a: int, b: int) -> int:
                return a + b

            handle = await add.enqueue(1, 2)
            waiting = asyncio.create_task(handle.result(60))

            async def listens():
                return waiters_of(stay._core).hears

            assert await soon(listens)
            await asyncio.to_thread(server.restart)
            async with working(stay):
                assert await waiting == 3


@on_a_loop
async def test_a_waiter_is_not_kept_longer_than_he_said_by_a_server_that_is_away():
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
