"""A server that is simply down: nothing was sent, so the first error says that nothing was applied."""

from __future__ import annotations

import asyncio
import time

import pytest

import backstay
import backstay.sync
from backstay import EngineUnavailable
from backstay.policy import Policy
from backstay.testing.servers import RedisServer
from support.servers import running

pytestmark = pytest.mark.chaos

IMPATIENT = Policy(lock_retries=0)
#: Seconds in which the kernel delivers the end of a killed server's connections, also on a busy machine.
DELIVERY = 0.2


def kill(server):
    """Kill a server and return, without running the event loop, when its connections have ended on this side, too."""
    server.kill()
    time.sleep(DELIVERY)


@pytest.fixture(
    params=[pytest.param("redis", marks=pytest.mark.redis), pytest.param("postgres", marks=pytest.mark.postgres)]
)
def server(request):
    """A server that the test may kill."""
    if request.param == "redis":
        made = RedisServer()
    else:
        pytest.importorskip("psycopg", reason="PostgreSQL needs backstay[postgres]")
        from backstay.testing.servers.postgres import PostgresServer

        made = PostgresServer()
    with running(made) as server:
        yield server


def test_the_first_error_of_a_thread_is_engine_unavailable(server):
    with backstay.sync.Backstay(server.url, profile=IMPATIENT) as stay:
        stay.lock("x").acquire(wait=0).release()
        kill(server)
        with pytest.raises(EngineUnavailable):
            stay.lock("x").acquire(wait=0)


def test_the_first_error_of_a_task_is_engine_unavailable(server):
    """Also if the event loop had no time to notice that the connection was closed."""

    async def main():
        stay = backstay.Backstay(server.url, profile=IMPATIENT)
        async with stay:
            await (await stay.lock("x").acquire(wait=0)).release()
            kill(server)
            with pytest.raises(EngineUnavailable):
                await stay.lock("x").acquire(wait=0)

    asyncio.run(main())


def test_what_must_not_be_sent_twice_is_sent_on_a_new_connection_after_a_restart(server):
    with backstay.sync.Backstay(server.url) as stay:
        stay.hub.publish("news", "1")
        stay.hub.publish_scheduled("job", 1)
        server.restart()
        stay.hub.publish("news", "2")
        stay.hub.publish_scheduled("job", 1)


def test_a_task_uses_a_new_connection_after_a_restart(server):
    async def main():
        async with backstay.Backstay(server.url) as stay:
            await stay.hub.publish("news", "1")
            server.restart()
            await stay.hub.publish("news", "2")
            await stay.hub.publish_scheduled("job", 1)

    asyncio.run(main())
