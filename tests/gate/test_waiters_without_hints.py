"""A waiter that receives no hints polls at the engine's interval and does not spin."""

from __future__ import annotations

import asyncio

import pytest
import redis

import backstay
from backstay.testing.servers import RedisServer
from support.servers import running


@pytest.fixture
def server():
    with running(RedisServer()) as server:
        yield server


def scripts_run(raw):
    return raw.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)


@pytest.mark.redis
@pytest.mark.parametrize("why", ["forbidden", "full"])
def test_a_waiter_without_a_subscription_does_not_spin_on_redis(server, why):
    with redis.Redis(port=server.port) as raw:
        raw.execute_command("ACL", "SETUSER", "nosubscribe", "on", ">pw", "~*", "&*", "+@all", "-subscribe")
        user = "nosubscribe:pw@" if why == "forbidden" else ""
        url = server.url.replace("redis://", f"redis://{user}")

        async def main():
            async with backstay.Backstay(url) as stay:
                lease = await stay.lock("x").acquire()
                if why == "full":
                    raw.config_set("maxclients", raw.info("clients")["connected_clients"])
                before = scripts_run(raw)
                with pytest.raises(backstay.LockTimeout):
                    await asyncio.create_task(stay.lock("x").acquire(wait=2))
                asked = scripts_run(raw) - before
                await lease.release()
                return asked

        assert asyncio.run(main()) < 20


def test_a_waiter_without_a_hub_does_not_spin_on_sqlite(tmp_path):
    async def main():
        url = f"sqlite:///{tmp_path / 'x.db'}"
        async with backstay.Backstay(url, hub="redis://127.0.0.1:1") as stay:
            asked = 0
            submit = stay.engine.submit

            def count(op):
                nonlocal asked
                asked += 1
                return submit(op)

            stay.engine.submit = count
            lease = await stay.lock("x").acquire()
            with pytest.raises(backstay.LockTimeout):
                await asyncio.create_task(stay.lock("x").acquire(wait=2))
            await lease.release()
            return asked

    assert asyncio.run(main()) < 20
